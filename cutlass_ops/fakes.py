"""The fakes of the ops of forward: what tracing and meta tensors see. They return exactly what the
implementations do: shape, dtype, device, and contiguous strides."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .epilogues import lookup
from .validation import check_operand_dtypes


def check_fake_linear(op: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    check_operand_dtypes(op, x, weight, bias)
    torch._check(x.dim() >= 1 and weight.dim() == 2, lambda: "x must be [..., K], weight [N, K]")
    torch._check(
        x.shape[-1] == weight.shape[1],
        lambda: f"x {list(x.shape)} does not fit weight {list(weight.shape)}",
    )
    if bias is not None:
        check_fake_bias(bias, weight.shape[0])


def check_fake_bias(bias: Tensor, n: int) -> None:
    torch._check(bias.dim() == 1, lambda: f"bias must be [N], got {list(bias.shape)}")
    torch._check(bias.shape[0] == n, lambda: f"bias {list(bias.shape)} does not fit N = {n}")


def linear_epilogue(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    name: str,
    params: Sequence[float],
    *_: object,
) -> Tensor:
    check_fake_linear("linear_epilogue", x, weight, bias)
    row = lookup(name)
    row.check(weight.shape[0], params)
    if row.columns is None:
        return x.new_empty(x.shape[:-1])
    return x.new_empty((*x.shape[:-1], row.columns(weight.shape[0], params)))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *_: object) -> Tensor:
    return linear_epilogue(x, weight, bias, "identity", ())


def linear_gelu_softmax(x: Tensor, weight: Tensor, bias: Tensor | None, *_: object) -> Tensor:
    check_fake_linear("linear_gelu_softmax", x, weight, bias)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def linear_gelu_softmax_training(
    x: Tensor, weight: Tensor, bias: Tensor | None, *_: object
) -> tuple[Tensor, Tensor]:
    y = linear_gelu_softmax(x, weight, bias)
    return y, torch.empty_like(y)


def linear_avgpool_gelu_scale_max(
    x: Tensor, weight: Tensor, bias: Tensor | None, kernel_size: int, *_: object
) -> Tensor:
    check_fake_linear("linear_avgpool_gelu_scale_max", x, weight, bias)
    check_fake_kernel_size(kernel_size, weight.shape[0])
    return x.new_empty(x.shape[:-1])


def check_fake_kernel_size(kernel_size: int, n: int) -> None:
    torch._check(kernel_size >= 1, lambda: f"kernel_size must be at least 1, got {kernel_size}")
    torch._check(kernel_size <= n, lambda: f"kernel_size {kernel_size} is larger than N = {n}")


def gelu_softmax(z: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    check_operand_dtypes("gelu_softmax", z, bias)
    torch._check(z.dim() >= 1, lambda: "z must be [..., N]")
    if bias is not None:
        check_fake_bias(bias, z.shape[-1])
    return z.new_empty(z.shape)


def gelu_scale_max(z: Tensor, bias: Tensor | None, scale: float, approximate: str) -> Tensor:
    check_operand_dtypes("gelu_scale_max", z, bias)
    torch._check(z.dim() >= 1, lambda: "z must be [..., N]")
    torch._check(z.shape[-1] >= 1, lambda: "the maximum needs N >= 1")
    if bias is not None:
        check_fake_bias(bias, z.shape[-1])
    return z.new_empty(z.shape[:-1])


def softmax(z: Tensor) -> Tensor:
    check_operand_dtypes("softmax", z)
    torch._check(z.dim() >= 1, lambda: "z must be [..., N]")
    return z.new_empty(z.shape)


def fold_rows(weight: Tensor, kernel_size: int) -> Tensor:
    check_operand_dtypes("fold_rows", weight)
    check_fake_kernel_size(kernel_size, weight.shape[0])
    return weight.new_empty((weight.shape[0] // kernel_size, *weight.shape[1:]))
