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

from . import autograd_heads, calls, dispatch, reference
from . import precision as _precision
from .packing import PackedLinear, check_pack_use
from .routing import autocast_active, matrix, needs_grad, trace_refuses_functions, without_autocast
from .validation import (
    check_approximate,
    check_columns,
    check_kernel_size,
    check_linear,
    real_number,
)


def _mode(op: str, x: Tensor, precision: str | None) -> str:
    """The precision to run in; float64 has one arithmetic only."""
    mode = _precision.requested(op, precision)
    if mode == "ieee" or x.dtype != torch.float32:
        return "ieee"
    return _precision.effective(op, mode, x.device)


def linear_gelu_softmax(
    x: Tensor,
    weight: Tensor | PackedLinear,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    precision: str | None = None,
    recompute: bool = False,
) -> Tensor:
    """``softmax(gelu(F.linear(x, weight, bias), approximate=approximate), dim=-1)``, fused.

    Args:
        x: ``[..., K]``.
        weight: ``[N, K]``, or a :class:`PackedLinear` of kernel_size 1 (inference only).
        bias: ``[N]`` or None; None with a PackedLinear.
        approximate: ``"none"`` for the erf form of GELU, ``"tanh"`` for the tanh form.
        precision: ``"ieee"``, ``"fp16x3"``, or None for the default.
        recompute: keep the inputs alone for backward, which computes the head once more, and not
            two matrices ``[M, N]``. The gradients are the same; without grad it means nothing. No
            input may be written to in between, whatever needs a gradient.

    Returns:
        ``[..., N]``. N = 0 gives an empty result; K = 0 makes the linear part equal the bias.

    Raises:
        TypeError, ValueError: see the module; also for a pack that does not fit.
        RuntimeError: a pack with an x that requires grad; a strict precision without kernel.
    """
    op = "linear_gelu_softmax"
    pack = pairs = None
    if isinstance(weight, PackedLinear):
        pack = weight
        check_pack_use(op, pack, x, bias, 1, precision)
        bias, precision, weight = pack.bias, pack.precision, pack.weight
        if precision != "ieee":  # to ask a module for a buffer costs time
            pairs = pack.halves(weight)
    check_approximate(op, approximate)
    straight = calls.straight(x, weight, bias)
    if not straight:
        if autocast_active(x):
            options = {"approximate": approximate, "precision": precision, "recompute": recompute}
            if pairs is not None:  # the weight is float32 as it is
                return without_autocast(linear_gelu_softmax, x, pack, **options)
            return without_autocast(linear_gelu_softmax, x, weight, bias, **options)
        check_linear(op, x, weight, bias)
    mode = _mode(op, x, precision)
    if not needs_grad(x, weight, bias):
        if straight:
            fp16x3 = mode == "fp16x3"
            return dispatch.run_softmax_head(op, x, weight, bias, approximate, fp16x3, pairs)[0]
        return calls.linear_gelu_softmax(x, weight, bias, approximate, mode, pairs)
    if not straight and trace_refuses_functions():
        return reference.linear_gelu_softmax(x, weight, bias, approximate=approximate)
    operands = (matrix(x), weight, bias, approximate, mode)
    if recompute:
        y = autograd_heads.recomputed_linear_gelu_softmax(*operands)
    elif straight:
        y, _ = autograd_heads.straight_linear_gelu_softmax(*operands)
    else:
        y, _ = autograd_heads.linear_gelu_softmax(*operands)
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
        ``[...]``. NaN wins the maximum. The gradient goes to the first index of the maximum, as
        forward found it. That of a row with an infinite x is NaN, and where kernels run and
        kernel_size > 1 this NaN may reach the weight and bias through another window than the one
        that made the maximum NaN: they look for it with pooled weights, where ``inf - inf`` inside
        a window does not show, and where rounding may decide between windows that tie to the last
        bit.

    Raises:
        TypeError, ValueError: see the module; also for a pack that does not fit.
        RuntimeError: a pack with an x that requires grad; a strict precision without kernel.
    """
    op = "linear_avgpool_gelu_scale_max"
    check_approximate(op, approximate)
    scale = real_number(op, "scale", scale)
    folded, pairs = 1, None
    if isinstance(weight, PackedLinear):
        check_pack_use(op, weight, x, bias, kernel_size, precision)
        bias, precision, folded = weight.bias, weight.precision, weight.kernel_size
        pack, weight = weight, weight.weight
        if precision != "ieee":
            pairs = pack.halves(weight)
        kernel_size = 1
    return _pooled_head(x, weight, bias, pairs, kernel_size, folded, scale, approximate, precision)


def _pooled_head(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: Tensor | None,
    kernel_size: int | None,
    folded: int,
    scale: float,
    approximate: str,
    precision: str | None,
) -> Tensor:
    """The op on plain tensors; the weight may be ``folded`` rows into one, already, and ``pairs``
    its halves, of a pack that has them."""
    op = "linear_avgpool_gelu_scale_max"
    straight = calls.straight(x, weight, bias)
    if not straight:
        if autocast_active(x):
            options = (pairs, kernel_size, folded, scale, approximate, precision)
            return without_autocast(_pooled_head, x, weight, bias, *options)
        check_linear(op, x, weight, bias)
    n = weight.shape[0]
    check_columns(op, n)
    kernel_size = check_kernel_size(op, kernel_size, n)
    mode = _mode(op, x, precision)
    grad = needs_grad(x, weight, bias)
    if straight:
        width = int(kernel_size)  # a symbolic one cannot be looked up among the plans
        if not grad:
            fp16x3 = mode == "fp16x3"
            return dispatch.run_pooled_head(
                op, x, weight, bias, width, scale, approximate, folded, fp16x3, pairs
            )
        y = autograd_heads.straight_linear_avgpool_gelu_scale_max(
            matrix(x), weight, bias, (width, scale, approximate, mode)
        )
    elif not grad:
        return calls.linear_avgpool_gelu_scale_max(
            x, weight, bias, kernel_size, scale, approximate, mode, folded, pairs
        )
    elif trace_refuses_functions():
        return reference.linear_avgpool_gelu_scale_max(
            x, weight, bias, kernel_size=kernel_size, scale=scale, approximate=approximate
        )
    else:
        y, *_ = autograd_heads.linear_avgpool_gelu_scale_max(
            matrix(x), weight, bias, kernel_size, scale, approximate, mode
        )
    return y if x.dim() == 2 else y.view(x.shape[:-1])
