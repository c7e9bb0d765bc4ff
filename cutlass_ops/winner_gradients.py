"""Op B's backward: the gradient of each row reaches the window that won it, and that one alone.

With j the winner of row i, slope[i] the slope there and Wf the folded weight, as winners.py returns
them:

    dx[i] = c[i] Wf[j]                      c[i] = dy[i] * slope[i]
    dW[r] = 1/k sum of c[i] x[i], db[r] = 1/k sum of c[i], over the rows i that window r // k wins

So backward is sums and copies of rows, where a matrix h of gradients that is zero but for one
column a row would be multiplied twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import plans
from ._torch_private import bare_call
from .gradients import spread_rows
from .operands import native, unit_columns
from .schemas import OPS
from .validation import check_operand_dtypes

Gradients = tuple[Tensor, Tensor, Tensor]

_OP = "winner_gradients"

_winner_gradients_native = bare_call(OPS._winner_gradients.default)


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
        f"{_OP}: grad, winners and slopes must be [M], x [M, K], "
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
    check_operand_dtypes(_OP, grad, slopes, x, weight)
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
    ``[weight_rows]`` for x ``[M, K]``, Wf in the place of weight and the winners and slopes that
    ``winners.training`` returned; others may point outside of the weight. What is not needed is
    empty. Raises ValueError for shapes that do not belong together."""
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
    if not native(_OP, x, weight, grad, slopes):
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


def fake_gradients(
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
    check_operand_dtypes(_OP, grad, slopes, x, weight)
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
