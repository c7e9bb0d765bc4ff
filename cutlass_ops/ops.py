"""Registration of the ops: implementations, fakes, autocast rules.

The schemas stand in schemas.py, the fakes in fakes.py and the vmap rules in batching.py. Every op
has one implementation for CUDA (dispatch.py) and one for every other backend, made of the plain
PyTorch reference. winners.py, winner_gradients.py, backward.py and products.py have both, and the
fakes, of their own ops.

linear_epilogue, the only way to some epilogues, is differentiable. The other ops are not: an
autograd rule costs microseconds on every call, with gradients or without. The functional API is the
differentiable form of them, by the functions of autograd.py. Called directly with an input that
requires grad, such an op gives no gradient, and PyTorch warns of it in backward. It cannot raise,
because the program that torch.export makes of the functional API is just such a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import backward, dispatch, fakes, reference, weights, winner_gradients, winners
from ._torch_private import below_autograd
from .epilogues import lookup
from .gradients import no_autocast
from .precision import check_native
from .products import PRODUCTS
from .schemas import LIBRARY
from .validation import (
    check_columns,
    check_fold_rows,
    check_linear,
    check_matrix,
)


def linear_epilogue(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    name: str,
    params: Sequence[float],
    precision: str = "ieee",
    op: str = "linear_epilogue",
) -> Tensor:
    row = lookup(name)
    check_native(op, precision, x.device)
    check_linear(op, x, weight, bias)
    row.check(weight.shape[0], params)
    return row.reference(reference.linear(x, weight, bias), params).contiguous()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, precision: str = "ieee") -> Tensor:
    """The epilogue "identity" without the autograd rule of linear_epilogue, for the functions of
    autograd.py: inside them the rule would cost 50 us a call and do nothing."""
    return linear_epilogue(x, weight, bias, "identity", (), precision, op="linear")


def linear_gelu_softmax(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    approximate: str,
    precision: str,
    pairs: Tensor | None = None,
) -> Tensor:
    check_native("linear_gelu_softmax", precision, x.device)
    check_linear("linear_gelu_softmax", x, weight, bias)
    return reference.linear_gelu_softmax(x, weight, bias, approximate=approximate).contiguous()


def linear_gelu_softmax_training(
    x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, precision: str
) -> tuple[Tensor, Tensor]:
    op = "linear_gelu_softmax_training"
    check_native(op, precision, x.device)
    check_linear(op, x, weight, bias)
    y, z = reference.linear_gelu_softmax_training(x, weight, bias, approximate=approximate)
    return y.contiguous(), z.contiguous()


def linear_avgpool_gelu_scale_max(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel_size: int,
    scale: float,
    approximate: str,
    precision: str,
    folded: int = 1,
    pairs: Tensor | None = None,
) -> Tensor:
    check_native("linear_avgpool_gelu_scale_max", precision, x.device)
    check_linear("linear_avgpool_gelu_scale_max", x, weight, bias)
    return reference.linear_avgpool_gelu_scale_max(
        x, weight, bias, kernel_size=kernel_size, scale=scale, approximate=approximate
    ).contiguous()


def gelu_softmax(z: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    check_matrix("gelu_softmax", z, bias)
    return reference.gelu_softmax(z, bias, approximate=approximate).contiguous()


def gelu_scale_max(z: Tensor, bias: Tensor | None, scale: float, approximate: str) -> Tensor:
    check_matrix("gelu_scale_max", z, bias)
    check_columns("gelu_scale_max", z.shape[-1])
    return reference.gelu_scale_max(z, bias, scale=scale, approximate=approximate).contiguous()


def softmax(z: Tensor) -> Tensor:
    check_matrix("softmax", z, None)
    return reference.softmax(z).contiguous()


def fold_rows(weight: Tensor, kernel_size: int) -> Tensor:
    check_fold_rows("fold_rows", weight, kernel_size)
    return reference.fold_rows(weight, kernel_size).contiguous()


_Op = Callable[..., Any]
# name: the implementation for all but CUDA, the one for CUDA, the fake
_OPS: dict[str, tuple[_Op, _Op, _Op]] = {
    "linear": (linear, dispatch.linear, fakes.linear),
    "linear_epilogue": (linear_epilogue, dispatch.linear_epilogue, fakes.linear_epilogue),
    "linear_gelu_softmax": (
        linear_gelu_softmax,
        dispatch.linear_gelu_softmax,
        fakes.linear_gelu_softmax,
    ),
    "linear_gelu_softmax_training": (
        linear_gelu_softmax_training,
        dispatch.linear_gelu_softmax_training,
        fakes.linear_gelu_softmax_training,
    ),
    "linear_avgpool_gelu_scale_max": (
        linear_avgpool_gelu_scale_max,
        dispatch.linear_avgpool_gelu_scale_max,
        fakes.linear_avgpool_gelu_scale_max,
    ),
    "gelu_softmax": (gelu_softmax, dispatch.gelu_softmax, fakes.gelu_softmax),
    "gelu_scale_max": (gelu_scale_max, dispatch.gelu_scale_max, fakes.gelu_scale_max),
    "softmax": (softmax, dispatch.softmax, fakes.softmax),
    "gelu_softmax_backward": (
        backward.gelu_softmax_plain,
        backward.gelu_softmax,
        backward.fake_gelu_softmax,
    ),
    "fold_rows": (fold_rows, weights.fold_rows, fakes.fold_rows),
    "linear_avgpool_gelu_scale_max_training": (
        winners.training,
        winners.cuda_training,
        winners.fake_training,
    ),
    "winner_gradients": (
        winner_gradients.gradients,
        winner_gradients.cuda_gradients,
        winner_gradients.fake_gradients,
    ),
    **PRODUCTS,
}


def _linear_epilogue_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.name, ctx.params, _ = inputs
    ctx.save_for_backward(x, weight, bias)


def _linear_epilogue_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Differentiate the reference of the row, computed anew from the inputs.

    The views keep operands that are one and the same tensor apart.
    """
    x, weight, bias = ctx.saved_tensors
    needed = ctx.needs_input_grad[:3]
    with no_autocast(grad):
        with torch.enable_grad():
            x, weight = x.view_as(x), weight.view_as(weight)
            bias = None if bias is None else bias.view_as(bias)
            y = lookup(ctx.name).reference(reference.linear(x, weight, bias), ctx.params)
        wanted = [t for t, need in zip((x, weight, bias), needed, strict=True) if need]
        grads = torch.autograd.grad(
            y, wanted, grad, create_graph=torch.is_grad_enabled(), materialize_grads=True
        )
    found = iter(grads)
    return *(next(found) if need else None for need in needed), None, None, None


def _below_autograd(implementation: _Op) -> _Op:
    """Keep autograd out of an implementation: called with inputs that require grad, the reference
    would otherwise record its own graph, which the CUDA kernels cannot, and each native op would
    pass autograd's fallback."""

    def run(*args: Any) -> Any:
        with below_autograd():
            return implementation(*args)

    return run


# name: (for every backend but CUDA, for CUDA), as they are registered
IMPLEMENTATIONS: dict[str, tuple[_Op, _Op]] = {}
for _name, (_default, _cuda, _fake) in _OPS.items():
    IMPLEMENTATIONS[_name] = _below_autograd(_default), _below_autograd(_cuda)
    LIBRARY.impl(_name, IMPLEMENTATIONS[_name][0], "CompositeExplicitAutograd")
    LIBRARY.impl(_name, IMPLEMENTATIONS[_name][1], "CUDA")
    torch.library.register_fake(f"cutlass_ops::{_name}", _fake, lib=LIBRARY)
    for _device in ("cpu", "cuda"):
        torch.library.register_autocast(
            f"cutlass_ops::{_name}", _device, torch.float32, lib=LIBRARY
        )
torch.library.register_autograd(
    "cutlass_ops::linear_epilogue",
    _linear_epilogue_backward,
    setup_context=_linear_epilogue_setup,
    lib=LIBRARY,
)
