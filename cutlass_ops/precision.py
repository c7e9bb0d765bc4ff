"""The float32 arithmetic of the linear part: a default, a context manager, a resolution rule.

``"ieee"`` multiplies and adds in float32 (never TF32, whatever PyTorch's flags say). ``"fp16x3"``
splits float32 operands into two fp16 halves each, for the tensor cores. It is native on CUDA
devices of compute capability 9.0, if the binary was built for ``90a``; elsewhere it falls back to
``"ieee"`` with one warning, or raises where ``strict`` was asked for.

The state is a module global, shared by all threads: a ContextVar would break the graph under
``torch.compile(fullgraph=True)``, whereas globals are traced and guarded.
"""

from __future__ import annotations

from types import TracebackType

import torch

from . import _library
from .warn import warn_once

MODES = ("ieee", "fp16x3")

_mode: str = "ieee"
_strict: bool = False


def check_mode(op: str, mode: str) -> None:
    """Raise ValueError, naming ``op``, unless ``mode`` is a known precision mode."""
    if mode not in MODES:
        raise ValueError(f"{op}: precision must be one of {MODES}, got {mode!r}")


def set_float32_precision(mode: str, strict: bool = False) -> None:
    """Set the mode that ``precision=None`` means, ``"ieee"`` at first.

    ``"fp16x3"`` scales each row of x and of the weight by a power of two, splits its entries into
    two fp16 halves and adds three of the four products of halves. Its error is that of float32
    norm-wise per row: relative to the norms of the two rows that are multiplied, not to every term
    of their product. An entry that dwarfs the rest of its row by 10^7 and meets a zero weight
    contributes nothing, and costs the others their low bits; use ``"ieee"`` for such data. Rows
    with infinities are computed as in ``"ieee"``, and so are problems for which its kernels are
    estimated faster, such as few rows.

    Args:
        mode: ``"ieee"`` or ``"fp16x3"``; anything else raises ValueError.
        strict: from now on a call whose mode is not native raises RuntimeError, where otherwise
            it falls back to ``"ieee"`` with one warning. Holds for modes passed by argument too.
    """
    global _mode, _strict
    check_mode("set_float32_precision", mode)
    _mode = mode
    _strict = bool(strict)


def get_float32_precision() -> str:
    """The mode that ``precision=None`` means now."""
    return _mode


class float32_precision:  # noqa: N801, a context manager is called like a function
    """Set the default precision inside a ``with`` block and restore the former one after it.

    Takes what :func:`set_float32_precision` takes. May be entered again, also while it is active.
    """

    def __init__(self, mode: str, strict: bool = False) -> None:
        check_mode("float32_precision", mode)
        self.mode = mode
        self.strict = bool(strict)
        self._former: list[tuple[str, bool]] = []

    def __enter__(self) -> float32_precision:
        self._former.append((_mode, _strict))
        set_float32_precision(self.mode, self.strict)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        set_float32_precision(*self._former.pop())


def requested(op: str, precision: str | None) -> str:
    """The mode a call asks for: its argument, checked, or the default."""
    if precision is None:
        return _mode
    check_mode(op, precision)
    return precision


def reason_not_native(mode: str, device: torch.device) -> str | None:
    """Why a known ``mode`` is not native on ``device``, or None where it is. ``"ieee"`` is native
    everywhere: it is the arithmetic of the plain PyTorch reference, too."""
    return None if mode == "ieee" else _library.fp16x3_reason(device)


def check_native(op: str, mode: str, device: torch.device) -> None:
    """What the registered ops demand of their ``precision``: a mode that runs as it is called.

    Raises ValueError for an unknown mode, RuntimeError where it is not native on ``device``.
    """
    if mode == "ieee":
        return
    check_mode(op, mode)
    reason = reason_not_native(mode, device)
    if reason is not None:
        raise RuntimeError(f"{op}: precision {mode!r} has no native kernel here: {reason}")


def effective(op: str, mode: str, device: torch.device) -> str:
    """The mode a float32 call on ``device`` that asks for ``mode`` runs in.

    Raises RuntimeError where that is another one and the precision was set to be strict.
    """
    if mode == "ieee":
        return mode
    reason = _constant_reason(mode, device)
    if reason is None:
        return mode
    if _strict:
        raise RuntimeError(
            f"{op}: precision {mode!r} has no native kernel here: {reason}; "
            f"set_float32_precision(..., strict=True) forbids the fallback to 'ieee'"
        )
    _tell_fallback(mode, reason)
    return "ieee"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_reason(mode: str, device: torch.device) -> str | None:
    """:func:`reason_not_native`, which torch.compile asks while it traces: a device does not
    change."""
    return reason_not_native(mode, device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _tell_fallback(mode: str, reason: str) -> None:
    """One warning per mode, reason and process; under torch.compile this runs while tracing."""
    warn_once(
        f"precision {mode!r} has no native kernel here: {reason}; "
        f"running in 'ieee' (float32 multiply-add) instead"
    )
