"""Registration of the ops: implementations, fakes, autocast rules.

The schemas stand in schemas.py and the vmap rules in batching.py. Every op has one implementation
for CUDA (dispatch.py) and one for every other backend, made of the plain PyTorch reference. The
fakes return exactly what both return: shape, dtype, device, and contiguous strides.

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

from . import backward, dispatch, reference, weights
from ._torch_private import below_autograd
from .epilogues import lookup
from .gradients import no_autocast
from .precision import check_native
from .schemas import LIBRARY
from .validation import (
    check_columns,
    check_fold_rows,
    check_linear,
    check_matrix,
    check_operand_dtypes,
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


def _check_fake_linear(op: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    check_operand_dtypes(op, x, weight, bias)
    torch._check(x.dim() >= 1 and weight.dim() == 2, lambda: "x must be [..., K], weight [N, K]")
    torch._check(
        x.shape[-1] == weight.shape[1],
        lambda: f"x {list(x.shape)} does not fit weight {list(weight.shape)}",
    )
    if bias is not None:
        _check_fake_bias(bias, weight.shape[0])


def _check_fake_bias(bias: Tensor, n: int) -> None:
    torch._check(bias.dim() == 1, lambda: f"bias must be [N], got {list(bias.shape)}")
    torch._check(bias.shape[0] == n, lambda: f"bias {list(bias.shape)} does not fit N = {n}")


def _fake_linear_epilogue(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    name: str,
    params: Sequence[float],
    *_: object,
) -> Tensor:
    _check_fake_linear("linear_epilogue", x, weight, bias)
    row = lookup(name)
    row.check(weight.shape[0], params)
    if row.columns is None:
        return x.new_empty(x.shape[:-1])
    return x.new_empty((*x.shape[:-1], row.columns(weight.shape[0], params)))


def _fake_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *_: object) -> Tensor:
    return _fake_linear_epilogue(x, weight, bias, "identity", ())


def _fake_linear_gelu_softmax(x: Tensor, weight: Tensor, bias: Tensor | None, *_: object) -> Tensor:
    _check_fake_linear("linear_gelu_softmax", x, weight, bias)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _fake_linear_gelu_softmax_training(
    x: Tensor, weight: Tensor, bias: Tensor | None, *_: object
) -> tuple[Tensor, Tensor]:
    y = _fake_linear_gelu_softmax(x, weight, bias)
    return y, torch.empty_like(y)


def _fake_linear_avgpool_gelu_scale_max(
    x: Tensor, weight: Tensor, bias: Tensor | None, kernel_size: int, *_: object
) -> Tensor:
    _check_fake_linear("linear_avgpool_gelu_scale_max", x, weight, bias)
    _check_fake_kernel_size(kernel_size, weight.shape[0])
    return x.new_empty(x.shape[:-1])


def _check_fake_kernel_size(kernel_size: int, n: int) -> None:
    torch._check(kernel_size >= 1, lambda: f"kernel_size must be at least 1, got {kernel_size}")
    torch._check(kernel_size <= n, lambda: f"kernel_size {kernel_size} is larger than N = {n}")


def _fake_gelu_softmax(z: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    check_operand_dtypes("gelu_softmax", z, bias)
    torch._check(z.dim() >= 1, lambda: "z must be [..., N]")
    if bias is not None:
        _check_fake_bias(bias, z.shape[-1])
    return z.new_empty(z.shape)


def _fake_gelu_scale_max(z: Tensor, bias: Tensor | None, scale: float, approximate: str) -> Tensor:
    check_operand_dtypes("gelu_scale_max", z, bias)
    torch._check(z.dim() >= 1, lambda: "z must be [..., N]")
    torch._check(z.shape[-1] >= 1, lambda: "the maximum needs N >= 1")
    if bias is not None:
        _check_fake_bias(bias, z.shape[-1])
    return z.new_empty(z.shape[:-1])


def _fake_softmax(z: Tensor) -> Tensor:
    check_operand_dtypes("softmax", z)
    torch._check(z.dim() >= 1, lambda: "z must be [..., N]")
    return z.new_empty(z.shape)


def _fake_fold_rows(weight: Tensor, kernel_size: int) -> Tensor:
    check_operand_dtypes("fold_rows", weight)
    _check_fake_kernel_size(kernel_size, weight.shape[0])
    return weight.new_empty((weight.shape[0] // kernel_size, *weight.shape[1:]))


_Op = Callable[..., Any]
# name: the implementation for all but CUDA, the one for CUDA, the fake
_OPS: dict[str, tuple[_Op, _Op, _Op]] = {
    "linear": (linear, dispatch.linear, _fake_linear),
    "linear_epilogue": (linear_epilogue, dispatch.linear_epilogue, _fake_linear_epilogue),
    "linear_gelu_softmax": (
        linear_gelu_softmax,
        dispatch.linear_gelu_softmax,
        _fake_linear_gelu_softmax,
    ),
    "linear_gelu_softmax_training": (
        linear_gelu_softmax_training,
        dispatch.linear_gelu_softmax_training,
        _fake_linear_gelu_softmax_training,
    ),
    "linear_avgpool_gelu_scale_max": (
        linear_avgpool_gelu_scale_max,
        dispatch.linear_avgpool_gelu_scale_max,
        _fake_linear_avgpool_gelu_scale_max,
    ),
    "gelu_softmax": (gelu_softmax, dispatch.gelu_softmax, _fake_gelu_softmax),
    "gelu_scale_max": (gelu_scale_max, dispatch.gelu_scale_max, _fake_gelu_scale_max),
    "softmax": (softmax, dispatch.softmax, _fake_softmax),
    "gelu_softmax_backward": (
        backward.gelu_softmax_plain,
        backward.gelu_softmax,
        backward.fake_gelu_softmax,
    ),
    "fold_rows": (fold_rows, weights.fold_rows, _fake_fold_rows),
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
