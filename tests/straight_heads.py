"""Both heads as functions of x, weight and bias, and the way around the straight one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

import cutlass_ops
from cutlass_ops import calls


class Subclass(Tensor):
    pass


def pooled_head(x: Tensor, weight: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    return cutlass_ops.linear_avgpool_gelu_scale_max(
        x, weight, bias, **({"kernel_size": 4} | options)
    )


HEADS: dict[str, Callable[..., Tensor]] = {
    "A": cutlass_ops.linear_gelu_softmax,
    "B": pooled_head,
}
both = pytest.mark.parametrize("op", HEADS.values(), ids=HEADS)


def long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "straight", lambda *operands: False)
