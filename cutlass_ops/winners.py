"""Op B in training: which window wins each row, and the gradient, which reaches that one alone.

With Wf, bf the means of ``kernel_size`` rows of weight and bias, h = x Wfᵀ + bf and
``j = argmax(scale * gelu(h[i]))``, the first of equals and the first NaN:

    y[i] = scale * gelu(h[i, j])            slope[i] = scale * gelu'(h[i, j])
    dx[i] = c[i] Wf[j]                      c[i] = dy[i] * slope[i]
    dW[r] = 1/k sum of c[i] x[i], db[r] = 1/k sum of c[i], over the rows i that window r // k wins

So nothing of size ``[M, N]`` is kept, and backward is sums and copies of rows, where a matrix h of
gradients that is zero but for one column a row would be multiplied twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import plans, reference
from ._torch_private import bare_call
from .epilogues import gelu_name
from .fakes import check_fake_kernel_size, check_fake_linear
from .gradients import spread_rows
from .operands import dense, empty, native, tma_rows, unit_columns
from .precision import check_native
from .schemas import OPS
from .validation import (
    check_kernel_size,
    check_linear,
    check_linear_shapes,
    check_operand_dtypes,
    check_sizes,
)
from .weights import fold_rows

Training = tuple[Tensor, Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]

_TRAINING = "linear_avgpool_gelu_scale_max_training"
_GRADIENTS = "winner_gradients"

_linear_winners_native = bare_call(OPS._linear_winners.default)
_winner_gradients_native = bare_call(OPS._winner_gradients.default)


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
    check_native(_TRAINING, precision, x.device)
    check_linear(_TRAINING, x, weight, bias)
    check_kernel_size(_TRAINING, kernel_size, weight.shape[0])
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
    check_native(_TRAINING, precision, x.device)
    check_linear_shapes(_TRAINING, x, weight, bias)
    check_kernel_size(_TRAINING, kernel_size, weight.shape[0])
    if not native(_TRAINING, x, weight, bias):
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
    check_sizes(_TRAINING, m, n, k)
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


def _fit(
    grad: Tensor,
    winners: Tensor,
    slopes: Tensor,
    x: Tensor,
    weight: Tensor,
    weight_rows: int,
    kernel_size: int,
) -> bool:
    """Whether the operands belong together; where the winners point cannot be seen without
    waiting."""
    rows = x.shape[:1]
    return (
        x.dim() == weight.dim() == 2
        and x.shape[1] == weight.shape[1]
        and grad.shape == rows
        and winners.shape == rows
        and slopes.shape == rows
        and kernel_size >= 1
        and weight_rows // kernel_size == weight.shape[0]
    )


def _unfit(grad: Tensor, winners: Tensor, slopes: Tensor, x: Tensor, weight: Tensor) -> str:
    shapes = ", ".join(str(list(t.shape)) for t in (grad, winners, slopes, x, weight))
    return (
        f"{_GRADIENTS}: grad, winners and slopes must be [M], x [M, K], "
        f"weight [N // kernel_size, K] and weight_rows N, got {shapes}"
    )


def _check(
    grad: Tensor,
    winners: Tensor,
    slopes: Tensor,
    x: Tensor,
    weight: Tensor,
    weight_rows: int,
    kernel_size: int,
) -> None:
    check_operand_dtypes(_GRADIENTS, grad, slopes, x, weight)
    if not _fit(grad, winners, slopes, x, weight, weight_rows, kernel_size):
        raise ValueError(_unfit(grad, winners, slopes, x, weight))


def gradients(
    grad: Tensor,
    winners: Tensor,
    slopes: Tensor,
    x: Tensor,
    weight: Tensor,
    weight_rows: int,
    kernel_size: int,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> Gradients:
    """``cutlass_ops::winner_gradients``: dx ``[M, K]``, dW ``[weight_rows, K]`` and db
    ``[weight_rows]`` for x ``[M, K]``, Wf in the place of weight and what ``training`` returned;
    other winners may point outside of the weight. What is not needed is empty. Raises ValueError
    for shapes that do not belong together."""
    _check(grad, winners, slopes, x, weight, weight_rows, kernel_size)
    windows = weight.shape[0]
    c, index = grad * slopes, winners.long()
    nothing = x.new_empty(0)
    return (
        c.unsqueeze(-1) * weight.index_select(0, index) if need_x else nothing,
        spread_rows(_window_sums(c, index, x, windows), kernel_size, weight_rows)
        if need_weight
        else nothing.clone(),
        spread_rows(
            _window_sums(c, index, x.new_ones(x.shape[0], 1), windows).squeeze(1),
            kernel_size,
            weight_rows,
        )
        if need_bias
        else nothing.clone(),
    )


def _window_sums(c: Tensor, index: Tensor, x: Tensor, windows: int) -> Tensor:
    """``sum of c[i] x[i] over the i with index[i] == window``, ``[windows, K]``, in a fixed order:
    only on the CPU does index_add_ have one. It adds one by one, which in float32 is less accurate
    than a product of matrices."""
    if x.is_cpu:
        sums = x.new_zeros((windows, x.shape[1]), dtype=torch.float64)
        return sums.index_add_(0, index, c.double().unsqueeze(-1) * x).to(x.dtype)
    one_hot = index.unsqueeze(1) == torch.arange(windows, device=x.device)
    return torch.where(one_hot, c.unsqueeze(-1), 0.0).t() @ x


def cuda_gradients(
    grad: Tensor,
    winners: Tensor,
    slopes: Tensor,
    x: Tensor,
    weight: Tensor,
    weight_rows: int,
    kernel_size: int,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> Gradients:
    """The same with the kernels. Sums are in the order of the rows, and so the same every time."""
    _check(grad, winners, slopes, x, weight, weight_rows, kernel_size)
    needed = (need_x, need_weight, need_bias)
    if not native(_GRADIENTS, x, weight, grad, slopes):
        return gradients(grad, winners, slopes, x, weight, weight_rows, kernel_size, *needed)
    found = run_gradients(grad, winners, slopes, x, weight, weight_rows, kernel_size, needed)
    dx, dweight, dbias = (x.new_empty(0) if one is None else one for one in found)
    return dx, dweight, dbias


def run_gradients(
    grad: Tensor,
    winners: Tensor,
    slopes: Tensor,
    x: Tensor,
    weight: Tensor,
    weight_rows: int,
    kernel_size: int,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """``gradients`` on operands that the kernels take and that belong together; None for what is
    not needed. Below autograd."""
    need_x, need_weight, need_bias = needed
    rows, weight = unit_columns(x), unit_columns(weight)
    m, k = rows.shape
    dx = x.new_empty(m, k) if need_x else None
    dweight = x.new_empty(weight_rows, k) if need_weight else None
    dbias = x.new_empty(weight_rows) if need_bias else None
    sums = plans.winner_gradient_memory(m, k if need_weight else 0)
    memory = plans.workspace(x, sums if need_weight or need_bias else 0)
    _winner_gradients_native(
        grad.contiguous(), winners, slopes, rows, weight, kernel_size, memory, dx, dweight, dbias
    )
    return dx, dweight, dbias


def _fake_training(
    x: Tensor, weight: Tensor, bias: Tensor | None, kernel_size: int, *_: object
) -> Training:
    check_fake_linear(_TRAINING, x, weight, bias)
    check_fake_kernel_size(kernel_size, weight.shape[0])
    y = x.new_empty(x.shape[:-1])
    windows = 0 if kernel_size == 1 else weight.shape[0] // kernel_size
    folded = weight.new_empty((windows, weight.shape[1]))
    return y, torch.empty_like(y, dtype=torch.int32), torch.empty_like(y), folded


def _fake_gradients(
    grad: Tensor,
    winners: Tensor,
    slopes: Tensor,
    x: Tensor,
    weight: Tensor,
    weight_rows: int,
    kernel_size: int,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> Gradients:
    check_operand_dtypes(_GRADIENTS, grad, slopes, x, weight)
    torch._check(
        _fit(grad, winners, slopes, x, weight, weight_rows, kernel_size),
        lambda: _unfit(grad, winners, slopes, x, weight),
    )
    k = x.shape[1]
    return (
        x.new_empty(x.shape if need_x else (0,)),
        x.new_empty((weight_rows, k) if need_weight else (0,)),
        x.new_empty((weight_rows,) if need_bias else (0,)),
    )


# name: as in ops.py
OPS_OF_TRAINING: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    _TRAINING: (training, cuda_training, _fake_training),
    _GRADIENTS: (gradients, cuda_gradients, _fake_gradients),
}
