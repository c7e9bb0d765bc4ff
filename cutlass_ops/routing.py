"""Which way a call of the functional API takes: autocast, autograd function, op or reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ._torch_private import forward_levels, tracing_state, transforms_active

_AUTOCAST_DTYPES = (torch.float16, torch.bfloat16)
_Result = TypeVar("_Result")


def autocast_active(tensor: object) -> bool:
    """Whether autocast is on for the device type of ``tensor`` (False for what is no tensor)."""
    if not isinstance(tensor, Tensor):
        return False
    kind = tensor.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def to_float32(value: object) -> object:
    """What autocast does to an argument: half and bfloat16 become float32, the rest stays."""
    if isinstance(value, Tensor) and value.dtype in _AUTOCAST_DTYPES:
        return value.float()
    return value


def without_autocast(function: Callable[..., _Result], *args: Any, **options: Any) -> _Result:
    """What an op does where autocast is active: it calls itself, on tensors in float32, with
    autocast off on the device of the first one. ``options`` are no tensors."""
    with torch.autocast(args[0].device.type, enabled=False):
        return function(*map(to_float32, args), **options)


def needs_grad(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> bool:
    """Whether to go through an autograd function. Inside a functorch transform always: a tensor
    batched over a differentiated one does not tell that it requires grad. In forward mode too: the
    functions refuse a tangent with an error, the ops under them would drop it."""
    if not torch.is_grad_enabled():
        return forward_levels._current_level >= 0
    if x.requires_grad:
        return True
    if weight is not None and weight.requires_grad:
        return True
    if bias is not None and bias.requires_grad:
        return True
    return transforms_active() or forward_levels._current_level >= 0


def trace_refuses_functions() -> bool:
    """Whether a trace is on that cannot hold an autograd function. The plain PyTorch reference
    takes over there, which differentiates by itself.

    torch.compile does not see that a tensor requires grad inside torch.func.grad, vmap or the like:
    it would trace the function without its backward, and the gradient would silently be zero.
    torch.jit.trace records a function as a call of Python, which cannot be checked or saved.
    """
    if torch.compiler.is_compiling():
        return transforms_active()
    return tracing_state() is not None


def matrix(x: Tensor) -> Tensor:
    """``[..., K] -> [M, K]``."""
    if x.dim() == 2:
        return x
    return x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)
