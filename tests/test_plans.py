"""What the binary plans: numbers only, wherever it loads."""

from __future__ import annotations

import itertools
import re

import pytest
from heads import some_params
from mode import SHORT_SUM
from native import BUILT, FP16X3_NARROW, KERNELS, OPS, SLICED_K, STREAM_K, needs_binary

from cutlass_ops import plans
from cutlass_ops.epilogues import EPILOGUES

pytestmark = needs_binary


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

    assert not any(any(in_halves(k)) for k in range(SHORT_SUM + 1))
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
