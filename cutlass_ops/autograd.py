"""The autograd functions around the registered ops.

They stand outside the ops, in Python: that costs nothing where no gradient is needed. Each saves
its inputs and outputs only, and its backward is made of operations that differentiate again, so
double backward is right; op A is two functions (linear, gelu_softmax) for that reason, its
intermediate being the output of one and the input of the other. Nothing here scatters with
atomics, so gradients are bit-identical from run to run. Backward runs with autocast off; where it
multiplies matrices it follows PyTorch's own TF32 flag, which the forward never does.

All functions take two-dimensional x or z; :mod:`cutlass_ops.functional` folds leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import Function

from . import reference, schemas
from .reference import gelu_derivative

_ops = torch.ops.cutlass_ops
_LIBRARY = schemas.LIBRARY  # the ops exist once the schemas are defined

Gradients = tuple[Tensor | None, ...]


def no_autocast(tensor: Tensor) -> torch.autocast:
    """A context without autocast on the tensor's device; meta tensors know no autocast."""
    kind = tensor.device.type
    return torch.autocast("cpu" if kind == "meta" else kind, enabled=False)


def _gelu_derivative_times(h: Tensor, factor: Tensor, approximate: str) -> Tensor:
    """``gelu'(h) * factor``; ``factor`` is the caller's to lose.

    Without a graph to build it works in place: two temporaries of the size of h at the most,
    which is what eager PyTorch's softmax and GELU backward take.
    """
    if torch.is_grad_enabled() or approximate != "none":
        return gelu_derivative(h, approximate) * factor
    derivative = (h * -0.7071067811865476).erfc_().mul_(0.5)
    density = (h * h).mul_(-0.5).exp_().mul_(0.3989422804014327).mul_(h)
    return factor.mul_(derivative.add_(density))  # factor alone may carry a vmap dimension


def _spread_rows(folded: Tensor, kernel_size: int, rows: int) -> Tensor:
    """The transpose of fold_rows: each row goes to its ``kernel_size`` rows, divided; rest zero."""
    share = folded / kernel_size
    tail = folded.shape[1:]
    windows = folded.shape[0]
    spread = share.unsqueeze(1).expand(windows, kernel_size, *tail)
    spread = spread.reshape(windows * kernel_size, *tail)
    rest = rows - windows * kernel_size
    if rest == 0:
        return spread
    return torch.cat((spread, folded.new_zeros((rest, *tail))))


class Linear(Function):
    """z = x @ weight.T + bias: x ``[M, K]``, weight ``[N, K]``, bias ``[N]`` or None."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = _ops.linear(x, weight, bias)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        """dx = g @ weight; dweight = g.T @ x; dbias = column sums of g."""
        (g,) = grads
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        with no_autocast(g):
            dx = g @ weight if need_x else None
            dweight = g.t() @ x if need_weight else None
            dbias = g.sum(0) if need_bias else None
        return dx, dweight, dbias


class GeluSoftmax(Function):
    """y = softmax(gelu(z + bias), -1): z ``[M, N]``, bias ``[N]`` or None."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
        out: Tensor = _ops.gelu_softmax(z, bias, approximate)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, bias, approximate = inputs
        ctx.save_for_backward(z, bias, output)
        ctx.approximate = approximate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        """dz = gelu'(z + bias) * y * (g - sum(g * y))."""
        (g,) = grads
        z, bias, y = ctx.saved_tensors
        need_z, need_bias, _ = ctx.needs_input_grad
        with no_autocast(g):
            h = z if bias is None else z + bias
            factor = torch.ops.aten._softmax_backward_data(g, y, -1, y.dtype)
            dz = _gelu_derivative_times(h, factor, ctx.approximate)
            dbias = dz.sum(0) if need_bias else None
        return dz if need_z else None, dbias, None


class Softmax(Function):
    """y = softmax(z, -1): z ``[M, N]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        out: Tensor = _ops.softmax(z)
        return out

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


def _max_gradient(g: Tensor, h: Tensor, scale: float, approximate: str) -> Tensor:
    """The gradient of max(scale * gelu(h), -1) for h ``[M, N]``, all on the first maximum."""
    with torch.no_grad():
        index = (reference.gelu(h, approximate) * scale).max(-1, keepdim=True).indices
    slope = scale * gelu_derivative(h.gather(-1, index), approximate)
    zeros = torch.zeros_like(h, memory_format=torch.contiguous_format)
    return zeros.scatter(-1, index, g.unsqueeze(-1) * slope)


class GeluScaleMax(Function):
    """y = max(scale * gelu(z + bias), -1): z ``[M, N]``, bias ``[N]`` or None; y ``[M]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, bias: Tensor | None, scale: float, approximate: str) -> Tensor:
        out: Tensor = _ops.gelu_scale_max(z, bias, scale, approximate)
        return out

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
            dz = _max_gradient(g, h, ctx.scale, ctx.approximate)
            dbias = dz.sum(0) if need_bias else None
        return dz if need_z else None, dbias, None, None


class FoldRows(Function):
    """fold_rows: the means of ``kernel_size`` consecutive rows of ``[N, K]`` or ``[N]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, kernel_size: int) -> Tensor:
        out: Tensor = _ops.fold_rows(weight, kernel_size)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weight, kernel_size = inputs
        ctx.rows = weight.shape[0]
        ctx.kernel_size = kernel_size

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (g,) = grads
        return _spread_rows(g, ctx.kernel_size, ctx.rows), None


class LinearAvgPoolGeluScaleMax(Function):
    """Op B on x ``[M, K]``, weight ``[N, K]``, bias ``[N]`` or None; y ``[M]``.

    Only the inputs are saved. Backward folds the weights again and recomputes the pooled linear
    part, ``[M, N // k]``: a k-th of what eager PyTorch keeps.
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
        out: Tensor = _ops.linear_avgpool_gelu_scale_max(
            x, weight, bias, kernel_size, scale, approximate, precision
        )
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, kernel_size, scale, approximate, _ = inputs
        ctx.save_for_backward(x, weight, bias)
        ctx.kernel_size = kernel_size
        ctx.scale = scale
        ctx.approximate = approximate

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
            h = linear(x, folded, folded_bias)
            dh = _max_gradient(g, h, ctx.scale, ctx.approximate)
            dx = dh @ folded if need_x else None
            dweight = _spread_rows(dh.t() @ x, kernel_size, rows) if need_weight else None
            dbias = _spread_rows(dh.sum(0), kernel_size, rows) if need_bias else None
        return dx, dweight, dbias, None, None, None, None


def _entry(function: type[Function]) -> Callable[..., Tensor]:
    """``function.apply`` without its binding of default arguments, which none of ours has: 5 us a
    call and not 21. Traces and functorch transforms take the whole of it."""
    bare = super(Function, function).apply  # type: ignore[misc]  # it is _C._FunctionBase's

    def apply(*args: Any) -> Tensor:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            traced: Tensor = function.apply(*args)
            return traced
        out: Tensor = bare(*unwrap_dead_wrappers(args))
        return out

    return apply


linear = _entry(Linear)
gelu_softmax = _entry(GeluSoftmax)
softmax = _entry(Softmax)
gelu_scale_max = _entry(GeluScaleMax)
fold_rows = _entry(FoldRows)
linear_avgpool_gelu_scale_max = _entry(LinearAvgPoolGeluScaleMax)
