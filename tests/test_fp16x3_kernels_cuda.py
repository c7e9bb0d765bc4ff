"""The tensor-core kernels forced: what halves cannot hold, halves that are there, and memory that
is used again or read as it is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fused import Fused, linear_like, pool_max_op, same_bits, softmax_op
from heads import head_of, some_params
from native import (
    FP16X3,
    FP16X3_NARROW,
    OPS,
    forced,
    fp16x3_kernels,
    gpu_of,
    guarded,
    guards_are_intact,
    needs_binary,
    rows_for,
    run_everywhere,
    run_plan,
)
from operands import Linear
from oracle import check
from strategies import at_offset, lay_out

import cutlass_ops

pytestmark = needs_binary

REPAIRED = ("identity", "gelu", "relu", "row_sum", "avgpool_gelu_scale_max")
special_values = pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])


@special_values
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("name", REPAIRED)
@fp16x3_kernels
def test_fp16x3_repairs_rows_of_x(
    kernel: str, name: str, splits: int, value: float, fp16x3_gpu: str
) -> None:
    """On both sides of the edges of tiles, and at both ends. Two of the rows meet a column of W of
    one sign: with both signs a reduction of infinities is NaN, whatever was repaired."""
    m, n, k = 200, 300, 136
    x, weight, bias = linear_like(m, n, k, fp16x3_gpu)
    params = some_params(name, n)
    plan = forced(kernel, name, params, (m, n, k), splits)
    planted = {0: 5, 63: k - 2, 64: 63, 127: 0, 128: k - 1, m - 1: 70}  # row: column
    weight[:, 5].abs_()
    weight[:, 70].abs_().neg_()
    clean = run_plan(name, params, plan, x, weight, bias)
    for row, column in planted.items():
        x[row, column] = value
    y = run_plan(name, params, plan, x, weight, bias)
    check(y, head_of(name, params), Linear(x, weight, bias))
    finite = [row for row in range(m) if row not in planted]
    assert same_bits(y[finite], clean[finite])
    assert y[finite].isfinite().all()


@pytest.mark.parametrize("name", REPAIRED)
@fp16x3_kernels
def test_fp16x3_repairs_a_row_that_is_not_finite_in_several_splits(
    kernel: str, name: str, fp16x3_gpu: str
) -> None:
    """Each share of k knows of its own part of a row. Two infinities of one sign meet a column of W
    of that sign each, and columns of both; an infinity beside NaN, or beside the other infinity, is
    NaN in every column, or in many."""
    m, n, k = 140, 132, 520  # nine blocks of k, three to a share
    x, weight, bias = linear_like(m, n, k, fp16x3_gpu)
    first, second, third = 5, 250, k - 1
    weight[:, [first, third]] = weight[:, [first, third]].abs()
    params = some_params(name, n)
    plan = forced(kernel, name, params, (m, n, k), 3)
    clean = run_plan(name, params, plan, x, weight, bias)
    planted = {
        0: ((first, math.inf), (third, math.nan)),
        62: ((first, math.nan), (third, math.inf)),
        63: ((second, -math.inf), (third, math.nan)),
        64: ((first, math.inf), (third, math.inf)),
        65: ((first, -math.inf), (third, -math.inf)),
        127: ((first, math.inf), (third, -math.inf)),
        128: ((first, math.inf), (second, math.inf)),
        m - 1: ((first, math.inf), (second, math.nan), (third, -math.inf)),
    }
    for row, values in planted.items():
        for column, value in values:
            x[row, column] = value
    y = run_plan(name, params, plan, x, weight, bias)
    check(y, head_of(name, params), Linear(x, weight, bias))
    finite = [row for row in range(m) if row not in planted]
    assert same_bits(y[finite], clean[finite])


@special_values
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("name", REPAIRED)
@fp16x3_kernels
def test_fp16x3_repairs_columns_of_rows_of_w(
    kernel: str, name: str, splits: int, value: float, fp16x3_gpu: str
) -> None:
    """Every row of the result depends on a row of W. Some rows of x have one sign, and either, so
    that what they make of infinities has one too. Four columns are computed again at a time."""
    m, n, k = 200, 300, 136
    x, weight, bias = linear_like(m, n, k, fp16x3_gpu)
    x[:50].abs_()
    x[100:150].abs_().neg_()
    params = some_params(name, n)
    plan = forced(kernel, name, params, (m, n, k), splits)
    clean = run_plan(name, params, plan, x, weight, bias)
    planted = {0: 5, 63: k - 2, 64: 63, 127: 0, 128: k - 1, 200: 64, n - 1: 70}
    for row, column in planted.items():
        weight[row, column] = value
    y = run_plan(name, params, plan, x, weight, bias)
    check(y, head_of(name, params), Linear(x, weight, bias))
    if y.dim() == 2:
        again = {column // 4 for column in planted}
        finite = [column for column in range(n) if column // 4 not in again]
        assert same_bits(y[:, finite], clean[:, finite])
        assert y[:, finite].isfinite().all()


@pytest.mark.parametrize("name", ["gelu", "avgpool_gelu_scale_max"])
@pytest.mark.parametrize("value", [None, math.inf])
@fp16x3_kernels
def test_fp16x3_on_halves_that_are_there(
    kernel: str, name: str, value: float | None, fp16x3_gpu: str
) -> None:
    """The bits of a call that splits W itself; odd sizes, whose scales and factors are padded."""
    for m, n, k in ((130, 300, 136), (257, 131, 67), (1, 1, 1), (5, 129, 4100), (200, 128, 520)):
        x, weight, bias = linear_like(m, n, k, fp16x3_gpu, seed=n)
        x = rows_for(kernel, x)
        if value is not None:
            weight[n // 2, k // 3] = value
        elements = OPS._fp16_pairs_elements(n, k)
        memory, pairs = guarded((elements,), fp16x3_gpu)
        OPS._split_rows(weight, 1, pairs)
        assert guards_are_intact(memory)
        before = pairs.clone()
        params = some_params(name, n)
        for splits in (1, 3):
            if splits > k:
                continue
            packed = forced(kernel, name, params, (m, n, k), splits, packed=True)
            y = run_plan(name, params, packed, x, weight, bias, pairs)
            plan = forced(kernel, name, params, (m, n, k), splits)
            assert packed[2] < plan[2], "no room for halves of W"
            assert same_bits(y, run_plan(name, params, plan, x, weight, bias))
            check(y, head_of(name, params), Linear(x, weight, bias))
        assert same_bits(pairs, before)
        assert guards_are_intact(memory)


# Rows, and columns, of a tile; CTAs to an SM.
TILES = {FP16X3: (128, 1), FP16X3_NARROW: (64, 2)}


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("few_columns", [False, True])
@pytest.mark.parametrize("undone", [False, True])
@fp16x3_kernels
def test_fp16x3_with_stages_and_ctas_used_again(
    kernel: str, undone: bool, few_columns: bool, splits: int, fp16x3_gpu: str
) -> None:
    """Nine blocks of k through fewer stages, and several tiles a CTA: what a stage or a tile leaves
    behind, or is read too early, shows in some run. Rows that are wanted as they are, those of
    splits, are copied behind the kernel's back; columns undone by weights are scaled where TMA
    writes."""
    side, ctas_per_sm = TILES[kernel]
    ctas = ctas_per_sm * gpu_of(fp16x3_gpu).sm_count
    row_tiles, column_tiles = (ctas + 1, 2) if few_columns else (13, ctas // 6 + 1)
    assert row_tiles * column_tiles > 2 * ctas
    m, n, k = side * (row_tiles - 1) + 5, side * (column_tiles - 1) + 12, 520
    x, weight, bias = linear_like(m, n, k, fp16x3_gpu)
    if undone:
        scales = 10.0 ** (torch.arange(k, device=x.device) % 13 - 6)
        x, weight = x * scales, weight / scales
    plan = forced(kernel, "gelu", [], (m, n, k), splits)
    y = run_plan("gelu", [], plan, x, weight, bias)
    check(y, head_of("gelu", []), Linear(x, weight, bias))
    for _ in range(20):
        assert same_bits(y, run_plan("gelu", [], plan, x, weight, bias))


@fp16x3_kernels
def test_fp16x3_of_rows_that_are_read_twice(kernel: str, fp16x3_gpu: str) -> None:
    """Those too long for the registers of a CTA, aligned and not."""
    run_everywhere("gelu", kernel, ((130, 140, 40_000), (3, 129, 40_001)), (1, 3), [])


@pytest.mark.parametrize("splits", [1, 3])
@fp16x3_kernels
def test_fp16x3_of_folded_rows_that_are_read_twice(
    kernel: str, splits: int, fp16x3_gpu: str
) -> None:
    name, params = "avgpool_gelu_scale_max", [3.0, -2.0]
    m, n, k = 130, 396, 20_000
    x, weight, bias = linear_like(m, n, k, fp16x3_gpu)
    plan = forced(kernel, name, [1.0, -2.0], (m, n // 3, k), splits)
    memory, out = guarded((m,), fp16x3_gpu)
    elements = OPS._folded_memory(n // 3, k, plan[0], plan[2])
    scratch, space = guarded((elements,), fp16x3_gpu)
    OPS._folded_epilogue(x, weight, bias, name, params, *plan[:2], space, out)
    assert all(map(guards_are_intact, (memory, scratch)))
    check(out.clone(), head_of(name, params), Linear(x, weight, bias))


@pytest.mark.parametrize("splits", [1, 3])
def test_fp16x3_of_few_columns_reads_rows_within_longer_ones(splits: int, fp16x3_gpu: str) -> None:
    """What TMA takes need not be contiguous, nor end on 16 bytes. W may be anything."""
    for m, n, k in ((130, 64, 67), (1, 3, 129), (65, 130, 518)):
        x, weight, bias = linear_like(m, n, k, fp16x3_gpu)
        x = x.new_full((m, k // 4 * 4 + 104), math.nan)[:, 100 : 100 + k].copy_(x)
        for layout in ("offset1", "padded", "row expanded"):
            w = lay_out(weight, layout)
            plan = forced(FP16X3_NARROW, "gelu", [], (m, n, k), splits)
            y = run_plan("gelu", [], plan, x, w, bias)
            check(y, head_of("gelu", []), Linear(x, w, bias))


# How x comes out of a matrix of 256 and more columns; whether TMA reads it.
X_VIEWS = {
    "contiguous": lambda m, device: torch.randn(m, 256, device=device),
    "16 bytes on": lambda m, device: torch.randn(m, 264, device=device)[:, 4:260],
    "beside a column": lambda m, device: torch.randn(m, 257, device=device)[:, 1:],
    "one float on": lambda m, device: at_offset(torch.randn(m, 256, device=device), 1),
    "one row": lambda m, device: torch.randn(1, 256, device=device).expand(m, 256),
}


@pytest.mark.parametrize("op", [softmax_op(), pool_max_op(4, -2.0)], ids=repr)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("view", X_VIEWS)
def test_fp16x3_ops_take_any_rows_of_x(view: str, packed: bool, op: Fused, fp16x3_gpu: str) -> None:
    """Of the shape of which the kernel for few columns is, which does not read all of them."""
    x = X_VIEWS[view](20_000, fp16x3_gpu)
    _, weight, bias = linear_like(1, 64, 256, fp16x3_gpu)
    with cutlass_ops.float32_precision("fp16x3", strict=True):
        operand: Any = weight
        if packed:
            operand = cutlass_ops.pack_linear(weight, bias, kernel_size=op.head.kernel_size)
        y = op.call(x, operand, None if packed else bias)
    op.judge(y, x, weight, bias)
