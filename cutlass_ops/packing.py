"""PackedLinear: a linear layer prepared once for inference, and explicitly.

The ops keep no cache of weights, since nothing reliable tells when a weight has changed. Who wants
to fold once instead of on every call packs, and owns the snapshot.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import precision as _precision
from .halves import can_split, references, split
from .routing import autocast_active, without_autocast
from .schemas import OPS
from .validation import check_fold, check_kernel_size

_STATE_VERSION = 1
_making_halves = threading.Lock()  # calls may come from several threads


class PackedLinear(nn.Module):
    """A snapshot of ``weight [N, K]`` and ``bias [N]``, pooled by ``kernel_size``; inference only.

    It stands where ``weight`` stands in the functional ops. ``weight`` ``[N // kernel_size, K]``
    and ``bias`` ``[N // kernel_size]`` or None are buffers, so ``.to``, ``state_dict``,
    ``deepcopy``, pickle and ``torch.save`` work as for any module. Made by :func:`pack_linear`.

    Packed for "fp16x3", and where that is native, it also holds ``pairs``, the fp16 halves of the
    packed weight, which a call would otherwise make anew. They are derived: neither saved nor in
    the state_dict, but made again when a state_dict is loaded and when the module is moved or cast,
    and, after it was copied or unpickled, by the first call outside of traces. Another tensor in
    the place of ``weight`` is used without them. Anything else that writes to ``weight`` does not
    reach them, and goes unseen: pack again.

    An infinite input against packed weights with ``kernel_size > 1`` may give an infinity where
    the definition gives NaN (``inf - inf`` inside a window): the pack holds the means only.

    Attributes:
        in_features: K.
        out_features: N, before pooling.
        kernel_size: rows averaged into one; 1 where nothing is pooled.
        precision: the mode it was packed for, on whatever device it is.
    """

    weight: Tensor
    bias: Tensor | None
    pairs: Tensor | None
    # What was split and what came of it, the last time.
    _last_split: tuple[weakref.ref[Tensor], weakref.ref[Tensor]] | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        kernel_size: int = 1,
        precision: str | None = None,
    ) -> None:
        super().__init__()
        op = "pack_linear"
        check_fold(op, weight, bias)
        mode = _precision.requested(op, precision)
        if weight.dtype == torch.float32:
            _precision.effective(op, mode, weight.device)
        # N = 0 is legal for op A
        kernel_size = check_kernel_size(op, kernel_size, max(weight.shape[0], 1))
        self.out_features, self.in_features = weight.shape
        self.kernel_size = kernel_size
        self.precision = mode
        self.register_buffer("weight", _snapshot(weight, kernel_size))
        self.register_buffer("bias", None if bias is None else _snapshot(bias, kernel_size))
        pairs = split(self.weight, mode, None)
        self.register_buffer("pairs", pairs, persistent=False)
        self._last_split = None if pairs is None else references(self.weight, pairs)
        self.train(False)

    def _split_weight(self, memory: Tensor | None = None) -> Tensor | None:
        """Make the halves of the weight as it is, in ``memory`` if they fit in, or drop them."""
        weight = self.weight
        self.pairs = pairs = split(weight, self.precision, memory)
        self._last_split = None if pairs is None else references(weight, pairs)
        return pairs

    def halves(self, weight: Tensor) -> Tensor | None:
        """``pairs`` for a call in the mode "fp16x3", if they are of ``weight``, the own one.

        That is a matter of which objects they are. Somebody may have put another tensor in the
        place of the weight, for good or, as torch.func.functional_call does, for one call; who has
        replaced both, as torch.export and nn.DataParallel do, has replaced them by what
        corresponds.
        """
        pairs = self.pairs
        if pairs is None:
            return self._make_halves() if can_split(weight, self.precision) else None
        if self._last_split is None:
            return pairs
        source, made = self._last_split
        return pairs if (source() is weight) == (made() is pairs) else None

    def _make_halves(self) -> Tensor | None:
        """Those of the first call that wants them, by one thread alone."""
        with _making_halves:
            return self._split_weight() if self.pairs is None else self.pairs

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedLinear:
        """What moves and casts a module: not the halves, which are made anew from what came of the
        weight, unless it stayed what it was. Where that fails the next call makes them."""
        weight, pairs = self.weight, self.pairs
        self.pairs = None
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            if self.weight is weight:
                self.pairs = pairs
        if self.weight is not weight:
            self._split_weight()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: no halves, which another device or build may not share."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return state | {"_buffers": self._buffers | {"pairs": None}, "_last_split": None}

    def get_extra_state(self) -> dict[str, Any]:
        """What the buffers do not tell; goes into the state_dict."""
        return {
            "version": _STATE_VERSION,
            "in_features": self.in_features,
            "out_features": self.out_features,
            "kernel_size": self.kernel_size,
            "precision": self.precision,
        }

    def set_extra_state(self, state: Any) -> None:
        """Check that a state_dict is one of the same packing; RuntimeError where it is not."""
        wrong = self._unlike(state)
        if wrong is not None:
            raise RuntimeError(wrong)

    def _unlike(self, state: Any) -> str | None:
        """What an extra state says that this pack is not, or None."""
        given = state if isinstance(state, dict) else {}
        wrong = [
            f"{key} {given.get(key)!r} instead of {value!r}"
            for key, value in self.get_extra_state().items()
            if key not in given or given[key] != value
        ]
        return f"PackedLinear: the state_dict was packed with {', '.join(wrong)}" if wrong else None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Refuse another packing before anything is copied; nn.Module compares that at the end."""
        errors = [
            f"size mismatch for {prefix}{name}: {list(given.shape)} instead of {list(own.shape)}"
            for name, own in self.named_buffers()
            if isinstance(given := state_dict.get(prefix + name), Tensor)
            and given.shape != own.shape
        ]
        if prefix + "_extra_state" in state_dict:  # a whole pack, and not tensors for one
            has_bias = prefix + "bias" in state_dict
            wrong = self._unlike(state_dict[prefix + "_extra_state"])
            if wrong is not None:
                errors.append(wrong)
            elif has_bias != (self.bias is not None):
                how = "with" if has_bias else "without"
                errors.append(f"PackedLinear: the state_dict was packed {how} a bias")
        if errors:
            error_msgs: list[str] = args[-1]
            error_msgs += errors
        else:
            super()._load_from_state_dict(state_dict, prefix, *args)
            self._split_weight(self.pairs)

    def extra_repr(self) -> str:
        bias = "None" if self.bias is None else list(self.bias.shape)
        size = sum(tensor.numel() * tensor.element_size() for tensor in self.buffers())
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"weight={list(self.weight.shape)}, bias={bias}, kernel_size={self.kernel_size}, "
            f"precision={self.precision!r}, bytes={size}"
        )

    def forward(self, *args: Any) -> Tensor:
        raise TypeError(
            "PackedLinear holds operands and is not called; pass it where an op takes weight, "
            "as in cutlass_ops.linear_gelu_softmax(x, packed)"
        )


def _snapshot(tensor: Tensor, kernel_size: int) -> Tensor:
    """A fresh contiguous tensor without history: the row means, or a copy."""
    with torch.no_grad():
        tensor = tensor.detach()
        if kernel_size == 1:
            return tensor.clone(memory_format=torch.contiguous_format)
        folded: Tensor = OPS.fold_rows(tensor, kernel_size)
        return folded


def pack_linear(
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    kernel_size: int = 1,
    precision: str | None = None,
) -> PackedLinear:
    """Prepare a linear layer once, for inference; later writes to ``weight`` do not reach the pack.

    Args:
        weight: ``[N, K]``, float32 or float64, any strides; half and bfloat16 too under autocast,
            where they are packed as float32.
        bias: ``[N]`` or None.
        kernel_size: pool this many outputs into one, for linear_avgpool_gelu_scale_max;
            1 for linear_gelu_softmax.
        precision: the mode to pack for; None takes the default of the moment. A pack for "fp16x3"
            takes twice the memory where that is native, and falls back as calls do elsewhere.

    Returns:
        a :class:`PackedLinear` on the device of ``weight``.

    Raises:
        TypeError: dtype other than float32 or float64, kernel_size no int.
        ValueError: shapes that do not fit, mixed devices, ``kernel_size`` outside ``1..N``,
            an unknown precision.
        RuntimeError: a precision that is not native where the setting is strict.
    """
    if autocast_active(weight):
        options = {"kernel_size": kernel_size, "precision": precision}
        return without_autocast(PackedLinear, weight, bias, **options)
    return PackedLinear(weight, bias, kernel_size=kernel_size, precision=precision)


def check_pack_use(
    op: str,
    pack: PackedLinear,
    x: Tensor,
    bias: Tensor | None,
    kernel_size: int | None,
    precision: str | None,
) -> None:
    """The rules for a pack in the place of a weight; ``kernel_size`` None takes that of the pack.

    Raises ValueError for a bias, another kernel_size or another precision, RuntimeError where x
    would need a gradient.
    """
    if bias is not None:
        raise ValueError(f"{op}: bias must be None with a PackedLinear, which holds its own")
    if kernel_size is not None and kernel_size != pack.kernel_size:
        raise ValueError(
            f"{op}: weight must be a PackedLinear of kernel_size {kernel_size} here, "
            f"got one of kernel_size {pack.kernel_size}"
        )
    if precision is not None:
        _precision.check_mode(op, precision)
        if precision != pack.precision:
            raise ValueError(
                f"{op}: weight must be a PackedLinear of precision {precision!r} here, "
                f"got one of precision {pack.precision!r}"
            )
    if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
        raise RuntimeError(
            f"{op}: x requires grad, but a PackedLinear is for inference; "
            f"pass the weight itself, or call under torch.no_grad()"
        )
