"""The parts of the ops, for those who keep their own GEMM.

What :mod:`cutlass_ops.functional` says of all ops holds for these: float32 or float64 on one
device, any strides in, fresh and contiguous tensors of the input's dtype out, float32 under
autocast; TypeError for what is no dense tensor of such a dtype, ValueError for the rest.
"""

from __future__ import annotations

from torch import Tensor

from . import autograd, calls, reference
from .routing import autocast_active, matrix, needs_grad, trace_refuses_functions, without_autocast
from .validation import (
    check_approximate,
    check_columns,
    check_fold,
    check_kernel_size,
    check_matrix,
    real_number,
)


def gelu_softmax(z: Tensor, bias: Tensor | None = None, *, approximate: str = "none") -> Tensor:
    """``softmax(gelu(z + bias, approximate=approximate), dim=-1)`` in one pass.

    Args:
        z: ``[..., N]``, float32 or float64, at least one dimension.
        bias: ``[N]`` of the same dtype, or None.
        approximate: ``"none"`` for the erf form of GELU, ``"tanh"`` for the tanh form.

    Returns:
        ``[..., N]`` in the dtype of z. N = 0 gives an empty result; NaN takes its row, and so does
        an infinity of either sign, GELU(-inf) being NaN.

    Raises:
        TypeError: z or bias no dense tensor, another dtype, mixed dtypes.
        ValueError: shapes that do not fit, mixed devices, an unknown ``approximate``.
    """
    op = "gelu_softmax"
    if autocast_active(z):
        return without_autocast(gelu_softmax, z, bias, approximate=approximate)
    check_approximate(op, approximate)
    check_matrix(op, z, bias)
    if not needs_grad(z, bias):
        return calls.gelu_softmax(z, bias, approximate)
    if trace_refuses_functions():
        return reference.gelu_softmax(z, bias, approximate=approximate)
    y = autograd.gelu_softmax(matrix(z), bias, approximate)
    return y if z.dim() == 2 else y.view(z.shape)


def gelu_scale_max(
    z: Tensor, bias: Tensor | None = None, *, scale: float = 1.0, approximate: str = "none"
) -> Tensor:
    """``max(scale * gelu(z + bias, approximate=approximate), dim=-1).values`` in one pass.

    Args:
        z: ``[..., N]`` with N >= 1, float32 or float64.
        bias: ``[N]`` of the same dtype, or None.
        scale: any real number; a negative one gives the maximum of the scaled values all the same.
        approximate: ``"none"`` for the erf form of GELU, ``"tanh"`` for the tanh form.

    Returns:
        ``[...]`` in the dtype of z. NaN wins the maximum. The gradient goes to the first index of
        the maximum.

    Raises:
        TypeError: z or bias no dense tensor, another dtype, mixed dtypes, scale no real number.
        ValueError: shapes that do not fit, N = 0, mixed devices, an unknown ``approximate``.
    """
    op = "gelu_scale_max"
    if autocast_active(z):
        return without_autocast(gelu_scale_max, z, bias, scale=scale, approximate=approximate)
    check_approximate(op, approximate)
    scale = real_number(op, "scale", scale)
    check_matrix(op, z, bias)
    check_columns(op, z.shape[-1])
    if not needs_grad(z, bias):
        return calls.gelu_scale_max(z, bias, scale, approximate)
    if trace_refuses_functions():
        return reference.gelu_scale_max(z, bias, scale=scale, approximate=approximate)
    y = autograd.gelu_scale_max(matrix(z), bias, scale, approximate)
    return y if z.dim() == 2 else y.view(z.shape[:-1])


def softmax(z: Tensor) -> Tensor:
    """``torch.softmax(z, dim=-1)``, for rows of any length.

    Args:
        z: ``[..., N]``, float32 or float64, at least one dimension.

    Returns:
        ``[..., N]`` in the dtype of z. N = 0 gives an empty result; NaN or +inf takes its row.

    Raises:
        TypeError: z no dense tensor, another dtype.
        ValueError: z a scalar.
    """
    if autocast_active(z):
        return without_autocast(softmax, z)
    check_matrix("softmax", z, None)
    if not needs_grad(z):
        return calls.softmax(z)
    if trace_refuses_functions():
        return reference.softmax(z)
    y = autograd.softmax(matrix(z))
    return y if z.dim() == 2 else y.view(z.shape)


def fold_linear(
    weight: Tensor, bias: Tensor | None, kernel_size: int
) -> tuple[Tensor, Tensor | None]:
    """The linear layer that computes the pooled outputs of ``(weight, bias)``.

    ``avg_pool1d(F.linear(x, weight, bias), k)`` equals ``F.linear(x, *fold_linear(weight, bias,
    k))`` for finite x, with k times fewer multiplications. Differentiable.

    Args:
        weight: ``[N, K]``, float32 or float64.
        bias: ``[N]`` of the same dtype, or None.
        kernel_size: rows averaged into one, ``1 <= kernel_size <= N``; the last
            ``N % kernel_size`` rows play no part, not even their NaN.

    Returns:
        weight ``[N // kernel_size, K]`` and bias ``[N // kernel_size]`` or None, both fresh and in
        the dtype of ``weight``.

    Raises:
        TypeError: weight or bias no dense tensor, another or mixed dtypes, kernel_size no int.
        ValueError: shapes that do not fit, mixed devices, ``kernel_size`` outside ``1..N``.
    """
    op = "fold_linear"
    if autocast_active(weight):
        return without_autocast(fold_linear, weight, bias, kernel_size)
    check_fold(op, weight, bias)
    kernel_size = check_kernel_size(op, kernel_size, weight.shape[0])
    return _fold(weight, kernel_size), None if bias is None else _fold(bias, kernel_size)


def _fold(rows: Tensor, kernel_size: int) -> Tensor:
    if needs_grad(rows):
        if trace_refuses_functions():
            return reference.fold_rows(rows, kernel_size)
        return autograd.fold_rows(rows, kernel_size)
    return calls.fold_rows(rows, kernel_size)
