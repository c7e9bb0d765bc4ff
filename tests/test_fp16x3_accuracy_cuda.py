"""How accurate the tensor-core kernels are: against float32, and on rows and columns that halves
hold only by their scales."""

from __future__ import annotations

import math

import pytest
import torch
from fused import linear_like, same_bits
from heads import head_of, some_params
from native import OPS, forced, fp16x3_kernels, needs_binary, rows_for, run_plan
from operands import Linear
from oracle import check
from strategies import make_operands
from torch import Tensor

pytestmark = needs_binary


def accurate_operands(positive: bool, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    draw = torch.rand if positive else torch.randn
    x, weight = (draw(512, 8192, generator=generator, device=device) for _ in range(2))
    return x, weight


def check_accuracy(kernel: str, x: Tensor, weight: Tensor, splits: int, kinds: int = 1) -> None:
    """Of every ``kinds``-th row together, beginning with each of the first ones."""
    plan = forced(kernel, "identity", [], (len(x), *weight.shape), splits)
    truth = x.double() @ weight.double().t()
    difference = run_plan("identity", [], plan, x, weight) - truth
    for kind in range(kinds):
        error = difference[kind::kinds].norm() / truth[kind::kinds].norm()
        assert error <= 4e-7, f"{error:.3e}, rows of kind {kind}"


@pytest.mark.parametrize("positive", [False, True])
@fp16x3_kernels
def test_fp16x3_is_as_accurate_as_float32(kernel: str, positive: bool, fp16x3_gpu: str) -> None:
    """Terms of one sign are what truncating adders lose most on."""
    check_accuracy(kernel, *accurate_operands(positive, fp16x3_gpu), splits=1)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("positive", [False, True])
@fp16x3_kernels
def test_fp16x3_of_rows_that_rise_and_fall(
    kernel: str, positive: bool, splits: int, fp16x3_gpu: str
) -> None:
    """By thirty orders of magnitude along k: a scale that follows a row changes between tiles of k,
    by a factor at a time, or at one step by all of them. Beside them rows of the usual kind."""
    x, weight = accurate_operands(positive, fp16x3_gpu)
    rising = torch.linspace(-15, 15, x.shape[1], device=fp16x3_gpu)
    peak = 15 - 2 * rising.abs()
    step = 15 * rising.sign()
    courses = torch.stack([rising, rising.flip(0), peak, -peak, step, -step, 0 * rising])
    x *= 10.0 ** courses.repeat(74, 1)[: len(x)]
    check_accuracy(kernel, x, weight, splits, kinds=len(courses))


@pytest.mark.parametrize("name", ["identity", "avgpool_gelu_scale_max"])
@pytest.mark.parametrize("values", ["columns", "compensated"])
@fp16x3_kernels
def test_fp16x3_of_columns_that_differ(
    kernel: str, values: str, name: str, fp16x3_gpu: str
) -> None:
    """By twelve orders of magnitude: those of x alone, and those of W too, the other way round,
    which factors make alike."""
    for m, n, k in ((200, 132, 520), (130, 60, 67), (70, 5, 4100)):
        generator = torch.Generator(fp16x3_gpu).manual_seed(n)
        x, weight = make_operands(values, m, n, k, generator)
        x, params = rows_for(kernel, x), some_params(name, n)
        for splits in (1, 2):
            plan = forced(kernel, name, params, (m, n, k), splits)
            y = run_plan(name, params, plan, x, weight)
            check(y, head_of(name, params), Linear(x, weight))


@pytest.mark.parametrize("odd", [1.0, 0.0])
@pytest.mark.parametrize("rows", [7, 1])
@fp16x3_kernels
def test_fp16x3_of_rows_of_w_that_do_not_follow(
    kernel: str, rows: int, odd: float, fp16x3_gpu: str
) -> None:
    """A column that is large in all rows but some, where a factor would make of an ordinary x an
    outlier that meets nothing: norm-wise accuracy all the same."""
    m, n, k = 130, 64, 512
    x, weight, _ = linear_like(m, n, k, fp16x3_gpu)
    weight[:-rows, 0] *= 2.0**30
    weight[-rows:, 0] *= odd
    plan = forced(kernel, "identity", [], (m, n, k), 1)
    difference = run_plan("identity", [], plan, x, weight) - x.double() @ weight.double().t()
    lengths = x.double().norm(dim=1)[:, None] * weight.double().norm(dim=1)
    assert (difference.abs() / lengths).max() < 2.0**-21


@pytest.mark.parametrize("special", [math.inf, math.nan])
@pytest.mark.parametrize("name", ["gelu", "avgpool_gelu_scale_max"])
@fp16x3_kernels
def test_fp16x3_of_columns_that_differ_and_are_not_finite(
    kernel: str, name: str, special: float, fp16x3_gpu: str
) -> None:
    """Factors of columns, with halves that are there and without, and rows that have none."""
    m, n, k = 150, 140, 260
    generator = torch.Generator(fp16x3_gpu).manual_seed(0)
    x, weight = make_operands("compensated", m, n, k, generator)
    params = some_params(name, n)
    x[3, 5], x[149, 200], weight[9, 7], weight[139, 0] = special, -special, special, -special
    pairs = torch.full((OPS._fp16_pairs_elements(n, k),), math.nan, device=x.device)
    OPS._split_rows(weight, 1, pairs)
    for splits in (1, 3):
        plan = forced(kernel, name, params, (m, n, k), splits)
        y = run_plan(name, params, plan, x, weight)
        check(y, head_of(name, params), Linear(x, weight))
        packed = forced(kernel, name, params, (m, n, k), splits, packed=True)
        assert same_bits(y, run_plan(name, params, packed, x, weight, None, pairs))


@pytest.mark.parametrize("special", [math.inf, math.nan, 0.0])
@pytest.mark.parametrize("of_w", ["a row", "an entry", "half"])
@pytest.mark.parametrize("n", [5, 140])
@fp16x3_kernels
def test_fp16x3_of_columns_that_differ_in_a_w_that_does_not_tell_everywhere(
    kernel: str, n: int, of_w: str, special: float, fp16x3_gpu: str
) -> None:
    """The first row is one of those that factors are taken from. What stands elsewhere is as
    accurate as without the special values."""
    m, k = 150, 260
    generator = torch.Generator(fp16x3_gpu).manual_seed(n)
    x, weight = make_operands("compensated", m, n, k, generator)
    if of_w == "half":
        weight[: n // 2] = special
    else:
        places = slice(None) if of_w == "a row" else weight[0].abs().argmax()
        weight[0, places] = special
    plan = forced(kernel, "identity", [], (m, n, k), 1)
    x = rows_for(kernel, x)
    y = run_plan("identity", [], plan, x, weight)
    check(y, head_of("identity", []), Linear(x, weight))


@fp16x3_kernels
def test_fp16x3_of_columns_that_differ_but_in_one_row(kernel: str, fp16x3_gpu: str) -> None:
    """Which costs the other rows of W some bits, and no more."""
    m, n, k = 150, 140, 260
    generator = torch.Generator(fp16x3_gpu).manual_seed(0)
    x, weight = make_operands("compensated", m, n, k, generator)
    weight[-1] = torch.randn(k, generator=generator, device=fp16x3_gpu)
    x = rows_for(kernel, x)
    y = run_plan("identity", [], forced(kernel, "identity", [], (m, n, k), 1), x, weight)
    error = y - x.double() @ weight.double().t()
    terms = x.double().abs() @ weight[:-1].double().abs().t()
    assert (error[:, :-1].abs() <= 2.0**-17 * terms).all()
    norms = x.double().norm(dim=1) * weight[-1].double().norm()
    assert (error[:, -1].abs() <= 2.0**-21 * norms).all()


@fp16x3_kernels
def test_fp16x3_of_values_at_the_ends_of_the_range(kernel: str, fp16x3_gpu: str) -> None:
    """Rows of denormals, of next to the largest number, and of zeros; no factor of a scale may
    leave the range where the result does not. Where products are denormal their own spacing is the
    bound."""
    generator = torch.Generator().manual_seed(0)
    k, scales = 136, ((1e-40, 1e30, 1e-30, 3e38, 0.0), (1e38, 1e-30, 1e-42, 1.0, 0.0))
    # in float64, and rounded once: nothing on the way flushes denormals
    x, weight = (
        (
            torch.tensor(of, dtype=torch.float64).repeat_interleave(30)[:, None]
            * (torch.rand(150, k, generator=generator, dtype=torch.float64) * 2 - 1)
        )
        .float()
        .to(fp16x3_gpu)
        for of in scales
    )
    truth = x.double() @ weight.double().t()
    plan = forced(kernel, "identity", [], (150, 150, k), 1)
    y = run_plan("identity", [], plan, x, weight).double()
    norms = x.double().norm(dim=1)[:, None] * weight.double().norm(dim=1)
    known = truth.abs() <= 3e38
    for i in range(5):
        for j in range(5):
            block = (slice(30 * i, 30 * i + 30), slice(30 * j, 30 * j + 30))
            here = known[block]
            beyond = scales[0][i] * scales[1][j] > 1e38 and 0.0 not in (scales[0][i], scales[1][j])
            assert here.any() or beyond
            error = (y[block] - truth[block]).abs()[here]
            bound = (4e-7 * norms[block] + 1e-44)[here]
            assert (error <= bound).all(), f"rows of {scales[0][i]:g} by {scales[1][j]:g}"
