"""Row softmax and fold: every configuration, at and beside its edge, on special values too."""

from __future__ import annotations

import math

import pytest
import torch
from fused import same_bits
from heads import Head, gelu_exact, softmax_head
from native import OPS, guarded, guards_are_intact, needs_binary
from operands import Matrix
from oracle import check
from torch.profiler import ProfilerActivity, profile

from cutlass_ops import _library

pytestmark = needs_binary


def aligned(rows: int, n: int, device: str) -> torch.Tensor:
    """Rows of which each is 16-byte aligned, with a gap behind it."""
    return torch.randn(rows, n + 8 + -n % 4, device=device)[:, :n] * 2


def gelu_or_not(activation: str) -> Head:
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return softmax_head(approximate, activation != "identity")


# The longest rows of each configuration of the row softmax, and what lies between and beyond: with
# edges where they are no multiples of four or begin beside a 16-byte boundary.
LONGEST_ROWS = (8, 64, 512, 1024, 2048, 4096, 8192, 16384, 28_672, 32768, 65536)
OTHER_ROWS = (1, 3, 5, 9, 127, 516, 1000, 1028, 2047, 5000, 8196, 12_000, 16_385, 20_000, 32_772)
MANY_LONG_ROWS = (32_772, 50_260, 65536)  # one CTA each, and a cluster where there are few
MANY = 70  # more than an H200 has places for such clusters
STREAMED_ROWS = (65_540, 70_001, 1_000_003)
ROWS = (*LONGEST_ROWS, *OTHER_ROWS, 50_257, *STREAMED_ROWS)


@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("activation", ["identity", "gelu", "gelu_tanh"])
def test_row_softmax(activation: str, n: int, gpu: str) -> None:
    """Out of place, in place, aligned and not, with a row stride, with a bias, aligned and not."""
    head = gelu_or_not(activation)
    wide = torch.randn(6, n + 5, device=gpu) * 2
    bias = torch.randn(n + 1, device=gpu)
    views = (wide[:, :n], wide[:, 1 : n + 1], wide[:1, 3 : n + 3].expand(4, n), aligned(6, n, gpu))
    for z in views:
        for b in (None, bias[:n], bias[1:]):
            memory, out = guarded(tuple(z.shape), gpu)
            OPS._row_softmax(z, b, activation, out)
            assert guards_are_intact(memory)
            check(out.clone(), head, Matrix(z, b))
    memory, inplace = guarded((6, n), gpu)
    inplace.copy_(wide[:, :n])
    OPS._row_softmax(inplace, None, activation, inplace)
    assert guards_are_intact(memory)
    check(inplace.clone(), head, Matrix(wide[:, :n].contiguous()))


@pytest.mark.parametrize("less", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("longest", "rows"),
    [*((n, 5) for n in (*LONGEST_ROWS, STREAMED_ROWS[0])), *((n, MANY) for n in MANY_LONG_ROWS)],
)
def test_row_softmax_beside_boundaries(longest: int, rows: int, less: int, gpu: str) -> None:
    """Source, bias and output begin at every offset from a 16-byte boundary, alike and not, and
    every row at another one. The bits depend on the offset of the output alone."""
    n = longest - less
    z, bias = torch.randn(rows, n, device=gpu) * 2, torch.randn(n, device=gpu)
    for offset in range(4):
        results = []
        for begin in {offset, 0, 3}:
            memory, flat = guarded((rows * n + 4,), gpu)
            source_memory, source = guarded((rows * n + 4,), gpu)
            addend = torch.empty(n + 4, device=gpu)[begin : begin + n].copy_(bias)
            moved = source[begin : begin + rows * n].view(rows, n).copy_(z)
            out = flat[offset : offset + rows * n].view(rows, n)
            OPS._row_softmax(moved, addend, "gelu", out)
            results.append(out.clone())
            if begin == offset:
                check(results[-1], softmax_head(), Matrix(z, bias))
                OPS._row_softmax(moved, addend, "gelu", moved)
                results.append(moved.clone())
            for beside in (memory, source_memory):
                assert guards_are_intact(beside)
            assert flat[:offset].isnan().all()
            assert flat[offset + rows * n :].isnan().all()
        if n > 8:  # shorter rows have a kernel for what is aligned, and one for what is not
            assert all(same_bits(results[0], other) for other in results)


@pytest.mark.parametrize("less", [0, 3])
@pytest.mark.parametrize("longest", [*LONGEST_ROWS, STREAMED_ROWS[0]])
@pytest.mark.parametrize("activation", ["identity", "gelu", "gelu_tanh"])
def test_row_softmax_of_special_rows(activation: str, longest: int, less: int, gpu: str) -> None:
    """NaN and +inf make their row NaN and no other, -inf is a zero, unless it is all there is; a
    quarter of a row, as a CTA of a cluster has it, may be. GELU(-inf) is NaN."""
    n = longest - less
    z = torch.randn(12, n, device=gpu)
    z[1, n // 3] = z[2, -1] = z[3, 0] = math.nan
    z[4, 0] = z[5, -1] = math.inf
    z[6] = -math.inf
    z[7, : n // 2 + 1] = z[8, n // 4 :] = -math.inf
    z[9] *= 1e3
    z[10] = 3.5
    z[7, -1] = 1.0  # where rows are short
    g = z.double()
    if activation != "identity":
        g = gelu_exact(g, "tanh" if activation == "gelu_tanh" else "none")
    memory, out = guarded((12, n), gpu)
    OPS._row_softmax(z, None, activation, out)
    assert guards_are_intact(memory)
    expected = torch.softmax(g, -1)
    # The tolerance is that of rounding z - max where both are in the thousands.
    torch.testing.assert_close(out.double(), expected, rtol=5e-4, atol=1e-30, equal_nan=True)
    again = torch.empty_like(z)
    OPS._row_softmax(z, None, activation, again)
    assert same_bits(out.clone(), again)


@pytest.mark.parametrize("rows", [1, 1003, 70_000])
def test_row_softmax_of_many_rows(rows: int, gpu: str) -> None:
    """Several rows a CTA, and a last CTA that is not full."""
    for n in (1, 5, 40) if rows > 2000 else (1, 5, 40, 300, 1000):
        z = torch.randn(rows, n, device=gpu)
        memory, out = guarded((rows, n), gpu)
        OPS._row_softmax(z, None, "gelu", out)
        assert guards_are_intact(memory)
        check(out.clone(), softmax_head(), Matrix(z))


@pytest.mark.parametrize("n", [40_000, 50_257])
@pytest.mark.parametrize(
    ("rows", "kernel"), [(3, "row_softmax_cluster"), (MANY, "row_softmax_shared")]
)
def test_long_rows_stay_on_chip(rows: int, kernel: str, n: int, gpu: str) -> None:
    """Without this the streaming kernel could do all the work, and nothing would fail."""
    built = _library.build_info()["architectures"]
    if torch.cuda.get_device_capability() != (9, 0) or not any(a.startswith("90") for a in built):
        pytest.skip("no code with clusters for this GPU: they came with compute capability 9.0")
    z = torch.randn(rows, n, device=gpu)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        OPS._row_softmax(z, None, "identity", torch.empty_like(z))
        torch.cuda.synchronize()
    names = [event.key for event in recorded.key_averages() if "softmax" in event.key]
    if not names:
        pytest.skip("the profiler recorded no kernel")
    assert all(kernel in name for name in names), names


def rounded_mean(rows: torch.Tensor, k: int, mean: torch.Tensor) -> bool:
    """Whether `mean` is that of every k rows, in float64 and then rounded once."""
    windows = len(rows) // k
    exact = rows[: windows * k].double().unflatten(0, (windows, k)).mean(1)
    return bool(((mean.double() - exact).abs() <= 2**-24 * exact.abs() + 1e-13).all())


@pytest.mark.parametrize("columns", [0, 1, 2, 4, 63, 64, 256, 257, 8192])
@pytest.mark.parametrize("k", [1, 2, 3, 7, 8, 12, 15, 16, 17, 40, 63, 64, 100, 313])
def test_fold_rows(columns: int, k: int, gpu: str) -> None:
    """Every batch of loads and every rest of one; the bias in the same launch, or none."""
    wide = torch.randn(313, columns + 4 - columns % 4, device=gpu)
    bias = torch.randn(314, device=gpu)
    windows = 313 // k
    views = (wide[:, :columns], wide[:, 1 : columns + 1], wide[:1, :columns].expand(313, columns))
    for weight in views:
        for b in (None, bias[:313], bias[1:]):
            memory, out = guarded((windows, columns), gpu)
            beside, bias_out = guarded((windows,), gpu)
            OPS._fold_rows(weight, b, k, out, None if b is None else bias_out)
            assert guards_are_intact(memory)
            assert guards_are_intact(beside)
            assert rounded_mean(weight, k, out)
            assert bias_out.isnan().all() if b is None else rounded_mean(b, k, bias_out)


@pytest.mark.parametrize("columns", [68, 67])
@pytest.mark.parametrize("k", [4, 16, 100])
def test_fold_rows_of_special_values(k: int, columns: int, gpu: str) -> None:
    """A window of large weights does not overflow, and NaN and infinities stay in theirs."""
    weight, bias = torch.randn(3 * k, columns, device=gpu), torch.randn(3 * k, device=gpu)
    weight[:k, 1], bias[:k] = 3e38, 3e38
    weight[k, 2], weight[2 * k - 1, 3], weight[-1, 4] = math.nan, math.inf, -math.inf
    bias[2 * k - 1], bias[-1] = math.inf, math.nan
    out, bias_out = torch.empty(3, columns, device=gpu), torch.empty(3, device=gpu)
    OPS._fold_rows(weight, bias, k, out, bias_out)
    for rows, mean in ((weight, out), (bias, bias_out)):
        exact = rows.double().unflatten(0, (3, k)).mean(1).float()
        torch.testing.assert_close(mean, exact, rtol=2e-7, atol=1e-13, equal_nan=True)
    assert out[0, 1].isfinite()
    assert bias_out[0].isfinite()
