"""The suite in another precision: every op that is not told one runs in it, in the kernel that is
its own wherever that can run, whatever the cost model says of problems as small as those of tests.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cutlass_ops
from cutlass_ops import plans
from cutlass_ops.schemas import OPS

FP16X3 = "fp16x3_128x128x64"
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
    """The plan in as many splits as the sizes make, so that both ways of an epilogue come up."""

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
    ) -> plans.Plan:
        if fp16x3 and k > 0 and gpu.capability == 90:
            splits = min(1 + (m + n + k) % 3, k) if m * n <= MOST_ELEMENTS else 1
            return plans.Plan(*OPS._plan_for(name, params, m, n, k, gpu, FP16X3, splits, packed))
        return choose(name, params, m, n, k, gpu, folded, fp16x3, packed)

    return plan
