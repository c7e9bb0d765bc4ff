"""The two ops as the tests see them: how each is called, and the head it is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from heads import Head, pool_max_head, softmax_head
from hypothesis import settings
from operands import Linear
from oracle import Yardstick, check
from strategies import Case
from torch import Tensor

import cutlass_ops
from cutlass_ops import precision

OPCHECK_UTILS = (
    "test_schema",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


@dataclass(frozen=True)
class Fused:
    """One of the two ops with its options fixed."""

    label: str
    head: Head
    call: Callable[..., Tensor]  # (x, weight, bias) -> Tensor
    op: Any  # the registered op
    options: tuple[Any, ...]  # its arguments after (x, weight, bias), but for the precision

    def __repr__(self) -> str:
        return self.label

    def check(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, strict: bool = False
    ) -> Tensor:
        """Run the op, judge the result, run opcheck unless a thousand examples are asked for."""
        y = self.call(x, weight, bias)
        self.judge(y, x, weight, bias, strict=strict)
        run_opcheck(self.op, self.arguments(x, weight, bias))
        return y

    def arguments(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Any, ...]:
        """Those of the registered op, in the mode of the run."""
        return (x, weight, bias, *self.options, mode_on(x.device))

    def judge(
        self,
        y: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        strict: bool = False,
    ) -> Yardstick:
        return check(y, self.head, Linear(x, weight, bias), strict=strict)


def mode_on(device: torch.device | str) -> str:
    """The mode of the run, where the device has it: registered ops have no default and no fallback
    of their own."""
    mode = cutlass_ops.get_float32_precision()
    reason = precision.reason_not_native(mode, torch.device(device))
    return mode if reason is None else "ieee"


def softmax_op(approximate: str = "none") -> Fused:
    def call(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return cutlass_ops.linear_gelu_softmax(x, weight, bias, approximate=approximate)

    return Fused(
        label="softmax" + _suffix(approximate),
        head=softmax_head(approximate),
        call=call,
        op=torch.ops.cutlass_ops.linear_gelu_softmax.default,
        options=(approximate,),
    )


def pool_max_op(kernel_size: int, scale: float = 1.0, approximate: str = "none") -> Fused:
    def call(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return cutlass_ops.linear_avgpool_gelu_scale_max(
            x, weight, bias, kernel_size=kernel_size, scale=scale, approximate=approximate
        )

    return Fused(
        label=f"pool_max(k={kernel_size}, s={scale:g}{_suffix(approximate)})",
        head=pool_max_head(kernel_size, scale, approximate),
        call=call,
        op=torch.ops.cutlass_ops.linear_avgpool_gelu_scale_max.default,
        options=(kernel_size, scale, approximate),
    )


def op_of(case: Case, pooled: bool) -> Fused:
    if pooled:
        return pool_max_op(case.kernel_size, case.scale, case.approximate)
    return softmax_op(case.approximate)


def _suffix(approximate: str) -> str:
    return "" if approximate == "none" else f" {approximate}"


# One of each for tests of behaviour that does not depend on the options; N >= 1 is enough for both.
BOTH = (softmax_op(), pool_max_op(1, -2.0))


def run_opcheck(op: Any, args: tuple[Any, ...]) -> None:
    """torch.library.opcheck: schema, fake (shape, dtype, strides, device), tracing.

    It costs some 40 ms a call, too much for a thousand examples. It compares results with
    torch.testing, for which NaN differs from NaN, so operands with NaN are left out. It also makes
    a copy of each operand, of a size that it gets wrong (negative) for an empty one with strides.
    """
    if settings.default is not None and settings.default.max_examples >= 1000:
        return
    tensors = [a for a in args if isinstance(a, Tensor)]
    if any(a.numel() == 0 and a.stride() != a.new_empty(a.shape).stride() for a in tensors):
        return
    if all(bool(a.isfinite().all()) for a in tensors):
        torch.library.opcheck(op, args, test_utils=OPCHECK_UTILS)


def linear_like(
    m: int, n: int, k: int, device: str, *, seed: int = 0, requires_grad: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """x ~ N(0, 1), weight and bias as nn.Linear initialises them."""
    generator = torch.Generator(device).manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        spread = max(k, 1) ** -0.5
        return (torch.rand(shape, generator=generator, device=device) * 2 - 1) * spread

    x = torch.randn(m, k, generator=generator, device=device)
    return tuple(t.requires_grad_(requires_grad) for t in (x, rand(n, k), rand(n)))  # type: ignore[return-value]


def poison(device: str, *shape: int) -> None:
    """Fill memory of this size with NaN and free it, so that the next allocation is likely to be
    poison."""
    torch.full(shape, float("nan"), device=device)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))
