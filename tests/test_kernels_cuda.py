"""Every kernel of the binary forced, whatever the cost model would choose."""

from __future__ import annotations

import math

import pytest
import torch
from fused import linear_like, same_bits
from heads import head_of, softmax_head, some_params
from native import (
    BUILT,
    KERNELS,
    OPS,
    STREAM_K,
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
from operands import Linear, Matrix
from oracle import check
from strategies import at_offset, lay_out

pytestmark = needs_binary

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
            z, kept = (torch.full_like(out, math.nan) for _ in range(2))
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
        out.fill_(math.nan)
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
                out.fill_(math.nan)
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


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("n", [1, 5, 128, 999, 8192, 200_003])
def test_epilogue_of_a_matrix(name: str, n: int, gpu: str) -> None:
    params = some_params(name, n)
    wide = torch.randn(9, n + 3, device=gpu)
    for z in (wide[:, :n], wide[:, 1 : n + 1], wide[:1, :n].expand(5, n)):
        for bias in (None, torch.randn(n, device=gpu)):
            y = run_matrix(name, params, z, bias)
            check(y, head_of(name, params), Matrix(z, bias))
