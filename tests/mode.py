"""The suite in another precision: every op that is not told one runs in it, in a kernel that is
its own wherever one can run, whatever the cost model says of problems as small as those of tests.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from native import FP16X3, FP16X3_NARROW

import cutlass_ops
from cutlass_ops import plans
from cutlass_ops.schemas import OPS

MOST_COLUMNS = 192  # that the narrow kernel is given
MOST_ELEMENTS = 2**26  # of a matrix that is computed in splits
PLAN_BY_COST = plans.linear_plan
MODULES_OF_THE_DEFAULT = ("test_precision", "test_config", "test_warn", "test_validation")


def enter(mode: str) -> None:
    """From now on, for good."""
    cutlass_ops.set_float32_precision(mode)
    if mode != "fp16x3":
        return
    plans.linear_plan = _forced(plans.linear_plan.__wrapped__)  # type: ignore[assignment]
    plans.pooled_route.cache_clear()


def _forced(choose: Any) -> Any:
    """The plan in as many splits, and in the one kernel or the other, as the sizes make, so that
    both ways of an epilogue come up.

    Not for one column. There a row has one element, and where one product makes up the sum and the
    bias cancels it, the bound is twice one rounding: the product of two halves, which has 2^-24 rms
    where a rounding has 2^-25.3, misses it now and then (docs/accuracy.md).
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
        if fp16x3 and n > 1 and k > 0 and gpu.capability == 90:
            splits = min(1 + (m + n + k) % 3, k) if m * n <= MOST_ELEMENTS else 1
            narrow = n <= MOST_COLUMNS and x_aligned and (m + n + k) % 2 == 1
            kernel = FP16X3_NARROW if narrow else FP16X3
            return plans.Plan(*OPS._plan_for(name, params, m, n, k, gpu, kernel, splits, packed))
        return choose(name, params, m, n, k, gpu, folded, fp16x3, packed, x_aligned)

    return plan
