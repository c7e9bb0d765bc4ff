"""The registered ops, as the rest of the package calls them.

``torch.ops.cutlass_ops.*`` pass PyTorch's dispatcher and come back into Python, which costs the
host several microseconds a call, as much as launching a kernel. Where nothing on that way would
hear of the call, the implementation is called at once; the result is the same, bit for bit. (What
somebody else registers for one of these ops is for ``torch.ops`` alone.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _library, ops
from ._torch_private import (
    dispatch_modes,
    function_modes,
    legacy_batched,
    profiler_enabled,
    profiling_all_threads,
    tracing_state,
    transforms_active,
)
from .schemas import OPS

_TENSORS = frozenset((Tensor, torch.nn.Parameter))
# Subclasses of Tensor and symbolic numbers have meanings of their own.
_PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None), str, bool, int, float))


def observed() -> bool:
    """Whether someone listens on the dispatcher: a trace, a functorch transform, a dispatch mode,
    a function mode or a profiler."""
    return (
        torch.compiler.is_compiling()  # first: torch.compile traces no further
        or transforms_active()
        or dispatch_modes() > 0
        or function_modes() > 0
        or tracing_state() is not None
        or profiler_enabled()
        or profiling_all_threads()
    )


def straight(x: Any, weight: Any, bias: Any) -> bool:
    """Whether a linear head on these operands is for the kernels as it is: nobody listens, and the
    operands are what ``check_linear`` demands, of float32, where kernels run. Autocast would leave
    them as they are.

    The checks of three layers in one place, at a third of the price, and without a reason: after a
    no the call takes the long way, which finds it again and acts on it.
    """
    if observed() or type(x) not in _TENSORS or type(weight) not in _TENSORS:
        return False
    device, dtype, layout = x.device, torch.float32, torch.strided
    if _library.unsupported_reason(device) is not None:
        return False
    x_shape, weight_shape = x.shape, weight.shape
    if (
        x.dtype is not dtype
        or weight.dtype is not dtype
        or x.layout is not layout
        or weight.layout is not layout
        or weight.device != device
        or len(weight_shape) != 2
        or len(x_shape) == 0
        or x_shape[-1] != weight_shape[1]
    ):
        return False
    return bias is None or (
        type(bias) in _TENSORS
        and bias.dtype is dtype
        and bias.layout is layout
        and bias.device == device
        and bias.shape == (weight_shape[0],)
    )


def straight_back(g: Tensor, saved: tuple[Any, ...]) -> bool:
    """Whether the gradient g of a head that went straight is for the kernels as it is, and so is
    what was saved, x first: nobody listens, no graph of backward is wanted, and all are plain.

    The engine of autograd sees to the shape of g. What was saved is known from forward; hooks on
    saved tensors give back others of the same shape and dtype, but maybe of another type or place.
    """
    return (
        not observed()
        and not torch.is_grad_enabled()
        and not legacy_batched(g)
        and type(g) in _TENSORS
        and g.dtype is torch.float32
        and g.layout is torch.strided
        and _PLAIN.issuperset(map(type, saved))
        and g.device == saved[0].device
    )


def call_of(name: str) -> Callable[..., Any]:
    """The op ``cutlass_ops::name`` as a function of positional arguments, a tensor first."""
    registered = getattr(OPS, name).default
    on_cpu, on_cuda = ops.IMPLEMENTATIONS[name]

    def call(*args: Any) -> Any:
        if not observed() and _PLAIN.issuperset(map(type, args)):
            first = args[0]
            if first.is_cuda:
                return on_cuda(*args)
            if first.is_cpu:
                return on_cpu(*args)
        return registered(*args)

    return call


linear: Callable[..., Tensor] = call_of("linear")
linear_gelu_softmax: Callable[..., Tensor] = call_of("linear_gelu_softmax")
linear_gelu_softmax_training: Callable[..., tuple[Tensor, Tensor]] = call_of(
    "linear_gelu_softmax_training"
)
linear_avgpool_gelu_scale_max: Callable[..., Tensor] = call_of("linear_avgpool_gelu_scale_max")
linear_avgpool_gelu_scale_max_training: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
linear_avgpool_gelu_scale_max_training = call_of("linear_avgpool_gelu_scale_max_training")
product: Callable[..., Tensor] = call_of("product")
winner_gradients: Callable[..., tuple[Tensor, Tensor, Tensor]] = call_of("winner_gradients")
gelu_softmax: Callable[..., Tensor] = call_of("gelu_softmax")
gelu_scale_max: Callable[..., Tensor] = call_of("gelu_scale_max")
softmax: Callable[..., Tensor] = call_of("softmax")
gelu_softmax_backward: Callable[..., tuple[Tensor, Tensor]] = call_of("gelu_softmax_backward")
fold_rows: Callable[..., Tensor] = call_of("fold_rows")
