"""The public ops: checks, autocast, precision, and the choice between op and autograd function.

Common to all: inputs are float32 (or float64, which runs in the reference arithmetic), on one
device, with any strides; outputs are fresh and contiguous. TypeError is raised for what is no
dense tensor of such a dtype, ValueError for shapes, devices or options that do not fit; messages
name the op, the argument and the value. Under autocast half and bfloat16 inputs are cast to
float32 first, the op runs in float32 and returns float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import autograd, reference, schemas
from . import precision as _precision
from .packing import PackedLinear, check_pack_use
from .validation import (
    autocast_active,
    check_approximate,
    check_columns,
    check_fold,
    check_kernel_size,
    check_linear,
    check_matrix,
    real_number,
    to_float32,
)

_LIBRARY = schemas.LIBRARY  # the ops exist once the schemas are defined
# Overloads, not packets: half a microsecond less a call.
_op_linear_gelu_softmax = torch.ops.cutlass_ops.linear_gelu_softmax.default
_op_linear_avgpool_gelu_scale_max = torch.ops.cutlass_ops.linear_avgpool_gelu_scale_max.default
_op_gelu_softmax = torch.ops.cutlass_ops.gelu_softmax.default
_op_gelu_scale_max = torch.ops.cutlass_ops.gelu_scale_max.default
_op_softmax = torch.ops.cutlass_ops.softmax.default
_op_fold_rows = torch.ops.cutlass_ops.fold_rows.default


def _needs_grad(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> bool:
    """Whether to go through an autograd function. Inside a functorch transform always: a tensor
    batched over a differentiated one does not tell that it requires grad. In forward mode too: the
    functions refuse a tangent with an error, the ops under them would drop it."""
    if not torch.is_grad_enabled():
        return forward_ad._current_level >= 0
    if x.requires_grad:
        return True
    if weight is not None and weight.requires_grad:
        return True
    if bias is not None and bias.requires_grad:
        return True
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _transform_in_trace() -> bool:
    """Whether torch.compile is tracing the inside of torch.func.grad, vmap or the like.

    Dynamo does not see that a tensor requires grad in there, so it would trace an autograd function
    without its backward, and the gradient would silently be zero. The plain PyTorch reference
    takes over, which differentiates by itself.
    """
    return torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def _matrix(x: Tensor) -> Tensor:
    """``[..., K] -> [M, K]``, for the autograd functions."""
    if x.dim() == 2:
        return x
    return x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)


def _mode(op: str, x: Tensor, precision: str | None) -> str:
    """The precision to run in; float64 has one arithmetic only."""
    mode = _precision.requested(op, precision)
    return _precision.effective(op, mode) if x.dtype == torch.float32 else "ieee"


def linear_gelu_softmax(
    x: Tensor,
    weight: Tensor | PackedLinear,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    precision: str | None = None,
) -> Tensor:
    """``softmax(gelu(F.linear(x, weight, bias), approximate=approximate), dim=-1)``, fused.

    Args:
        x: ``[..., K]``.
        weight: ``[N, K]``, or a :class:`PackedLinear` of kernel_size 1 (inference only).
        bias: ``[N]`` or None; None with a PackedLinear.
        approximate: ``"none"`` for the erf form of GELU, ``"tanh"`` for the tanh form.
        precision: ``"ieee"``, ``"fp16x3"``, or None for the default.

    Returns:
        ``[..., N]``. N = 0 gives an empty result; K = 0 makes the linear part equal the bias.

    Raises:
        TypeError, ValueError: see the module; also for a pack that does not fit.
        RuntimeError: a pack with an x that requires grad; a strict precision without kernel.
    """
    op = "linear_gelu_softmax"
    if autocast_active(x):
        with torch.autocast(x.device.type, enabled=False):
            return _linear_gelu_softmax(
                op, _cast(x), _cast_weight(weight), to_float32(bias), approximate, precision
            )
    return _linear_gelu_softmax(op, x, weight, bias, approximate, precision)


def _linear_gelu_softmax(
    op: str,
    x: Tensor,
    weight: Tensor | PackedLinear,
    bias: Tensor | None,
    approximate: str,
    precision: str | None,
) -> Tensor:
    check_approximate(op, approximate)
    if isinstance(weight, PackedLinear):
        check_pack_use(op, weight, x, bias, 1, precision)
        bias, precision, weight = weight.bias, weight.precision, weight.weight
    check_linear(op, x, weight, bias)
    mode = _mode(op, x, precision)
    if not _needs_grad(x, weight, bias):
        out: Tensor = _op_linear_gelu_softmax(x, weight, bias, approximate, mode)
        return out
    if _transform_in_trace():
        return reference.linear_gelu_softmax(x, weight, bias, approximate=approximate)
    z = autograd.linear(_matrix(x), weight, bias)
    y = autograd.gelu_softmax(z, None, approximate)
    return y if x.dim() == 2 else y.view(*x.shape[:-1], weight.shape[0])


def linear_avgpool_gelu_scale_max(
    x: Tensor,
    weight: Tensor | PackedLinear,
    bias: Tensor | None = None,
    *,
    kernel_size: int | None = None,
    scale: float = 1.0,
    approximate: str = "none",
    precision: str | None = None,
) -> Tensor:
    """``max(scale * gelu(avg_pool1d(F.linear(x, weight, bias), kernel_size)), dim=-1)``, fused.

    Args:
        x: ``[..., K]``.
        weight: ``[N, K]``, N >= 1, or a :class:`PackedLinear` (inference only).
        bias: ``[N]`` or None; None with a PackedLinear.
        kernel_size: width and stride of the windows, ``1 <= kernel_size <= N``; the last
            ``N % kernel_size`` columns play no part, not even their NaN. Required, unless
            ``weight`` is a PackedLinear, which knows its own.
        scale: any real number; a negative one gives the maximum of the scaled values all the same.
        approximate: ``"none"`` for the erf form of GELU, ``"tanh"`` for the tanh form.
        precision: ``"ieee"``, ``"fp16x3"``, or None for the default.

    Returns:
        ``[...]``. NaN wins the maximum. The gradient goes to the first index of the maximum.

    Raises:
        TypeError, ValueError: see the module; also for a pack that does not fit.
        RuntimeError: a pack with an x that requires grad; a strict precision without kernel.
    """
    op = "linear_avgpool_gelu_scale_max"
    if autocast_active(x):
        with torch.autocast(x.device.type, enabled=False):
            return _linear_avgpool_gelu_scale_max(
                op,
                _cast(x),
                _cast_weight(weight),
                to_float32(bias),
                kernel_size,
                scale,
                approximate,
                precision,
            )
    return _linear_avgpool_gelu_scale_max(
        op, x, weight, bias, kernel_size, scale, approximate, precision
    )


def _linear_avgpool_gelu_scale_max(
    op: str,
    x: Tensor,
    weight: Tensor | PackedLinear,
    bias: Tensor | None,
    kernel_size: int | None,
    scale: float,
    approximate: str,
    precision: str | None,
) -> Tensor:
    check_approximate(op, approximate)
    scale = real_number(op, "scale", scale)
    folded = 1
    if isinstance(weight, PackedLinear):
        check_pack_use(op, weight, x, bias, kernel_size, precision)
        bias, precision, folded = weight.bias, weight.precision, weight.kernel_size
        weight = weight.weight
        kernel_size = 1
    check_linear(op, x, weight, bias)
    check_columns(op, weight.shape[0])
    kernel_size = check_kernel_size(op, kernel_size, weight.shape[0])
    mode = _mode(op, x, precision)
    if not _needs_grad(x, weight, bias):
        out: Tensor = _op_linear_avgpool_gelu_scale_max(
            x, weight, bias, kernel_size, scale, approximate, mode, folded
        )
        return out
    if _transform_in_trace():
        return reference.linear_avgpool_gelu_scale_max(
            x, weight, bias, kernel_size=kernel_size, scale=scale, approximate=approximate
        )
    y = autograd.linear_avgpool_gelu_scale_max(
        _matrix(x), weight, bias, kernel_size, scale, approximate, mode
    )
    return y if x.dim() == 2 else y.view(x.shape[:-1])


def gelu_softmax(z: Tensor, bias: Tensor | None = None, *, approximate: str = "none") -> Tensor:
    """``softmax(gelu(z + bias, approximate=approximate), dim=-1)`` in one pass.

    Args:
        z: ``[..., N]``.
        bias: ``[N]`` or None.
        approximate: ``"none"`` or ``"tanh"``.

    Returns:
        ``[..., N]``.
    """
    op = "gelu_softmax"
    if autocast_active(z):
        with torch.autocast(z.device.type, enabled=False):
            return _gelu_softmax(op, _cast(z), to_float32(bias), approximate)
    return _gelu_softmax(op, z, bias, approximate)


def _gelu_softmax(op: str, z: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    check_approximate(op, approximate)
    check_matrix(op, z, bias)
    if not _needs_grad(z, bias):
        out: Tensor = _op_gelu_softmax(z, bias, approximate)
        return out
    if _transform_in_trace():
        return reference.gelu_softmax(z, bias, approximate=approximate)
    y = autograd.gelu_softmax(_matrix(z), bias, approximate)
    return y if z.dim() == 2 else y.view(z.shape)


def gelu_scale_max(
    z: Tensor, bias: Tensor | None = None, *, scale: float = 1.0, approximate: str = "none"
) -> Tensor:
    """``max(scale * gelu(z + bias, approximate=approximate), dim=-1).values`` in one pass.

    Args:
        z: ``[..., N]``, N >= 1.
        bias: ``[N]`` or None.
        scale: any real number.
        approximate: ``"none"`` or ``"tanh"``.

    Returns:
        ``[...]``. NaN wins the maximum. The gradient goes to the first index of the maximum.
    """
    op = "gelu_scale_max"
    if autocast_active(z):
        with torch.autocast(z.device.type, enabled=False):
            return _gelu_scale_max(op, _cast(z), to_float32(bias), scale, approximate)
    return _gelu_scale_max(op, z, bias, scale, approximate)


def _gelu_scale_max(
    op: str, z: Tensor, bias: Tensor | None, scale: float, approximate: str
) -> Tensor:
    check_approximate(op, approximate)
    scale = real_number(op, "scale", scale)
    check_matrix(op, z, bias)
    check_columns(op, z.shape[-1])
    if not _needs_grad(z, bias):
        out: Tensor = _op_gelu_scale_max(z, bias, scale, approximate)
        return out
    if _transform_in_trace():
        return reference.gelu_scale_max(z, bias, scale=scale, approximate=approximate)
    y = autograd.gelu_scale_max(_matrix(z), bias, scale, approximate)
    return y if z.dim() == 2 else y.view(z.shape[:-1])


def softmax(z: Tensor) -> Tensor:
    """``torch.softmax(z, dim=-1)`` of z ``[..., N]``, for rows of any length."""
    op = "softmax"
    if autocast_active(z):
        with torch.autocast(z.device.type, enabled=False):
            return _softmax(op, _cast(z))
    return _softmax(op, z)


def _softmax(op: str, z: Tensor) -> Tensor:
    check_matrix(op, z, None)
    if not _needs_grad(z):
        out: Tensor = _op_softmax(z)
        return out
    if _transform_in_trace():
        return reference.softmax(z)
    y = autograd.softmax(_matrix(z))
    return y if z.dim() == 2 else y.view(z.shape)


def fold_linear(
    weight: Tensor, bias: Tensor | None, kernel_size: int
) -> tuple[Tensor, Tensor | None]:
    """The linear layer that computes the pooled outputs of ``(weight, bias)``.

    ``avg_pool1d(F.linear(x, weight, bias), k)`` equals ``F.linear(x, *fold_linear(weight, bias,
    k))`` for finite x, with k times fewer multiplications. Differentiable.

    Args:
        weight: ``[N, K]``.
        bias: ``[N]`` or None.
        kernel_size: rows averaged into one, ``1 <= kernel_size <= N``; the last
            ``N % kernel_size`` rows play no part.

    Returns:
        weight ``[N // kernel_size, K]`` and bias ``[N // kernel_size]`` or None, both fresh.
    """
    op = "fold_linear"
    if autocast_active(weight):
        with torch.autocast(weight.device.type, enabled=False):
            return _fold_linear(op, _cast(weight), to_float32(bias), kernel_size)
    return _fold_linear(op, weight, bias, kernel_size)


def _fold_linear(
    op: str, weight: Tensor, bias: Tensor | None, kernel_size: int
) -> tuple[Tensor, Tensor | None]:
    check_fold(op, weight, bias)
    check_kernel_size(op, kernel_size, weight.shape[0])
    return _fold(weight, kernel_size), None if bias is None else _fold(bias, kernel_size)


def _fold(rows: Tensor, kernel_size: int) -> Tensor:
    if _needs_grad(rows):
        if _transform_in_trace():
            return reference.fold_rows(rows, kernel_size)
        return autograd.fold_rows(rows, kernel_size)
    out: Tensor = _op_fold_rows(rows, kernel_size)
    return out


def _cast(tensor: Tensor) -> Tensor:
    cast = to_float32(tensor)
    return tensor if cast is None else cast


def _cast_weight(weight: Tensor | PackedLinear) -> Tensor | PackedLinear:
    return weight if isinstance(weight, PackedLinear) else _cast(weight)
