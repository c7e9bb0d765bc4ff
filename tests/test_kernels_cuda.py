"""Every kernel of the binary forced, whatever the cost model would choose; plans without a GPU."""

from __future__ import annotations

import math
import re

import pytest
import torch
from fused import linear_like, pool_max_op, same_bits
from heads import head_of, is_pooled, some_params
from native import (
    BUILT,
    KERNELS,
    OPS,
    force_folding,
    guarded,
    guards_are_intact,
    needs_binary,
    plan_for,
    require_kernels,
    run_matrix,
    run_plan,
    sm_count,
)
from oracle import Linear, Matrix, check, softmax_head
from strategies import at_offset, lay_out

from cutlass_ops import plans
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
SMALL_SHAPES = ((129, 257, 67), (3, 68, 132))  # scalar accesses, 128-bit accesses
# For the skinny kernel: whole chunks of k and a rest, with 16, 8, 2 and 1 rows a group; 128-bit
# copies, fewer columns than a warp takes, and 4-byte copies.
SKINNY_SHAPES = ((16, 70, 1032), (8, 36, 1100), (2, 3, 2100), (1, 64, 8200), (17, 33, 519))


@pytest.fixture(scope="module")
def gpu(cuda: str) -> str:
    require_kernels(cuda)
    return cuda


def run_everywhere(name: str, kernel: str, shapes: tuple, splits: tuple, params: list) -> None:
    """Every shape and split that the kernel takes, judged; and it must take some."""
    ran = 0
    for m, n, k in shapes:
        x, weight, bias = linear_like(m, n, k, "cuda", seed=m * n)
        fitting = params or some_params(name, n)
        if is_pooled(name) and fitting[0] > n:
            continue
        for split in splits:
            plan = plan_for(name, fitting, (m, n, k), kernel, split)
            if plan is None:
                continue
            y = run_plan(name, fitting, plan, x, weight, bias)
            check(y, head_of(name, fitting), Linear(x, weight, bias))
            assert same_bits(y, run_plan(name, fitting, plan, x, weight, bias))
            ran += 1
    assert ran, f"{kernel} ran nowhere"


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


@pytest.mark.parametrize("n", [1, 2, 3, 127, 1000, 4096, 4097, 8192, 16385, 70_001, 1_000_003])
@pytest.mark.parametrize("activation", ["identity", "gelu", "gelu_tanh"])
def test_row_softmax(activation: str, n: int, gpu: str) -> None:
    """In registers, then streaming; out of place, in place, unaligned, with a row stride, with a
    bias."""
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    head = softmax_head(approximate, activation != "identity")
    wide = torch.randn(6, n + 5, device=gpu) * 2
    bias = torch.randn(n, device=gpu)
    for z in (wide[:, :n], wide[:, 1 : n + 1], wide[:1, 3 : n + 3].expand(4, n)):
        for b in (None, bias):
            memory, out = guarded(tuple(z.shape), gpu)
            OPS._row_softmax(z, b, activation, out)
            assert guards_are_intact(memory)
            check(out.clone(), head, Matrix(z, b))
    memory, inplace = guarded((6, n), gpu)
    inplace.copy_(wide[:, :n])
    OPS._row_softmax(inplace, None, activation, inplace)
    assert guards_are_intact(memory)
    check(inplace.clone(), head, Matrix(wide[:, :n].contiguous()))


@pytest.mark.parametrize("rows", [1, 1000, 70_000])
def test_row_softmax_of_many_rows(rows: int, gpu: str) -> None:
    for n in (1, 5, 40):
        z = torch.randn(rows, n, device=gpu)
        memory, out = guarded((rows, n), gpu)
        OPS._row_softmax(z, None, "gelu", out)
        assert guards_are_intact(memory)
        check(out.clone(), softmax_head(), Matrix(z))


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("n", [1, 5, 128, 999, 8192, 200_003])
def test_epilogue_of_a_matrix(name: str, n: int, gpu: str) -> None:
    params = some_params(name, n)
    wide = torch.randn(9, n + 3, device=gpu)
    for z in (wide[:, :n], wide[:, 1 : n + 1], wide[:1, :n].expand(5, n)):
        for bias in (None, torch.randn(n, device=gpu)):
            y = run_matrix(name, params, z, bias)
            check(y, head_of(name, params), Matrix(z, bias))


@pytest.mark.parametrize("columns", [1, 2, 4, 63, 64, 257, 8192])
@pytest.mark.parametrize("k", [1, 2, 3, 16, 100])
def test_fold_rows(columns: int, k: int, gpu: str) -> None:
    wide = torch.randn(313, columns + 3, device=gpu)
    for weight in (wide[:, :columns], wide[:, 3:], wide[:1, :columns].expand(313, columns)):
        memory, out = guarded((313 // k, columns), gpu)
        OPS._fold_rows(weight, k, out)
        assert guards_are_intact(memory)
        exact = weight[: 313 // k * k].double().unflatten(0, (313 // k, k)).mean(1)
        assert ((out.double() - exact).abs() <= 2**-24 * exact.abs() + 1e-13).all()


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


# ---- the reduced set for compute-sanitizer: the branches of every kernel family, on edges ----


@pytest.mark.sanitizer
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["gelu", "avgpool_gelu_scale_max"])
def test_small_gemms(name: str, kernel: str, gpu: str) -> None:
    run_everywhere(name, kernel, SMALL_SHAPES, (1, 2), [])


@pytest.mark.sanitizer
def test_small_skinny_gemms(gpu: str) -> None:
    """The copies run one chunk ahead of the sums, which only several chunks of k show."""
    run_everywhere("gelu", "skinny", SKINNY_SHAPES, (1, 2), [])


@pytest.mark.sanitizer
@pytest.mark.parametrize("n", [1, 39, 300, 2047, 5000, 9001, 40_000])
def test_small_row_kernels(n: int, gpu: str) -> None:
    """A row in one thread, in part of a warp, in a warp, in a CTA, and streamed; the last two with
    whole fragments and with a rest. Partial maxima combined by a thread (39) and by a warp."""
    z, bias = torch.randn(3, n, device=gpu), torch.randn(n, device=gpu)
    _, out = guarded((3, n), gpu)
    OPS._row_softmax(z, bias, "gelu", out)
    check(out.clone(), softmax_head(), Matrix(z, bias))
    y = run_matrix("avgpool_gelu_scale_max", [1.0, 1.0], z)
    check(y, head_of("avgpool_gelu_scale_max", [1.0, 1.0]), Matrix(z))


@pytest.mark.sanitizer
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


@pytest.mark.sanitizer
def test_small_folded_op(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold, GEMM on the means, combination and repair, one after another in one call."""
    force_folding(True, monkeypatch)
    assert plans.pooled_route("avgpool_gelu_scale_max", 40, 256, 64, 4, sm_count(gpu)).fold
    x, weight, bias = linear_like(40, 256, 64, gpu)
    x[39, 3] = math.inf
    pool_max_op(4).judge(pool_max_op(4).call(x, weight, bias), x, weight, bias)


@pytest.mark.sanitizer
@pytest.mark.parametrize("columns", [64, 67])
@pytest.mark.parametrize("k", [3, 100])
def test_small_fold(k: int, columns: int, gpu: str) -> None:
    """Vectors of columns and single ones; windows in one group of threads and in several."""
    weight = torch.randn(207, columns, device=gpu)
    windows = 207 // k
    memory, out = guarded((windows, columns), gpu)
    OPS._fold_rows(weight, k, out)
    assert guards_are_intact(memory)
    torch.testing.assert_close(out, weight[: windows * k].unflatten(0, (windows, k)).mean(1))
