"""Modules: the two ops as drop-in layers, and what packing turns them into.

``LinearGELUSoftmax`` and ``LinearAvgPoolGELUScaleMax`` are ``torch.nn.Linear`` with another
forward: the same parameters, state_dict and order of random numbers. They hold no derived weights,
so nothing can go stale; ``pack()`` gives a separate module for inference that does hold them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from . import functional
from . import precision as _precision
from .packing import PackedLinear, pack_linear
from .validation import check_approximate, check_kernel_size, real_number


def _adopt(module: nn.Linear, linear: nn.Linear) -> None:
    """Make ``module``, allocated but not constructed, share the Parameters of ``linear``.

    Constructing it instead would draw random numbers for weights that are thrown away.
    """
    name = type(module).__name__
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"{name}.from_linear: needs a torch.nn.Linear, got {type(linear).__name__}")
    if not isinstance(linear.weight, nn.Parameter):
        raise TypeError(
            f"{name}.from_linear: the weight of the linear must be a Parameter, got "
            f"{type(linear.weight).__name__} (a parametrised or lazily computed weight)"
        )
    if linear.bias is not None and not isinstance(linear.bias, nn.Parameter):
        raise TypeError(
            f"{name}.from_linear: the bias of the linear must be a Parameter or None, got "
            f"{type(linear.bias).__name__}"
        )
    if is_lazy(linear.weight) or is_lazy(linear.bias):
        raise ValueError(
            f"{name}.from_linear: the linear must be initialised, got a {type(linear).__name__} "
            f"that has not seen an input yet; call it once first"
        )
    nn.Module.__init__(module)
    module.in_features = linear.in_features
    module.out_features = linear.out_features
    module.register_parameter("weight", linear.weight)
    module.register_parameter("bias", linear.bias)
    module.train(linear.training)


def _check_packed(owner: str, packed: object) -> None:
    if not isinstance(packed, PackedLinear):
        raise TypeError(f"{owner}: packed must be a PackedLinear, got {type(packed).__name__}")


def _options(owner: str, approximate: str, precision: str | None) -> None:
    check_approximate(owner, approximate)
    if precision is not None:
        _precision.check_mode(owner, precision)


class LinearGELUSoftmax(nn.Linear):
    """``softmax(gelu(linear(x)), dim=-1)``: ``[..., in_features] -> [..., out_features]``.

    Args:
        in_features, out_features, bias, device, dtype: as for ``torch.nn.Linear``.
        approximate: ``"none"`` or ``"tanh"``; ValueError for anything else.
        precision: as for :func:`cutlass_ops.linear_gelu_softmax`; None takes the default at
            every call.
        recompute: as for :func:`cutlass_ops.linear_gelu_softmax`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        approximate: str = "none",
        precision: str | None = None,
        recompute: bool = False,
    ) -> None:
        _options(type(self).__name__, approximate, precision)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.approximate = approximate
        self.precision = precision
        self.recompute = recompute

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        approximate: str = "none",
        precision: str | None = None,
        recompute: bool = False,
    ) -> LinearGELUSoftmax:
        """The module on the very Parameters of ``linear``; draws no random numbers."""
        _options(cls.__name__, approximate, precision)
        module = cls.__new__(cls)
        _adopt(module, linear)
        module.approximate = approximate
        module.precision = precision
        module.recompute = recompute
        return module

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear_gelu_softmax(
            input,
            self.weight,
            self.bias,
            approximate=self.approximate,
            precision=self.precision,
            recompute=self.recompute,
        )

    def pack(self) -> PackedLinearGELUSoftmax:
        """A module for inference on a snapshot of the weights."""
        packed = pack_linear(self.weight, self.bias, precision=self.precision)
        return PackedLinearGELUSoftmax(packed, approximate=self.approximate)

    def extra_repr(self) -> str:
        text = f"{super().extra_repr()}, approximate={self.approximate!r}"
        text = text if self.precision is None else f"{text}, precision={self.precision!r}"
        return f"{text}, recompute=True" if self.recompute else text


class LinearAvgPoolGELUScaleMax(nn.Linear):
    """``max(scale * gelu(avg_pool1d(linear(x), kernel_size)), dim=-1)``:
    ``[..., in_features] -> [...]``.

    Args:
        in_features, out_features, bias, device, dtype: as for ``torch.nn.Linear``.
        kernel_size: ``1 <= kernel_size <= out_features``; ValueError otherwise.
        scale: any real number.
        approximate: ``"none"`` or ``"tanh"``; ValueError for anything else.
        precision: as for :func:`cutlass_ops.linear_avgpool_gelu_scale_max`; None takes the
            default at every call.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int,
        scale: float = 1.0,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        approximate: str = "none",
        precision: str | None = None,
    ) -> None:
        owner = type(self).__name__
        _options(owner, approximate, precision)
        kernel_size = check_kernel_size(owner, kernel_size, out_features)
        scale = real_number(owner, "scale", scale)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.kernel_size = kernel_size
        self.scale = scale
        self.approximate = approximate
        self.precision = precision

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        kernel_size: int,
        scale: float = 1.0,
        *,
        approximate: str = "none",
        precision: str | None = None,
    ) -> LinearAvgPoolGELUScaleMax:
        """The module on the very Parameters of ``linear``; draws no random numbers."""
        _options(cls.__name__, approximate, precision)
        module = cls.__new__(cls)
        _adopt(module, linear)
        module.kernel_size = check_kernel_size(cls.__name__, kernel_size, linear.out_features)
        module.scale = real_number(cls.__name__, "scale", scale)
        module.approximate = approximate
        module.precision = precision
        return module

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear_avgpool_gelu_scale_max(
            input,
            self.weight,
            self.bias,
            kernel_size=self.kernel_size,
            scale=self.scale,
            approximate=self.approximate,
            precision=self.precision,
        )

    def pack(self) -> PackedLinearAvgPoolGELUScaleMax:
        """A module for inference on a snapshot of the weights, folded once."""
        packed = pack_linear(
            self.weight, self.bias, kernel_size=self.kernel_size, precision=self.precision
        )
        return PackedLinearAvgPoolGELUScaleMax(
            packed, scale=self.scale, approximate=self.approximate
        )

    def extra_repr(self) -> str:
        text = (
            f"{super().extra_repr()}, kernel_size={self.kernel_size}, scale={self.scale}, "
            f"approximate={self.approximate!r}"
        )
        return text if self.precision is None else f"{text}, precision={self.precision!r}"


class PackedLinearGELUSoftmax(nn.Module):
    """:class:`LinearGELUSoftmax` on a :class:`cutlass_ops.PackedLinear`, for inference only."""

    def __init__(self, packed: PackedLinear, *, approximate: str = "none") -> None:
        super().__init__()
        owner = type(self).__name__
        check_approximate(owner, approximate)
        _check_packed(owner, packed)
        if packed.kernel_size != 1:
            raise ValueError(
                f"{owner}: packed must have kernel_size 1, got kernel_size {packed.kernel_size}"
            )
        self.packed = packed
        self.approximate = approximate
        self.train(False)

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear_gelu_softmax(input, self.packed, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class PackedLinearAvgPoolGELUScaleMax(nn.Module):
    """:class:`LinearAvgPoolGELUScaleMax` on a :class:`cutlass_ops.PackedLinear`, for inference."""

    def __init__(
        self, packed: PackedLinear, *, scale: float = 1.0, approximate: str = "none"
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        check_approximate(owner, approximate)
        _check_packed(owner, packed)
        self.packed = packed
        self.scale = real_number(owner, "scale", scale)
        self.approximate = approximate
        self.train(False)

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear_avgpool_gelu_scale_max(
            input, self.packed, scale=self.scale, approximate=self.approximate
        )

    def extra_repr(self) -> str:
        return f"scale={self.scale}, approximate={self.approximate!r}"


__all__ = [
    "LinearAvgPoolGELUScaleMax",
    "LinearGELUSoftmax",
    "PackedLinearAvgPoolGELUScaleMax",
    "PackedLinearGELUSoftmax",
]
