"""The autograd functions around the registered ops; those of the two heads: autograd_heads.py.

They stand outside the ops, in Python: that costs nothing where no gradient is needed. Each saves
its inputs and outputs only, and its backward is made of operations that differentiate again, at
least where a graph of it is wanted, so double backward is right. A precision is that of the linear
part, and of its products in backward (products.py). Nothing here scatters with atomics, so
gradients are bit-identical from run to run. Backward runs with autocast off. Where it multiplies by
PyTorch's matmul, what is small or not aligned, and all of it where a graph of backward is wanted,
under a transform and for batched gradients, it follows PyTorch's own TF32 flag, which the forward
never does, and knows no precision.

All functions take two-dimensional x or z; :mod:`cutlass_ops.functional` folds leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from . import calls
from ._torch_private import transforms_active
from .gradients import (
    entry,
    gelu_softmax_gradient,
    linear_gradients,
    max_gradient,
    no_autocast,
    spread_rows,
    wants_operations,
)

Gradients = tuple[Tensor | None, ...]


def save_linear(ctx: Any, x: Tensor, weight: Tensor, *others: Tensor) -> None:
    """Saves x for the gradient of the weight, and the weight for that of x. What is not needed may
    be freed, written to, or be an inference tensor."""
    need_x, need_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if need_weight else None, weight if need_x else None, *others)


def linear_gradients_of(
    g: Tensor,
    x: Tensor | None,
    weight: Tensor | None,
    needed: tuple[bool, ...],
    precision: str,
) -> Gradients:
    """linear_gradients by the kernels, or, where a graph of backward is wanted and under a
    transform, by operations that differentiate."""
    if wants_operations(g) or transforms_active():
        return linear_gradients(g, x, weight, needed)
    need_x, need_weight, need_bias = needed[:3]
    return (
        calls.product(g, False, weight, precision) if need_x else None,
        calls.product(g, True, x, precision) if need_weight else None,
        g.sum(0) if need_bias else None,
    )


def row_gradient(
    g: Tensor, z: Tensor, bias: Tensor | None, y: Tensor, approximate: str, need_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """That of y = softmax(gelu(z + bias), -1), and the sums of its columns where they are needed:
    one op, or, where a graph of it is wanted, operations that differentiate."""
    if not wants_operations(g):
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
        x, weight, _, ctx.precision = inputs
        save_linear(ctx, x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (g,) = grads
        x, weight = ctx.saved_tensors
        with no_autocast(g):
            return *linear_gradients_of(g, x, weight, ctx.needs_input_grad, ctx.precision), None


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
            dz, dbias = row_gradient(g, z, bias, y, ctx.approximate, need_bias)
        return dz if need_z else None, dbias, None


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


linear: Callable[..., Tensor] = entry(Linear)
gelu_softmax: Callable[..., Tensor] = entry(GeluSoftmax)
softmax: Callable[..., Tensor] = entry(Softmax)
gelu_scale_max: Callable[..., Tensor] = entry(GeluScaleMax)
fold_rows: Callable[..., Tensor] = entry(FoldRows)
