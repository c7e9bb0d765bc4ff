"""The autograd functions around the registered ops.

They stand outside the ops, in Python: that costs nothing where no gradient is needed. Each saves
its inputs and outputs only, and its backward is made of operations that differentiate again, at
least where a graph of it is wanted, so double backward is right; the linear part of op A is an
output of its function for that reason. A precision is that of the linear part, where backward
computes it anew, too. Nothing here scatters with atomics, so gradients are bit-identical from run
to run. Backward runs with autocast off; where it multiplies matrices it follows PyTorch's own TF32
flag, which the forward never does.

All functions take two-dimensional x or z; :mod:`cutlass_ops.functional` folds leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from . import calls
from .gradients import (
    entry,
    gelu_softmax_gradient,
    linear_gradients,
    max_gradient,
    no_autocast,
    spread_rows,
)

Gradients = tuple[Tensor | None, ...]


def _save_linear(ctx: Any, x: Tensor, weight: Tensor, *others: Tensor) -> None:
    """Saves x for the gradient of the weight, and the weight for that of x. What is not needed may
    be freed, written to, or be an inference tensor."""
    need_x, need_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if need_weight else None, weight if need_x else None, *others)


def _row_gradient(
    g: Tensor, z: Tensor, bias: Tensor | None, y: Tensor, approximate: str, need_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """That of y = softmax(gelu(z + bias), -1), and the sums of its columns where they are needed:
    one op, or, where a graph of it is wanted, operations that differentiate."""
    if not torch.is_grad_enabled():
        dz, dbias = calls.gelu_softmax_backward(g, z, bias, y, approximate, need_bias)
        return dz, dbias if need_bias else None
    dz = gelu_softmax_gradient(g, z if bias is None else z + bias, y, approximate)
    return dz, dz.sum(0) if need_bias else None


class Linear(Function):
    """z = x @ weight.T + bias: x ``[M, K]``, weight ``[N, K]``, bias ``[N]`` or None."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
        return calls.linear(x, weight, bias, precision)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, _ = inputs
        _save_linear(ctx, x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (g,) = grads
        x, weight = ctx.saved_tensors
        with no_autocast(g):
            return *linear_gradients(g, x, weight, ctx.needs_input_grad), None


class GeluSoftmax(Function):
    """y = softmax(gelu(z + bias), -1): z ``[M, N]``, bias ``[N]`` or None."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
        return calls.gelu_softmax(z, bias, approximate)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, bias, approximate = inputs
        ctx.save_for_backward(z, bias, output)
        ctx.approximate = approximate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (g,) = grads
        z, bias, y = ctx.saved_tensors
        need_z, need_bias, _ = ctx.needs_input_grad
        with no_autocast(g):
            dz, dbias = _row_gradient(g, z, bias, y, ctx.approximate, need_bias)
        return dz if need_z else None, dbias, None


class LinearGeluSoftmax(Function):
    """Op A: (y, z) with z = x @ weight.T + bias and y = softmax(gelu(z), -1), both ``[M, N]``.

    z is an output, and not merely saved, so that a graph of backward knows what it depends on.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, precision: str
    ) -> tuple[Tensor, Tensor]:
        return calls.linear_gelu_softmax_training(x, weight, bias, approximate, precision)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, approximate, _ = inputs
        _save_linear(ctx, x, weight, *output)
        ctx.approximate = approximate
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        """dz of GELU and softmax, plus what z itself received; then as a linear layer."""
        gy, gz = grads
        x, weight, y, z = ctx.saved_tensors
        with no_autocast(y):
            needed = ctx.needs_input_grad[:3]
            dz, dbias = gz, None
            if gy is not None:
                sums = needed[2] and gz is None
                dz, dbias = _row_gradient(gy, z, None, y, ctx.approximate, sums)
                dz = dz if gz is None else dz + gz
                needed = (*needed[:2], needed[2] and not sums)
            if dz is None:
                return None, None, None, None, None
            dx, dweight, rest = linear_gradients(dz, x, weight, needed)
            return dx, dweight, rest if dbias is None else dbias, None, None


class Softmax(Function):
    """y = softmax(z, -1): z ``[M, N]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return calls.softmax(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        """dz = y * (g - sum(g * y))."""
        (g,) = grads
        (y,) = ctx.saved_tensors
        with no_autocast(g):
            return (torch.ops.aten._softmax_backward_data(g, y, -1, y.dtype),)


class GeluScaleMax(Function):
    """y = max(scale * gelu(z + bias), -1): z ``[M, N]``, bias ``[N]`` or None; y ``[M]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, bias: Tensor | None, scale: float, approximate: str) -> Tensor:
        return calls.gelu_scale_max(z, bias, scale, approximate)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, bias, scale, approximate = inputs
        ctx.save_for_backward(z, bias)
        ctx.scale = scale
        ctx.approximate = approximate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        """dz = g * scale * gelu'(z + bias) at the first index of the maximum, else zero."""
        (g,) = grads
        z, bias = ctx.saved_tensors
        need_z, need_bias = ctx.needs_input_grad[:2]
        with no_autocast(g):
            h = z if bias is None else z + bias
            dz = max_gradient(g, h, ctx.scale, ctx.approximate)
            dbias = dz.sum(0) if need_bias else None
        return dz if need_z else None, dbias, None, None


class FoldRows(Function):
    """fold_rows: the means of ``kernel_size`` consecutive rows of ``[N, K]`` or ``[N]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, kernel_size: int) -> Tensor:
        return calls.fold_rows(weight, kernel_size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weight, kernel_size = inputs
        ctx.rows = weight.shape[0]
        ctx.kernel_size = kernel_size

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (g,) = grads
        return spread_rows(g, ctx.kernel_size, ctx.rows), None


class LinearAvgPoolGeluScaleMax(Function):
    """Op B on x ``[M, K]``, weight ``[N, K]``, bias ``[N]`` or None; y ``[M]``.

    Only the inputs are saved. Backward folds the weights again and recomputes the pooled linear
    part, ``[M, N // k]``: a k-th of what eager PyTorch keeps. In a row with an infinite x that may
    put the maximum in another window than forward has it; the gradient is NaN in either. To find
    the right one takes one more product of this size at the least, with the signs, and for all
    rows, because to select rows on a GPU is to wait for it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kernel_size: int,
        scale: float,
        approximate: str,
        precision: str,
    ) -> Tensor:
        return calls.linear_avgpool_gelu_scale_max(
            x, weight, bias, kernel_size, scale, approximate, precision
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, kernel_size, scale, approximate, precision = inputs
        ctx.save_for_backward(x, weight, bias)
        ctx.kernel_size = kernel_size
        ctx.scale = scale
        ctx.approximate = approximate
        ctx.precision = precision

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        """With folded weights Wf, bf and dh the gradient of the maximum at h = x Wf.T + bf:
        dx = dh Wf, dW = spread(dh.T x), db = spread(column sums of dh)."""
        (g,) = grads
        x, weight, bias = ctx.saved_tensors
        kernel_size = ctx.kernel_size
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        rows = weight.shape[0]
        with no_autocast(g):
            folded, folded_bias = weight, bias
            if kernel_size != 1:
                folded = fold_rows(weight, kernel_size)
                folded_bias = None if bias is None else fold_rows(bias, kernel_size)
            h = linear(x, folded, folded_bias, ctx.precision)
            dh = max_gradient(g, h, ctx.scale, ctx.approximate)
            dx = dh @ folded if need_x else None
            dweight = spread_rows(dh.t() @ x, kernel_size, rows) if need_weight else None
            dbias = spread_rows(dh.sum(0), kernel_size, rows) if need_bias else None
        return dx, dweight, dbias, None, None, None, None


linear: Callable[..., Tensor] = entry(Linear)
linear_gelu_softmax: Callable[..., tuple[Tensor, Tensor]] = entry(LinearGeluSoftmax)
gelu_softmax: Callable[..., Tensor] = entry(GeluSoftmax)
softmax: Callable[..., Tensor] = entry(Softmax)
gelu_scale_max: Callable[..., Tensor] = entry(GeluScaleMax)
fold_rows: Callable[..., Tensor] = entry(FoldRows)
linear_avgpool_gelu_scale_max: Callable[..., Tensor] = entry(LinearAvgPoolGeluScaleMax)
