"""The gradients that the autograd functions share, in operations that differentiate again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from . import reference
from ._torch_private import (
    bare_apply,
    legacy_batched,
    transforms_active,
    unwrap_if_dead,
)
from .reference import gelu_derivative


def no_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context without autocast on the tensor's device; where it is off anyway, and on meta
    tensors, which know none, one that costs nothing."""
    kind = tensor.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def wants_operations(g: Tensor) -> bool:
    """Whether the backward of g is to be made of operations that differentiate: a graph of it is
    wanted, or g is batched in the way of is_grads_batched, and no kernel could read it."""
    batched = not torch.compiler.is_compiling() and legacy_batched(g)
    return torch.is_grad_enabled() or batched


def gelu_derivative_times(h: Tensor, factor: Tensor, approximate: str) -> Tensor:
    """``gelu'(h) * factor``; ``factor`` is the caller's to lose.

    Without a graph to build it works in place: two temporaries of the size of h at the most,
    which is what eager PyTorch's softmax and GELU backward take.
    """
    if torch.is_grad_enabled() or approximate != "none":
        return gelu_derivative(h, approximate) * factor
    derivative = (h * -0.7071067811865476).erfc_().mul_(0.5)
    density = (h * h).mul_(-0.5).exp_().mul_(0.3989422804014327).mul_(h)
    return factor.mul_(derivative.add_(density))  # factor alone may carry a vmap dimension


def gelu_softmax_gradient(g: Tensor, h: Tensor, y: Tensor, approximate: str) -> Tensor:
    """dh = gelu'(h) * y * (g - sum(g * y)) for y = softmax(gelu(h), -1)."""
    factor = torch.ops.aten._softmax_backward_data(g, y, -1, y.dtype)
    return gelu_derivative_times(h, factor, approximate)


def max_gradient(
    g: Tensor, h: Tensor, scale: float, approximate: str, winners: Tensor | None = None
) -> Tensor:
    """The gradient of max(scale * gelu(h), -1) for h ``[M, N]``, all on the first maximum, or where
    ``winners`` ``[M]`` say that it is."""
    if winners is None:
        with torch.no_grad():
            winners = (reference.gelu(h, approximate) * scale).max(-1).indices
    index = winners.long().unsqueeze(-1)
    slope = scale * gelu_derivative(h.gather(-1, index), approximate)
    zeros = torch.zeros_like(h, memory_format=torch.contiguous_format)
    return zeros.scatter(-1, index, g.unsqueeze(-1) * slope)


def linear_gradients(
    g: Tensor, x: Tensor | None, weight: Tensor | None, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx = g @ weight; dweight = g.T @ x; dbias = column sums of g; where needed.

    The operand of a gradient that is not needed may be None.
    """
    need_x, need_weight, need_bias = needed[:3]
    dx = g @ weight if need_x and weight is not None else None
    dweight = g.t() @ x if need_weight and x is not None else None
    dbias = g.sum(0) if need_bias else None
    return dx, dweight, dbias


def spread_rows(folded: Tensor, kernel_size: int, rows: int) -> Tensor:
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


def entry(function: type[Function]) -> Callable[..., Any]:
    """``function.apply`` for a function without default arguments, which ours all are: the quick
    form of it, but the whole for traces and functorch transforms."""
    bare, unwrap = bare_apply(function), unwrap_if_dead
    if bare is None or unwrap is None:
        return function.apply

    def apply(*args: Any) -> Any:
        if torch.compiler.is_compiling() or transforms_active():
            return function.apply(*args)
        return bare(*[unwrap(arg) if isinstance(arg, Tensor) else arg for arg in args])

    return apply


def straight_entry(function: type[Function]) -> Callable[..., Any]:
    """``entry`` for a function of x, weight and bias, of which ``calls.straight`` holds, and of
    options: there is neither a trace nor a transform to ask for."""
    bare, unwrap = bare_apply(function), unwrap_if_dead
    if bare is None or unwrap is None:
        return function.apply

    def apply(x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Any:
        bias = None if bias is None else unwrap(bias)
        return bare(unwrap(x), unwrap(weight), bias, *options)

    return apply
