"""Every kernel of the binary forced, whatever the cost model would choose; plans without a GPU."""

from __future__ import annotations

import math
import re

import pytest
import torch
from fused import linear_like, same_bits
from heads import head_of, some_params
from native import (
    BUILT,
    KERNELS,
    OPS,
    guarded,
    guards_are_intact,
    needs_binary,
    plan_for,
    run_everywhere,
    run_matrix,
    run_plan,
)
from oracle import Head, Linear, Matrix, check, gelu_exact, softmax_head
from strategies import at_offset, lay_out
from torch.profiler import ProfilerActivity, profile

from cutlass_ops import _library
from cutlass_ops.epilogues import EPILOGUES

pytestmark = needs_binary

SPLITS = (1, 2, 3, 7)
# Exact tiles, ragged in every direction, thinner than a tile, one element, depth 0.
SHAPES = (
    (128, 256, 64),
    (129, 257, 67),
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
@pytest.mark.parametrize("window", [1, 2, 3, 8, 16, 17, 64, 100, 128, 256])
def test_every_kernel_with_every_kind_of_window(window: int, kernel: str, gpu: str) -> None:
    """Windows that divide the tile in the epilogue, and those that must go through memory."""
    shapes = ((130, 300, 33), (7, 512, 200))
    run_everywhere("avgpool_gelu_scale_max", kernel, shapes, (1, 3), [float(window), 2.0])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "layouts", [("offset1", "offset3"), ("padded", "row expanded"), ("row expanded", "padded")]
)
def test_every_kernel_with_every_row_stride(
    kernel: str, layouts: tuple[str, str], gpu: str
) -> None:
    """Unaligned pointers, odd leading dimensions and stride 0 reach the kernels as they are."""
    for m, n, k in ((65, 131, 40), (3, 129, 515)):
        x, weight, bias = linear_like(m, n, k, gpu)
        x, weight = lay_out(x, layouts[0]), lay_out(weight, layouts[1])
        bias = at_offset(bias, 1)
        for split in (1, 2):
            plan = plan_for("gelu", [], (m, n, k), kernel, split)
            assert plan is not None
            y = run_plan("gelu", [], plan, x, weight, bias)
            check(y, head_of("gelu", []), Linear(x, weight, bias))


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_keeps_nan_in_its_row(kernel: str, gpu: str) -> None:
    """Rows and columns of the last tile that do not exist are read as something: not as NaN."""
    m, n, k = 131, 133, 35
    x, weight, bias = linear_like(m, n, k, gpu)
    x[m - 1, k - 1] = math.nan
    for name in ("gelu", "avgpool_gelu_scale_max", "row_sum"):
        params = some_params(name, n)
        for split in (1, 3):
            plan = plan_for(name, params, (m, n, k), kernel, split)
            if plan is not None:
                y = run_plan(name, params, plan, x, weight, bias)
                bad = y.isnan().reshape(m, -1)
                assert bad[m - 1].all()
                assert not bad[: m - 1].any()


def aligned(rows: int, n: int, device: str) -> torch.Tensor:
    """Rows of which each is 16-byte aligned, with a gap behind it."""
    return torch.randn(rows, n + 8 + -n % 4, device=device)[:, :n] * 2


def gelu_or_not(activation: str) -> Head:
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return softmax_head(approximate, activation != "identity")


# The longest rows of each configuration of the row softmax, and what lies between and beyond:
# multiples of four take 128-bit accesses where all is aligned, the others single ones.
LONGEST_ROWS = (8, 64, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
OTHER_ROWS = (1, 3, 5, 9, 127, 516, 1000, 1028, 2047, 5000, 8196, 12_000, 16_385, 20_000, 32_772)
STREAMED_ROWS = (65_540, 70_001, 1_000_003)  # and, without clusters, rows beyond 32 768
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
def test_long_rows_run_in_clusters(n: int, gpu: str) -> None:
    """Without this the streaming kernel could do all the work, and nothing would fail."""
    built = _library.build_info()["architectures"]
    if torch.cuda.get_device_capability() != (9, 0) or not any(a.startswith("90") for a in built):
        pytest.skip("no code with clusters for this GPU: they came with compute capability 9.0")
    z = torch.randn(3, n, device=gpu)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        OPS._row_softmax(z, None, "identity", torch.empty_like(z))
        torch.cuda.synchronize()
    names = [event.key for event in recorded.key_averages() if "softmax" in event.key]
    if not names:
        pytest.skip("the profiler recorded no kernel")
    assert all("row_softmax_cluster" in name for name in names), names


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("n", [1, 5, 128, 999, 8192, 200_003])
def test_epilogue_of_a_matrix(name: str, n: int, gpu: str) -> None:
    params = some_params(name, n)
    wide = torch.randn(9, n + 3, device=gpu)
    for z in (wide[:, :n], wide[:, 1 : n + 1], wide[:1, :n].expand(5, n)):
        for bias in (None, torch.randn(n, device=gpu)):
            y = run_matrix(name, params, z, bias)
            check(y, head_of(name, params), Matrix(z, bias))


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


# ---- plans: numbers only, wherever the binary loads ----


@pytest.mark.parametrize("sms", [1, 40, 108, 132])
@pytest.mark.parametrize("name", BUILT)
def test_every_shape_has_a_plan(name: str, sms: int) -> None:
    sizes = (1, 3, 16, 129, 8192, 1_000_003)
    for m in sizes:
        for n in sizes:
            for k in (0, 1, 65, 8192):
                plan = OPS._plan(name, some_params(name, n), m, n, k, sms)
                assert plan[2] >= 0
                assert plan[3] >= 0
                assert any(kernel in OPS._describe_plan(plan) for kernel in KERNELS)


def test_plans_stay_within_the_depth() -> None:
    """A split without terms would add a partial sum that nothing has written."""
    for kernel in KERNELS:
        with pytest.raises(RuntimeError, match=kernel):
            OPS._plan_for("identity", [], 64, 64, 4, 132, kernel, 5)
        with pytest.raises(RuntimeError, match=kernel):
            OPS._plan_for("identity", [], 64, 64, 4, 132, kernel, 0)


def test_a_problem_without_a_plan_says_so() -> None:
    """2^20 by 2^13 tiles are more than a launch takes: the plan that nothing beat was returned, for
    a kernel that could not run it."""
    with pytest.raises(RuntimeError, match="tiles"):
        OPS._plan("avgpool_gelu_scale_max", [1.0, 1.0], 2**27, 2**21, 1, 132)


def test_folded_weights_get_short_chains() -> None:
    """One chain of 8192 additions of like signs is less accurate than the mean of 16 of them."""
    for folded, least in ((1, 1), (16, 2), (1024, 5)):
        plan = OPS._plan("avgpool_gelu_scale_max", [1.0, 1.0], 8192, 8192, 8192, 132, folded)
        assert int(re.search(r"(\d+) splits? of k", OPS._describe_plan(plan))[1]) >= least


def test_unknown_names_are_refused() -> None:
    with pytest.raises(RuntimeError, match="no_such_kernel"):
        OPS._plan_for("identity", [], 64, 64, 64, 132, "no_such_kernel", 1)
    with pytest.raises(RuntimeError, match="no_such_epilogue"):
        OPS._plan("no_such_epilogue", [], 64, 64, 64, 132)
    with pytest.raises(RuntimeError, match="identity"):
        OPS._plan("identity", [1.0], 64, 64, 64, 132)


def test_folding_pays_for_many_rows_and_not_for_one() -> None:
    """For one row the pooled epilogue reads W once, as the fold alone would; for many, k times
    fewer FLOPs win."""
    assert OPS._choose_folding(1024, 8192, 8192, 16, 132)
    assert not OPS._choose_folding(1, 8192, 8192, 16, 132)
    assert not OPS._choose_folding(1024, 8192, 8192, 1, 132)


def test_the_binary_and_the_table_name_the_same_epilogues() -> None:
    assert set(BUILT) == set(EPILOGUES)
