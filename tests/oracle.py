"""The tests' own truth, and the checker that judges a result against it.

Truth is a float64 composition of torch.nn.functional and erfc (operands.py, heads.py); it never
calls the package. The bound is evidence, not a chosen tolerance: the largest relative L2 error of a
result may be twice the yardstick, plus four units of 2^-24. The yardstick is the error of eager
float32 PyTorch on the same input and device; with `strict` that is all.

Otherwise a result that misses this plain bound gets an allowance. Eager may be exact by luck, on a
single short row or where all terms are alike, and twice nothing is a bound that no other order of
summation keeps. The yardstick then becomes the largest error over all `eager_forms`, on the same
input and, if that is not enough, on 12 and on 100 more inputs nearby. One of the forms is not
PyTorch's own: eager's z with the errors of half its elements turned round. `tally` counts the
results that pass by the allowance alone; pytest's summary has a line on it, and the run fails where
they are more than MOST_ALLOWED of all. (gradients.py has an allowance of the same kind, uncounted.)

A single element can differ by more than the bound between two honest summation orders, so elements
are held to a loose bound only, and exactly where they are NaN or infinite.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from heads import Head
from operands import Linear, Matrix
from torch import Tensor

UNIT = 2.0**-24  # half the spacing of float32 just above 1
# A float32 sum whose terms add up to more than this may overflow in one order and not in another.
OVERFLOW = 1e38


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Eager PyTorch as the yardstick needs it: no TF32, no autocast, whatever the test has set."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def relative_l2(difference: Tensor, reference: Tensor, per_row: bool) -> float:
    """The largest relative L2 error; where the reference is all zero, the absolute one."""
    if difference.numel() == 0:
        return 0.0
    if per_row and difference.dim() > 1:
        error, norm = difference.norm(dim=-1), reference.norm(dim=-1)
    else:
        error, norm = difference.norm(), reference.norm()
    return float((error / torch.where(norm > 0, norm, torch.ones_like(norm))).max())


def eager_forms(head: Head, operands: Linear | Matrix) -> list[Callable[[Any], Tensor]]:
    """Ways to write the head in eager float32: first the plain one, then other orders of summation.

    They matter where all terms or all columns are alike: there rounding errors do not average out,
    each order has its own, and a luckier order is no yardstick for the others.
    """

    def plain(o: Any) -> Tensor:
        return head.eager(o.eager())

    def errors_with_other_signs(o: Any) -> Tensor:
        """Equal columns whose equal errors cancel in the head are luck, too."""
        z = o.eager()
        with torch.no_grad():
            generator = torch.Generator(z.device).manual_seed(z.numel())
            flip = torch.rand(z.shape, generator=generator, device=z.device) < 0.5
            moved = torch.where(flip, 2 * (o.exact() - z), 0.0).nan_to_num(0.0, 0.0, 0.0)
        return head.eager(z + moved.to(z.dtype))

    def windows_turned_round(o: Any) -> Tensor:
        """A window of two large terms that nearly cancel may add up exactly in eager's order."""
        z = o.eager()
        whole = z.shape[-1] // head.kernel_size * head.kernel_size
        windows = z[:, :whole].unflatten(-1, (whole // head.kernel_size, head.kernel_size))
        return head.eager(windows.flip(-1).flatten(-2))

    forms: list[Callable[[Any], Tensor]] = [plain, errors_with_other_signs]
    if head.kernel_size > 1:
        forms.append(windows_turned_round)
    if isinstance(operands, Linear):
        forms.append(lambda o: head.eager(o.eager(chunks=8)))
        forms.append(lambda o: head.eager(o.eager(chunks=64)))  # up to 64 terms: one by one
        forms.append(lambda o: head.eager(o.eager_transposed()))
        if head.folded is not None:
            folded, kernel_size = head.folded, head.kernel_size
            forms.append(lambda o: folded.eager(o.fold(kernel_size).eager()))
    return forms


@dataclass
class Yardstick:
    """Errors of eager float32: the largest in the norm of the bound, the largest of one element."""

    error: float = 0.0
    element: float = 0.0

    def include(self, result: Tensor, truth: Tensor, norms_of: Tensor, per_row: bool) -> None:
        # What is not finite is not measured; eager may overflow where the truth does not.
        counts = result.isfinite() & truth.isfinite()
        difference = torch.where(counts, result.double() - truth, 0.0)
        self.error = max(self.error, relative_l2(difference, norms_of, per_row))
        if difference.numel():
            self.element = max(self.element, float(difference.abs().max()))

    @property
    def bound(self) -> float:
        return 2 * self.error + 4 * UNIT


# Inputs nearby whose errors the allowance takes in, one number after another until the result
# passes; 0 is the input itself. The first runs tell the scale of the error: beyond HOPELESS times
# the bound they leave, luck is no excuse.
NEARBY_RUNS = (0, 12, 100)
HOPELESS = 16


AnyOperands = TypeVar("AnyOperands", Linear, Matrix)


def inputs_nearby(
    operands: AnyOperands, head: Head, generator: torch.Generator
) -> Iterator[AnyOperands]:
    """The input itself, and then all nearby that an allowance takes in."""
    yield operands
    for _ in range(sum(NEARBY_RUNS)):
        yield operands.nearby(generator, head.kernel_size)


# Results that passed, and those among them that needed the allowance; strict ones do not count.
tally = Counter(judged=0, allowed=0)
MOST_ALLOWED, ENOUGH = 0.05, 200  # the largest share of them, once so many were judged


def allowance_is_overused() -> bool:
    return tally["judged"] >= ENOUGH and tally["allowed"] > MOST_ALLOWED * tally["judged"]


@torch.no_grad()
def check(
    actual: Tensor, head: Head, operands: Linear | Matrix, *, strict: bool = False
) -> Yardstick:
    """Assert that `actual` is head(operands) within the bound; returns the yardstick it was held
    to."""
    z = operands.exact()
    truth = head.exact(z)
    assert actual.dtype == torch.float32, actual.dtype
    assert actual.is_contiguous(), (actual.shape, actual.stride())
    leading = (operands.x if isinstance(operands, Linear) else operands.z).shape[:-1]
    assert actual.shape == leading + truth.shape[1:], (actual.shape, leading, truth.shape)
    actual = actual.reshape(truth.shape)
    yardstick = Yardstick()
    if truth.numel() == 0:
        return yardstick

    columns = truth.reshape(len(truth), -1)
    known = ~operands.at_risk(OVERFLOW / max(z.shape[-1], 1))
    known &= ~((columns.abs() > OVERFLOW) & columns.isfinite()).any(dim=-1)
    result, truth = actual[known], truth[known]
    _check_special(result, truth)
    if head.is_softmax and result.numel():
        sums = result.double().sum(-1)
        off = float(torch.where(sums.isfinite(), sums - 1, 0.0).abs().max())
        assert off <= 1e-5, f"a row sums to 1 {off:+.2e}"
    difference = torch.where(truth.isfinite(), result.double() - truth, 0.0)
    truth = torch.where(truth.isfinite(), truth, 0.0)
    error = relative_l2(difference, truth, head.per_row)
    with full_float32():
        forms = eager_forms(head, operands)
        yardstick.include(forms[0](operands)[known], truth, truth, head.per_row)
        passed = plain = _within(error, difference, truth, yardstick)
        generator = torch.Generator(actual.device).manual_seed(len(truth))
        for runs in () if strict else NEARBY_RUNS:
            if passed or (runs == NEARBY_RUNS[-1] and error > HOPELESS * yardstick.bound):
                break
            others = (operands.nearby(generator, head.kernel_size) for _ in range(runs))
            for near in others if runs else (operands,):
                near_truth = head.exact(near.exact())[known]
                for form in forms:
                    yardstick.include(form(near)[known], near_truth, truth, head.per_row)
            passed = _within(error, difference, truth, yardstick)
    assert error <= yardstick.bound, f"error {error:.3e} exceeds the bound {yardstick.bound:.3e}"
    assert passed, f"an element is off by {float(difference.abs().max()):.3e}"
    if not strict:
        tally["judged"] += 1
        tally["allowed"] += not plain
    return yardstick


def _within(error: float, difference: Tensor, truth: Tensor, yardstick: Yardstick) -> bool:
    loose = 32 * yardstick.element + 1e-4 * truth.abs()
    return error <= yardstick.bound and bool((difference.abs() <= loose).all())


def _check_special(actual: Tensor, truth: Tensor) -> None:
    """NaN and infinities stand exactly where the truth has them."""
    assert torch.equal(actual.isnan(), truth.isnan()), "NaN in the wrong places"
    assert torch.equal(actual.isposinf(), truth.isposinf()), "+inf in the wrong places"
    assert torch.equal(actual.isneginf(), truth.isneginf()), "-inf in the wrong places"


def tf32_round(t: Tensor) -> Tensor:
    """Round float32 to the 10 mantissa bits of TF32, to nearest even, as tensor cores are fed."""
    bits = t.contiguous().view(torch.int32)
    bits = bits + 0x0FFF + ((bits >> 13) & 1)
    return (bits & ~0x1FFF).view(torch.float32)
