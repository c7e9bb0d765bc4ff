"""The names of PyTorch without a public promise, each with what it is for and what stands in.

They make calls cheaper. Where a torch lacks one the calls are slower and the results the same:
every stand-in gives the answer after which nothing is skipped. The names are bound once, here, and
not looked up on each call. Dynamo knows the functions by identity, so it traces through them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad


def _always(*_: Any) -> bool:
    return True


# Whether a torch.func transform is on. Asked by routing.py (else: take an autograd function, which
# is right with and without a transform; while tracing, the reference) and by observed().
transforms_active: Callable[[], bool]
transforms_active = getattr(torch._C, "_are_functorch_transforms_active", _always)

# Who listens on the dispatcher, for observed() of calls.py: modes in Python, function modes,
# torch.jit.trace, profilers. Else: it says that someone does, and every call passes the dispatcher.
# For packing.py, the first and the third; else no pack holds halves, and every call makes them.
dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", _always)
function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", _always)
tracing_state: Callable[[], object] = getattr(torch._C, "_get_tracing_state", _always)
profiler_enabled: Callable[[], bool]
profiler_enabled = getattr(getattr(torch._C, "_autograd", None), "_profiler_enabled", _always)


# Whether a tensor is a batch of PyTorch's older vmap, which torch.autograd.grad has for
# is_grads_batched and no transform tells of. For gradients.py and calls.py. Else: backward runs no
# kernels.
legacy_batched: Callable[[Tensor], bool]
legacy_batched = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", _always)


def profiling_all_threads() -> bool:
    """What profiler_enabled does not tell of a profiler of all threads."""
    return getattr(torch.autograd.profiler, "_is_profiler_enabled", True)


class _Levels(Protocol):
    _current_level: int


class _InForwardMode:
    _current_level = 0


# ``forward_levels._current_level >= 0`` inside torch.autograd.forward_ad.dual_level, for
# routing.py. Else: always, so that a call takes an autograd function, which refuses a tangent.
forward_levels: _Levels
forward_levels = forward_ad if hasattr(forward_ad, "_current_level") else _InForwardMode()

# A context in which the dispatcher passes autograd by, for the implementations of ops.py. Else:
# they record no graph either, but their native ops pass autograd's fallback, at a microsecond each.
below_autograd: Callable[[], AbstractContextManager[Any]]
below_autograd = getattr(torch._C, "_AutoDispatchBelowAutograd", torch.no_grad)


def bare_call(op: Callable[..., Any]) -> Callable[..., Any]:
    """What an OpOverload, called, hands its arguments to: 0.3 us a call less. Else: the op."""
    call: Callable[..., Any] = getattr(op, "_op", op)
    return call


# What Function.apply does to each tensor among its arguments outside of transforms: one that has
# left its transform is replaced by what it wrapped. None leaves that to it.
unwrap_if_dead: Callable[[Tensor], Tensor] | None
unwrap_if_dead = getattr(getattr(torch._C, "_functorch", None), "unwrap_if_dead", None)


def bare_apply(function: type[Function]) -> Callable[..., Any] | None:
    """What ``function.apply`` calls after it has bound default arguments and unwrapped: 5 us a call
    and not 21. For gradients.py, neither for traces nor under a transform. Else: None."""
    return getattr(super(Function, function), "apply", None)  # that of _C._FunctionBase


def release_saved(ctx: Any) -> None:
    """Lets go of what an autograd function has saved, unless backward is to run again: PyTorch does
    so itself, but after the function. Not while compiling, where there is nothing to free, nor
    under a transform, whose ctx lacks it. Else: memory is held longer."""
    clear = getattr(ctx, "maybe_clear_saved_tensors", None)
    if clear is not None and not torch.compiler.is_compiling() and not transforms_active():
        clear()
