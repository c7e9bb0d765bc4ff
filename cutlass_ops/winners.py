"""Op B in training: which window wins each row, its value and the slope there.

With Wf, bf the means of ``kernel_size`` rows of weight and bias, h = x Wfᵀ + bf and
``j = argmax(scale * gelu(h[i]))``, the first of equals and the first NaN:

    y[i] = scale * gelu(h[i, j])            slope[i] = scale * gelu'(h[i, j])

That is all that the gradient needs beside x and Wf (winner_gradients.py): nothing of size
``[M, N]`` is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import plans, reference
from ._torch_private import bare_call
from .epilogues import gelu_name
from .fakes import check_fake_kernel_size, check_fake_linear
from .operands import dense, empty, native, tma_rows, unit_columns
from .precision import check_native
from .schemas import OPS
from .validation import check_kernel_size, check_linear, check_linear_shapes, check_sizes
from .weights import fold_rows

Training = tuple[Tensor, Tensor, Tensor, Tensor]

_OP = "linear_avgpool_gelu_scale_max_training"

_linear_winners_native = bare_call(OPS._linear_winners.default)


def training(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel_size: int,
    scale: float,
    approximate: str,
    precision: str,
) -> Training:
    """``cutlass_ops::linear_avgpool_gelu_scale_max_training``: y, the winners (int32) and the
    slopes, each of the leading shape of x, and Wf ``[N // kernel_size, K]``, which is empty where
    kernel_size is 1 and Wf the weight itself."""
    check_native(_OP, precision, x.device)
    check_linear(_OP, x, weight, bias)
    check_kernel_size(_OP, kernel_size, weight.shape[0])
    return _plain_training(x, weight, bias, kernel_size, scale, approximate)


def _plain_training(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel_size: int,
    scale: float,
    approximate: str,
) -> Training:
    h = reference.avg_pool(reference.linear(x, weight, bias), kernel_size)
    folded = (
        weight.new_empty((0, weight.shape[1]))
        if kernel_size == 1
        else reference.fold_rows(weight, kernel_size).contiguous()
    )
    return *winner_of(h, scale, approximate), folded


def winner_of(h: Tensor, scale: float, approximate: str) -> tuple[Tensor, Tensor, Tensor]:
    """The maximum of scale * gelu(h) over the last dimension, its place (int32), and the slope."""
    y, winners = (reference.gelu(h, approximate) * scale).max(-1)
    at = h.gather(-1, winners.unsqueeze(-1)).squeeze(-1)
    slopes = scale * reference.gelu_derivative(at, approximate)
    return y.contiguous(), winners.to(torch.int32).contiguous(), slopes.contiguous()


def cuda_training(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel_size: int,
    scale: float,
    approximate: str,
    precision: str,
) -> Training:
    """The same with the kernels, always on the folded weight, since backward reads it."""
    check_native(_OP, precision, x.device)
    check_linear_shapes(_OP, x, weight, bias)
    check_kernel_size(_OP, kernel_size, weight.shape[0])
    if not native(_OP, x, weight, bias):
        return _plain_training(x, weight, bias, kernel_size, scale, approximate)
    return run_training(x, weight, bias, kernel_size, scale, approximate, precision == "fp16x3")


def run_training(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel_size: int,
    scale: float,
    approximate: str,
    fp16x3: bool,
) -> Training:
    """``training`` on operands that the kernels take; below autograd."""
    n, k = weight.shape
    rows = unit_columns(x)
    m, windows = rows.shape[0], n // kernel_size
    check_sizes(_OP, m, n, k)
    y = x.new_empty(m) if rows is x else empty(x, x.shape[:-1])
    slopes, winners = torch.empty_like(y), torch.empty_like(y, dtype=torch.int32)
    folded = x.new_empty(windows if kernel_size > 1 else 0, k)
    weight, bias = unit_columns(weight), dense(bias)
    if m > 0:
        aligned = not fp16x3 or tma_rows(rows)
        gpu = plans.gpu(x.get_device())
        kernel, splits, elements = plans.winner_plan(
            m, windows, k, kernel_size, gpu, fp16x3, aligned
        )
        _linear_winners_native(
            rows, weight, bias, kernel_size, gelu_name(approximate), scale, kernel, splits,
            x.new_empty(elements), folded if kernel_size > 1 else None, y, winners, slopes,
        )  # fmt: skip
    elif kernel_size > 1:
        folded = fold_rows(weight, kernel_size)
    return y, winners, slopes, folded


def fake_training(
    x: Tensor, weight: Tensor, bias: Tensor | None, kernel_size: int, *_: object
) -> Training:
    check_fake_linear(_OP, x, weight, bias)
    check_fake_kernel_size(kernel_size, weight.shape[0])
    y = x.new_empty(x.shape[:-1])
    windows = 0 if kernel_size == 1 else weight.shape[0] // kernel_size
    folded = weight.new_empty((windows, weight.shape[1]))
    return y, torch.empty_like(y, dtype=torch.int32), torch.empty_like(y), folded
