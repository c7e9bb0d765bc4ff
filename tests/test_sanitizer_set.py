"""The reduced set for compute-sanitizer: the branches of every kernel family, on edges."""

from __future__ import annotations

import math

import pytest
import torch
from fused import linear_like, pool_max_op, same_bits
from heads import head_of, softmax_head
from native import (
    FP16X3_KERNELS,
    KERNELS,
    OPS,
    STREAM_K,
    force_folding,
    gpu_of,
    guarded,
    guards_are_intact,
    needs_binary,
    run_everywhere,
    run_matrix,
)
from operands import Matrix
from oracle import check

from cutlass_ops import plans
from cutlass_ops.gradients import gelu_softmax_gradient

pytestmark = [needs_binary, pytest.mark.sanitizer]

# Scalar accesses, 128-bit accesses, the same of the mainloop that wants a tile at least.
SMALL_SHAPES = ((129, 257, 67), (3, 68, 132), (129, 132, 68))
# More blocks of k than the tensor-core kernels have stages.
FP16X3_SHAPES = ((129, 132, 520),)
# For the skinny kernel: whole chunks of k and a rest, with 16, 8, 2 and 1 rows a group; 128-bit
# copies, fewer columns than a warp takes, and 4-byte copies.
SKINNY_SHAPES = ((16, 70, 1032), (8, 36, 1100), (2, 3, 2100), (1, 64, 8200), (17, 33, 519))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["gelu", "avgpool_gelu_scale_max"])
def test_small_gemms(name: str, kernel: str, gpu: str) -> None:
    shapes = SMALL_SHAPES + (FP16X3_SHAPES if kernel in FP16X3_KERNELS else ())
    run_everywhere(name, kernel, shapes, (1, 2), [])


def test_small_stream_k(gpu: str) -> None:
    """Tiles in two pieces, and CTAs that have several of the second ones, one after the other."""
    tiles = 100  # on 132 CTAs: a share of 14 blocks each, and 32 helpers with tails of two
    assert tiles < gpu_of(gpu).sm_count < 2 * tiles
    run_everywhere("gelu", STREAM_K, ((130, 64 * tiles, 512),), (1,), [])


def test_small_skinny_gemms(gpu: str) -> None:
    """The copies run one chunk ahead of the sums, which only several chunks of k show."""
    run_everywhere("gelu", "skinny", SKINNY_SHAPES, (1, 2), [])


# A row in one thread, in part of a warp, in a warp, in a CTA, in its shared memory too, in a
# cluster (few rows, on compute capability 9.0) and streamed: whole fragments, and rows with edges.
SANITIZED_ROWS = (
    *(1, 4, 7, 39, 300, 601, 2047, 5000, 9001, 20_000, 20_477),
    *(32_767, 40_000, 40_001, 65_533, 66_000, 66_001),
)


@pytest.mark.parametrize(("rows", "n"), [*((3, n) for n in SANITIZED_ROWS), (70, 50_257)])
def test_small_row_kernels(rows: int, n: int, gpu: str) -> None:
    """Also: partial maxima combined by a thread (39) and by a warp."""
    z, bias = torch.randn(rows, n, device=gpu), torch.randn(n, device=gpu)
    _, out = guarded((rows, n), gpu)
    OPS._row_softmax(z, bias, "gelu", out)
    check(out.clone(), softmax_head(), Matrix(z, bias))
    y = run_matrix("avgpool_gelu_scale_max", [1.0, 1.0], z)
    check(y, head_of("avgpool_gelu_scale_max", [1.0, 1.0]), Matrix(z))
    OPS._row_softmax(z, bias, "gelu", z)
    assert same_bits(z, out.clone())


@pytest.mark.parametrize(
    ("rows", "groups", "n"),
    [
        *((rows, 0, n) for rows in (3, 130) for n in (1, 4, 7, 39, 300, 601)),
        *((3, 0, n) for n in (1500, 2047, 5001, 8192, 16_383, 16_388, 20_001)),
        *((300, 128, n) for n in (8, 40, 400)),
        *((5, 2, n) for n in (1000, 2000, 4096, 8192, 16_384)),
    ],
)
def test_small_row_gradients(rows: int, groups: int, n: int, gpu: str) -> None:
    """Each configuration of op A's backward, with sums where rows have no edges; a g that is one
    row for all, beside a boundary."""
    z, bias = torch.randn(rows, n, device=gpu), torch.randn(n, device=gpu)
    y = torch.empty_like(z)
    OPS._row_softmax(z, bias, "gelu", y)
    one = torch.randn(1, n + 1, device=gpu)[:, 1:].expand(rows, n)
    for g in (torch.randn(rows, n, device=gpu), one):
        memory, dz = guarded((rows, n), gpu)
        beside, sums = guarded((max(groups, 1), n), gpu)
        OPS._row_gradient(g, y, z, bias, "gelu", dz, sums if groups else None)
        assert guards_are_intact(memory)
        assert guards_are_intact(beside)
        expected = gelu_softmax_gradient(g, z + bias, y, "none")
        torch.testing.assert_close(dz, expected, rtol=1e-4, atol=1e-6)
        if groups:
            torch.testing.assert_close(sums.sum(0), dz.sum(0), rtol=1e-4, atol=1e-5)


def test_small_refinement(gpu: str) -> None:
    """An infinite x after folding: the rows that come out infinite are computed again, to their
    first NaN (0, 129) or to the end (64); where x is finite (5) they are left alone."""
    x, weight, bias = linear_like(130, 256, 64, gpu)
    weight[:, 7].abs_()
    x[129, 3], x[64, 7], x[0, 0] = math.inf, math.inf, -math.inf
    memory, out = guarded((130,), gpu)
    out.copy_(torch.where(x.isfinite().all(1), 1.5, math.inf))
    out[5], out[64] = math.inf, -math.inf
    OPS._refine_nonfinite(x, weight, bias, "avgpool_gelu_scale_max", [4.0, 1.0], out)
    assert guards_are_intact(memory)
    expected = torch.full((130,), 1.5)
    expected[[0, 129]], expected[[5, 64]] = math.nan, math.inf
    assert torch.equal(out.cpu().nan_to_num(-1.0), expected.nan_to_num(-1.0))


def test_small_folded_op(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold, GEMM on the means, combination and repair, one after another in one call."""
    force_folding(True, monkeypatch)
    assert plans.pooled_route("avgpool_gelu_scale_max", 40, 256, 64, 4, gpu_of(gpu)).fold
    x, weight, bias = linear_like(40, 256, 64, gpu)
    x[39, 3] = math.inf
    pool_max_op(4).judge(pool_max_op(4).call(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("columns", [64, 67])
@pytest.mark.parametrize("k", [3, 29, 100])
def test_small_fold(k: int, columns: int, gpu: str) -> None:
    """Vectors of columns and single ones; windows shorter than a batch of loads, longer, and in
    several groups of threads; the bias beside them."""
    weight, bias = torch.randn(207, columns, device=gpu), torch.randn(207, device=gpu)
    windows = 207 // k
    memory, out = guarded((windows, columns), gpu)
    beside, bias_out = guarded((windows,), gpu)
    OPS._fold_rows(weight, bias, k, out, bias_out)
    assert guards_are_intact(memory)
    assert guards_are_intact(beside)
    for rows, mean in ((weight, out), (bias, bias_out)):
        expected = rows[: windows * k].unflatten(0, (windows, k)).mean(1)
        torch.testing.assert_close(mean, expected)
