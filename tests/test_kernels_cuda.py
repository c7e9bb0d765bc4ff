"""Every kernel of the binary forced, whatever the cost model would choose; plans without a GPU."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch
from fused import Fused, linear_like, pool_max_op, same_bits, softmax_op
from heads import head_of, some_params
from native import (
    BUILT,
    FP16X3,
    FP16X3_KERNELS,
    FP16X3_NARROW,
    KERNELS,
    OPS,
    gpu_of,
    guarded,
    guards_are_intact,
    needs_binary,
    plan_for,
    reads,
    rows_for,
    run_everywhere,
    run_matrix,
    run_plan,
)
from oracle import Linear, Matrix, check, softmax_head
from strategies import at_offset, lay_out, make_operands
from torch import Tensor

import cutlass_ops
from cutlass_ops import plans
from cutlass_ops.epilogues import EPILOGUES

pytestmark = needs_binary

STREAM_K = "stream_k_128x128x32"
SLICED_K = "sliced_k_128x128x32"
SPLITS = (1, 2, 3, 7)
# Exact tiles, ragged in every direction, thinner than a tile, one element, depth 0.
SHAPES = (
    (128, 256, 64),
    (129, 257, 67),
    (200, 300, 516),
    (257, 130, 33),
    (255, 127, 30),
    (1, 300, 129),
    (300, 1, 77),
    (17, 70, 1000),
    (1, 1, 1),
    (5, 6, 0),
)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", BUILT)
def test_every_kernel_with_every_epilogue(name: str, kernel: str, gpu: str) -> None:
    run_everywhere(name, kernel, SHAPES, SPLITS, [])


@pytest.mark.parametrize("kernel", KERNELS)
def test_softmax_head_with_every_kernel(kernel: str, gpu: str) -> None:
    """Accumulators or partial sums straight into the softmax, those of odd sizes each beside a
    16-byte boundary of its own; the same bits where the linear part is kept on the way, as in
    training."""
    ran = 0
    for m, n, k in (*SHAPES, (3, 5001, 70), (3, 70_001, 40)):
        x, weight, bias = linear_like(m, n, k, gpu, seed=m * n)
        x = rows_for(kernel, x)
        for split in SPLITS:
            plan = plan_for("identity", [], (m, n, k), kernel, split)
            if plan is None:
                continue
            memory, out = guarded((m, n), gpu)
            scratch, workspace = guarded((plan[2],), gpu)
            OPS._linear_softmax(x, weight, bias, *plan[:2], workspace, "gelu", None, out)
            assert all(map(guards_are_intact, (memory, scratch)))
            z, kept = torch.empty_like(out), torch.empty_like(out)
            OPS._linear_softmax(x, weight, bias, *plan[:2], workspace, "gelu", z, kept)
            assert same_bits(out, kept)
            check(z, head_of("identity", []), Linear(x, weight, bias))
            check(out, softmax_head("none"), Matrix(z))
            ran += 1
    assert ran > 0


@pytest.mark.parametrize(("m", "n"), [(4160, 1152), (1000, 6784), (1152, 4160), (1001, 6785)])
def test_stream_k_leaves_what_tiles_have_in_common_to_one(m: int, n: int, gpu: str) -> None:
    """A tile that is moved back from an edge holds rows or columns of the one before it, which may
    be cut elsewhere along k: two sums, of which the last one written won."""
    x, weight, bias = linear_like(m, n, 4096, gpu)
    plan = OPS._plan_for("identity", [], m, n, 4096, gpu_of(gpu), STREAM_K, 1)
    workspace = torch.empty(plan[2], device=gpu)
    out, z, kept = (torch.empty(m, n, device=gpu) for _ in range(3))
    OPS._linear_softmax(x, weight, bias, *plan[:2], workspace, "gelu", z, kept)
    for _ in range(5):
        OPS._linear_softmax(x, weight, bias, *plan[:2], workspace, "gelu", None, out)
        assert same_bits(out, kept)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
def test_folding_in_one_call_with_every_kernel(kernel: str, with_bias: bool, gpu: str) -> None:
    """Odd sizes: folded bias and workspace lie behind the folded weight. The bits are those of
    folding first and the GEMM then."""
    name, params = "avgpool_gelu_scale_max", [3.0, -2.0]
    ran = 0
    for m, n, k in ((130, 396, 67), (7, 45, 33), (1, 3, 5), (200, 405, 516)):
        x, weight, some_bias = linear_like(m, n, k, gpu, seed=m * n)
        x, bias = rows_for(kernel, x), some_bias if with_bias else None
        for split in SPLITS:
            plan = plan_for(name, [1.0, -2.0], (m, n // 3, k), kernel, split)
            if plan is None:
                continue
            memory, out = guarded((m,), gpu)
            scratch, space = guarded((OPS._folded_memory(n // 3, k, plan[0], plan[2]),), gpu)
            OPS._folded_epilogue(x, weight, bias, name, params, *plan[:2], space, out)
            assert all(map(guards_are_intact, (memory, scratch)))
            means = torch.empty(n // 3, k, device=gpu)
            means_bias = torch.empty(n // 3, device=gpu) if with_bias else None
            OPS._fold_rows(weight, bias, 3, means, means_bias)
            assert same_bits(out, run_plan(name, [1.0, -2.0], plan, x, means, means_bias))
            ran += 1
    assert ran > 0


@pytest.mark.parametrize("name", BUILT)
def test_stream_k_with_whole_tiles_and_shared_ones(name: str, gpu: str) -> None:
    """One wave of whole tiles and a rest; exactly one wave; few tiles of many pieces each; tiles of
    one share and a tail, and those behind a wave of whole ones."""
    ctas = gpu_of(gpu).sm_count
    wave = (128 * 6, 128 * (ctas // 6), 70)
    shapes = ((128 * 6 + 5, 128 * (ctas // 6) + 9, 70), wave, (200, 300, 20_004), (128, 130, 9_999))
    shapes += ((130, 6400, 512), (777, 4200, 1000), (1000, 128 * (ctas + 100) // 8, 516))
    run_everywhere(name, STREAM_K, shapes, (1,), [])


def test_stream_k_beside_itself_and_replayed(gpu: str) -> None:
    """CTAs wait for one another: grids that share the GPU must not stop each other, and a graph
    must find the flags as a first launch does."""
    m, n, k = 777, 4200, 1000
    x, weight, bias = linear_like(m, n, k, gpu)
    plan = OPS._plan_for("gelu", [], m, n, k, gpu_of(gpu), STREAM_K, 1)
    expected = run_plan("gelu", [], plan, x, weight, bias)
    streams = [torch.cuda.Stream() for _ in range(3)]
    places = [(torch.empty(plan[2], device=gpu), torch.empty(m, n, device=gpu)) for _ in streams]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, (workspace, out) in zip(streams, places, strict=True):
            with torch.cuda.stream(stream):
                OPS._linear_epilogue(x, weight, bias, "gelu", [], *plan[:2], workspace, out)
    torch.cuda.synchronize()
    assert all(same_bits(out, expected) for _, out in places)

    workspace, out = places[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        OPS._linear_epilogue(x, weight, bias, "gelu", [], *plan[:2], workspace, out)
    for _ in range(3):
        workspace.fill_(math.nan)
        out.fill_(math.nan)
        graph.replay()
        assert same_bits(out, expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("window", [1, 2, 3, 8, 16, 17, 64, 100, 128, 256])
def test_every_kernel_with_every_kind_of_window(window: int, kernel: str, gpu: str) -> None:
    """Windows that divide the tile in the epilogue, and those that must go through memory."""
    shapes = ((130, 300, 36), (7, 512, 200))
    run_everywhere("avgpool_gelu_scale_max", kernel, shapes, (1, 3), [float(window), 2.0])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "layouts", [("offset1", "offset3"), ("padded", "row expanded"), ("row expanded", "padded")]
)
def test_every_kernel_with_every_row_stride(
    kernel: str, layouts: tuple[str, str], gpu: str
) -> None:
    """Unaligned pointers, odd leading dimensions and stride 0 reach the kernels as they are, or are
    refused: TMA reads no such x."""
    for m, n, k in ((65, 131, 40), (3, 129, 515), (131, 133, 68)):
        x, weight, bias = linear_like(m, n, k, gpu)
        x, weight = lay_out(x, layouts[0]), lay_out(weight, layouts[1])
        bias = at_offset(bias, 1)
        for split in (1, 2):
            plan = plan_for("gelu", [], (m, n, k), kernel, split)
            if plan is None:
                assert m < 128 or (kernel == STREAM_K and split > 1)
                continue
            if not reads(kernel, x):
                with pytest.raises(RuntimeError, match="16-byte aligned"):
                    run_plan("gelu", [], plan, x, weight, bias)
            rows = rows_for(kernel, x)
            y = run_plan("gelu", [], plan, rows, weight, bias)
            check(y, head_of("gelu", []), Linear(rows, weight, bias))


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_keeps_nan_in_its_row(kernel: str, gpu: str) -> None:
    """Rows and columns of the last tile that do not exist are read as something: not as NaN."""
    m, n, k = 131, 133, 35
    x, weight, bias = linear_like(m, n, k, gpu)
    x[m - 1, k - 1] = math.nan
    x = rows_for(kernel, x)
    for name in ("gelu", "avgpool_gelu_scale_max", "row_sum"):
        params = some_params(name, n)
        for split in (1, 3):
            plan = plan_for(name, params, (m, n, k), kernel, split)
            if plan is not None:
                y = run_plan(name, params, plan, x, weight, bias)
                bad = y.isnan().reshape(m, -1)
                assert bad[m - 1].all()
                assert not bad[: m - 1].any()


# ---- the tensor cores: halves, their scales, and what halves cannot hold ----


fp16x3_kernels = pytest.mark.parametrize("kernel", FP16X3_KERNELS)
# Rows, and columns, of a tile; CTAs to an SM.
TILES = {FP16X3: (128, 1), FP16X3_NARROW: (64, 2)}


def forced(
    kernel: str,
    name: str,
    params: list[float],
    shape: tuple[int, int, int],
    splits: int,
    packed: bool = False,
) -> list[int]:
    plan = plan_for(name, params, shape, kernel, splits, packed)
    assert plan is not None, f"{kernel} refuses {shape} in {splits}"
    return plan


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


def accurate_operands(positive: bool, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    draw = torch.rand if positive else torch.randn
    x, weight = (draw(512, 8192, generator=generator, device=device) for _ in range(2))
    return x, weight


def check_accuracy(kernel: str, x: Tensor, weight: Tensor, splits: int, kinds: int = 1) -> None:
    """Of every ``kinds``-th row together, beginning with each of the first ones."""
    plan = forced(kernel, "identity", [], (len(x), *weight.shape), splits)
    truth = x.double() @ weight.double().t()
    difference = run_plan("identity", [], plan, x, weight) - truth
    for kind in range(kinds):
        error = difference[kind::kinds].norm() / truth[kind::kinds].norm()
        assert error <= 4e-7, f"{error:.3e}, rows of kind {kind}"


@pytest.mark.parametrize("positive", [False, True])
@fp16x3_kernels
def test_fp16x3_is_as_accurate_as_float32(kernel: str, positive: bool, fp16x3_gpu: str) -> None:
    """Terms of one sign are what truncating adders lose most on."""
    check_accuracy(kernel, *accurate_operands(positive, fp16x3_gpu), splits=1)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("positive", [False, True])
@fp16x3_kernels
def test_fp16x3_of_rows_that_rise_and_fall(
    kernel: str, positive: bool, splits: int, fp16x3_gpu: str
) -> None:
    """By thirty orders of magnitude along k: a scale that follows a row changes between tiles of k,
    by a factor at a time, or at one step by all of them. Beside them rows of the usual kind."""
    x, weight = accurate_operands(positive, fp16x3_gpu)
    rising = torch.linspace(-15, 15, x.shape[1], device=fp16x3_gpu)
    peak = 15 - 2 * rising.abs()
    step = 15 * rising.sign()
    courses = torch.stack([rising, rising.flip(0), peak, -peak, step, -step, 0 * rising])
    x *= 10.0 ** courses.repeat(74, 1)[: len(x)]
    check_accuracy(kernel, x, weight, splits, kinds=len(courses))


@pytest.mark.parametrize("name", ["identity", "avgpool_gelu_scale_max"])
@pytest.mark.parametrize("values", ["columns", "compensated"])
@fp16x3_kernels
def test_fp16x3_of_columns_that_differ(
    kernel: str, values: str, name: str, fp16x3_gpu: str
) -> None:
    """By twelve orders of magnitude: those of x alone, and those of W too, the other way round,
    which factors make alike."""
    for m, n, k in ((200, 132, 520), (130, 60, 67), (70, 5, 4100)):
        generator = torch.Generator(fp16x3_gpu).manual_seed(n)
        x, weight = make_operands(values, m, n, k, generator)
        x, params = rows_for(kernel, x), some_params(name, n)
        for splits in (1, 2):
            plan = forced(kernel, name, params, (m, n, k), splits)
            y = run_plan(name, params, plan, x, weight)
            check(y, head_of(name, params), Linear(x, weight))


@pytest.mark.parametrize("odd", [1.0, 0.0])
@pytest.mark.parametrize("rows", [7, 1])
@fp16x3_kernels
def test_fp16x3_of_rows_of_w_that_do_not_follow(
    kernel: str, rows: int, odd: float, fp16x3_gpu: str
) -> None:
    """A column that is large in all rows but some, where a factor would make of an ordinary x an
    outlier that meets nothing: norm-wise accuracy all the same."""
    m, n, k = 130, 64, 512
    x, weight, _ = linear_like(m, n, k, fp16x3_gpu)
    weight[:-rows, 0] *= 2.0**30
    weight[-rows:, 0] *= odd
    plan = forced(kernel, "identity", [], (m, n, k), 1)
    difference = run_plan("identity", [], plan, x, weight) - x.double() @ weight.double().t()
    lengths = x.double().norm(dim=1)[:, None] * weight.double().norm(dim=1)
    assert (difference.abs() / lengths).max() < 2.0**-21


@pytest.mark.parametrize("special", [math.inf, math.nan])
@pytest.mark.parametrize("name", ["gelu", "avgpool_gelu_scale_max"])
@fp16x3_kernels
def test_fp16x3_of_columns_that_differ_and_are_not_finite(
    kernel: str, name: str, special: float, fp16x3_gpu: str
) -> None:
    """Factors of columns, with halves that are there and without, and rows that have none."""
    m, n, k = 150, 140, 260
    generator = torch.Generator(fp16x3_gpu).manual_seed(0)
    x, weight = make_operands("compensated", m, n, k, generator)
    params = some_params(name, n)
    x[3, 5], x[149, 200], weight[9, 7], weight[139, 0] = special, -special, special, -special
    pairs = torch.full((OPS._fp16_pairs_elements(n, k),), math.nan, device=x.device)
    OPS._split_rows(weight, 1, pairs)
    for splits in (1, 3):
        plan = forced(kernel, name, params, (m, n, k), splits)
        y = run_plan(name, params, plan, x, weight)
        check(y, head_of(name, params), Linear(x, weight))
        packed = forced(kernel, name, params, (m, n, k), splits, packed=True)
        assert same_bits(y, run_plan(name, params, packed, x, weight, None, pairs))


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


@fp16x3_kernels
def test_fp16x3_of_values_at_the_ends_of_the_range(kernel: str, fp16x3_gpu: str) -> None:
    """Rows of denormals, of next to the largest number, and of zeros; no factor of a scale may
    leave the range where the result does not. Where products are denormal their own spacing is the
    bound."""
    generator = torch.Generator().manual_seed(0)
    k, scales = 136, ((1e-40, 1e30, 1e-30, 3e38, 0.0), (1e38, 1e-30, 1e-42, 1.0, 0.0))
    # in float64, and rounded once: nothing on the way flushes denormals
    x, weight = (
        (
            torch.tensor(of, dtype=torch.float64).repeat_interleave(30)[:, None]
            * (torch.rand(150, k, generator=generator, dtype=torch.float64) * 2 - 1)
        )
        .float()
        .to(fp16x3_gpu)
        for of in scales
    )
    truth = x.double() @ weight.double().t()
    plan = forced(kernel, "identity", [], (150, 150, k), 1)
    y = run_plan("identity", [], plan, x, weight).double()
    norms = x.double().norm(dim=1)[:, None] * weight.double().norm(dim=1)
    known = truth.abs() <= 3e38
    for i in range(5):
        for j in range(5):
            block = (slice(30 * i, 30 * i + 30), slice(30 * j, 30 * j + 30))
            here = known[block]
            beyond = scales[0][i] * scales[1][j] > 1e38 and 0.0 not in (scales[0][i], scales[1][j])
            assert here.any() or beyond
            error = (y[block] - truth[block]).abs()[here]
            bound = (4e-7 * norms[block] + 1e-44)[here]
            assert (error <= bound).all(), f"rows of {scales[0][i]:g} by {scales[1][j]:g}"


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("n", [1, 5, 128, 999, 8192, 200_003])
def test_epilogue_of_a_matrix(name: str, n: int, gpu: str) -> None:
    params = some_params(name, n)
    wide = torch.randn(9, n + 3, device=gpu)
    for z in (wide[:, :n], wide[:, 1 : n + 1], wide[:1, :n].expand(5, n)):
        for bias in (None, torch.randn(n, device=gpu)):
            y = run_matrix(name, params, z, bias)
            check(y, head_of(name, params), Matrix(z, bias))


# ---- plans: numbers only, wherever the binary loads ----


@pytest.mark.parametrize("gpu", [(1, 80), (40, 86), (108, 80), plans.H200])
@pytest.mark.parametrize("name", BUILT)
def test_every_shape_has_a_plan(name: str, gpu: tuple[int, int]) -> None:
    sizes = (1, 3, 16, 129, 8192, 1_000_003)
    for m in sizes:
        for n in sizes:
            for k in (0, 1, 65, 8192):
                plan = OPS._plan(name, some_params(name, n), m, n, k, gpu)
                assert plan[2] >= 0
                assert plan[3] >= 0
                assert any(kernel in OPS._describe_plan(plan) for kernel in KERNELS)


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 120])
def test_plans_name_kernels_of_the_capability(capability: int) -> None:
    """The transposing mainloop wants more shared memory than most GPUs have."""
    plan = OPS._plan("gelu", [], 1024, 8192, 8192, (132, capability))
    assert ("128x128x32" in OPS._describe_plan(plan)) == (capability == 90)
    if capability == 90:
        assert STREAM_K in OPS._describe_plan(plan)  # 512 tiles are not four waves of 132
    name = "avgpool_gelu_scale_max"
    plan = OPS._plan(name, [1.0, 1.0], 1024, 512, 8192, (132, capability), 16)
    assert (SLICED_K in OPS._describe_plan(plan)) == (capability == 90)
    assert plan[1] > 1  # 32 tiles


@pytest.mark.parametrize("kernel", ["simt_128x128x32", SLICED_K, STREAM_K])
def test_the_transposing_kernels_leave_small_problems_to_others(kernel: str) -> None:
    for shape in ((127, 128, 32), (128, 127, 32), (128, 128, 31)):
        with pytest.raises(RuntimeError, match="cannot run"):
            OPS._plan_for("gelu", [], *shape, plans.H200, kernel, 1)
    assert OPS._plan_for("gelu", [], 128, 128, 32, plans.H200, kernel, 1)


@pytest.mark.parametrize("packed", [False, True])
def test_fp16x3_leaves_short_rows_to_float32(packed: bool) -> None:
    """A sum of few products is rounded less by FFMA than by halves (docs/accuracy.md)."""

    def in_halves(k: int) -> list[bool]:
        sizes = itertools.product((64, 1024, 16384, 262_144), (1, 64, 512, 16384))
        chosen = (OPS._plan("gelu", [], m, n, k, plans.H200, 1, True, packed) for m, n in sizes)
        return ["fp16x3" in OPS._describe_plan(plan) for plan in chosen]

    assert not any(any(in_halves(k)) for k in range(17))
    assert any(in_halves(64))


@pytest.mark.parametrize("capability", [80, 90])
def test_empty_problems_have_a_plan(capability: int) -> None:
    """A division by zero tiles ended the process."""
    for m, n in ((0, 64), (64, 0), (0, 0)):
        assert OPS._plan("gelu", [], m, n, 64, (132, capability))[2] == 0
    assert OPS._choose_folding(64, 8, 64, 16, (132, capability)) in (False, True)


def test_plans_stay_within_the_depth() -> None:
    """A split without terms would add a partial sum that nothing has written."""
    for kernel in KERNELS:
        with pytest.raises(RuntimeError, match=kernel):
            OPS._plan_for("identity", [], 64, 64, 4, plans.H200, kernel, 5)
        with pytest.raises(RuntimeError, match=kernel):
            OPS._plan_for("identity", [], 64, 64, 4, plans.H200, kernel, 0)


def test_a_problem_without_a_plan_says_so() -> None:
    """2^20 by 2^13 tiles are more than a launch takes: the plan that nothing beat was returned, for
    a kernel that could not run it."""
    with pytest.raises(RuntimeError, match="tiles"):
        OPS._plan("avgpool_gelu_scale_max", [1.0, 1.0], 2**27, 2**21, 1, plans.H200)


def test_folded_weights_get_short_chains() -> None:
    """One chain of 8192 additions of like signs is less accurate than the mean of 16 of them."""
    for folded, least in ((1, 1), (16, 2), (1024, 5)):
        plan = OPS._plan("avgpool_gelu_scale_max", [1.0, 1.0], 8192, 8192, 8192, plans.H200, folded)
        splits = re.search(r"(\d+) splits? of k", OPS._describe_plan(plan))
        assert (int(splits[1]) if splits else 1) >= least


def test_the_kernel_for_few_columns_is_for_rows_that_tma_reads() -> None:
    """And for the mode. Without them the plan is another one, and so may the choice of folding."""
    shape = (100_000, 64, 512, plans.H200)
    named = {
        (fp16x3, x_aligned): FP16X3_NARROW
        in OPS._describe_plan(OPS._plan("gelu", [], *shape, 1, fp16x3, False, x_aligned))
        for fp16x3 in (False, True)
        for x_aligned in (False, True)
    }
    assert [key for key, narrow in named.items() if narrow] == [(True, True)]
    for x_aligned in (False, True):
        assert OPS._choose_folding(100_000, 1024, 512, 16, plans.H200, True, x_aligned)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(RuntimeError, match="no_such_kernel"):
        OPS._plan_for("identity", [], 64, 64, 64, plans.H200, "no_such_kernel", 1)
    with pytest.raises(RuntimeError, match="no_such_epilogue"):
        OPS._plan("no_such_epilogue", [], 64, 64, 64, plans.H200)
    with pytest.raises(RuntimeError, match="identity"):
        OPS._plan("identity", [1.0], 64, 64, 64, plans.H200)


def test_folding_pays_for_many_rows_and_not_for_one() -> None:
    """For one row the pooled epilogue reads W once, as the fold alone would; for many, k times
    fewer FLOPs win."""
    assert OPS._choose_folding(1024, 8192, 8192, 16, plans.H200)
    assert not OPS._choose_folding(1, 8192, 8192, 16, plans.H200)
    assert not OPS._choose_folding(1024, 8192, 8192, 1, plans.H200)


def test_the_binary_and_the_table_name_the_same_epilogues() -> None:
    assert set(BUILT) == set(EPILOGUES)
