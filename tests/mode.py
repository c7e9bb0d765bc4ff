"""The suite in another precision: every op that is not told one runs in it, in a kernel that is
its own wherever one can run, whatever the cost model says of problems as small as those of tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from native import FP16X3, FP16X3_NARROW

import cutlass_ops
from cutlass_ops import plans
from cutlass_ops.schemas import OPS

MOST_COLUMNS = 192  # that the narrow kernel is given
SHORT_SUM = 16  # products that no plan gives to the tensor cores: kShortSum in csrc/plan.cpp
MOST_ELEMENTS = 2**26  # of a matrix that is computed in splits
PLAN_BY_COST, TRANSPOSED_BY_COST = plans.linear_plan, plans.transposed_plan
_MADE_OF_PLANS = (plans.pooled_route, plans.transposed_plan, plans.winner_plan)
MODULES_OF_THE_DEFAULT = (
    "test_precision",
    "test_config",
    "test_library",
    "test_warn",
    "test_validation",
)


_forced: dict[bool, Callable[..., plans.Plan]] = {}  # by whether short sums are forced, too


def enter(mode: str) -> None:
    """Sets the mode, for good, and makes the plans that `force` puts in place."""
    cutlass_ops.set_float32_precision(mode)
    if mode == "fp16x3":
        for short_sums in (False, True):
            _forced[short_sums] = _forced_plan(plans.linear_plan.__wrapped__, short_sums)


def force(short_sums: bool) -> None:
    """From now on, in the mode: what is planned and what others remember of it."""
    if _forced and plans.linear_plan is not _forced[short_sums]:
        plans.linear_plan = _forced[short_sums]  # type: ignore[assignment]
        plans.transposed_plan = _forced_transposed_plan  # type: ignore[assignment]
        forget_plans()


def forget_plans() -> None:
    """Those that are made of others, which are no longer in place."""
    for memory in _MADE_OF_PLANS:
        memory.cache_clear()


def _forced_transposed_plan(
    m: int, n: int, k: int, gpu: plans.Gpu, transposed: int, packed: bool = False
) -> plans.Plan | None:
    """For the products of backward: on tensor cores whatever that costs, but for short sums, which
    gradients are judged by closely."""
    plan = plans.linear_plan("identity", (), m, n, k, gpu, 1, True, packed, False)
    takes_halves = "fp16x3" in OPS._describe_plan(list(plan))
    return plan if takes_halves and k > SHORT_SUM else None


def _forced_plan(choose: Any, short_sums: bool) -> Callable[..., plans.Plan]:
    """The plan in as many splits, and in the one kernel or the other, as the sizes make, so that
    both ways of an epilogue come up.

    Sums of at most SHORT_SUM products, which no other plan gives to the kernels of the mode, are
    forced too, since most tests are small; but not where there is one column, and not in the
    properties of any inputs, whose bound they miss now and then: the product of two halves has an
    error of 2^-24 rms where a rounding has 2^-25.3.
    """

    @lru_cache
    def plan(
        name: str,
        params: tuple[float, ...],
        m: int,
        n: int,
        k: int,
        gpu: plans.Gpu,
        folded: int = 1,
        fp16x3: bool = False,
        packed: bool = False,
        x_aligned: bool = True,
    ) -> plans.Plan:
        least = 1 if short_sums and n > 1 else SHORT_SUM + 1
        if fp16x3 and n > 0 and k >= least and gpu.capability == 90:
            splits = min(1 + (m + n + k) % 3, k) if m * n <= MOST_ELEMENTS else 1
            narrow = n <= MOST_COLUMNS and x_aligned and (m + n + k) % 2 == 1
            kernel = FP16X3_NARROW if narrow else FP16X3
            return plans.Plan(*OPS._plan_for(name, params, m, n, k, gpu, kernel, splits, packed))
        return choose(name, params, m, n, k, gpu, folded, fp16x3, packed, x_aligned)

    return plan
