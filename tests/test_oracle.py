"""The checker itself: what it must let pass, and slips of precision that it must catch."""

from __future__ import annotations

import math
from collections import Counter

import oracle
import pytest
import torch
import torch.nn.functional as F
from fused import BOTH, Fused, linear_like, pool_max_op, softmax_op
from gradients import check_gradients
from heads import gelu_exact, plain_head, pool, pool_max_head, softmax_head
from operands import Linear, Matrix
from oracle import UNIT, check, tf32_round
from torch import Tensor

import cutlass_ops

# Positive scales: near the minimum of GELU, which a negative one picks, no slip shows.
OPS = (softmax_op(), softmax_op("tanh"), pool_max_op(1), pool_max_op(16, 2.0))
every_op = pytest.mark.parametrize("op", OPS, ids=repr)
KINDS = ("random", "positive", "few rows")


def operands_of(kind: str, device: str) -> Linear:
    x, weight, bias = linear_like(1 if kind == "few rows" else 64, 128, 256, device, seed=3)
    if kind == "positive":
        x, weight = x.abs(), weight.abs() / 4
    return Linear(x * 4, weight, bias)


@every_op
@pytest.mark.parametrize("kind", KINDS)
def test_honest_float32_passes(op: Fused, kind: str, device: str) -> None:
    """Eager PyTorch, the terms in another order, and the float64 result rounded once."""
    operands = operands_of(kind, device)
    eager = op.head.eager(operands.eager())
    check(eager, op.head, operands, strict=True)
    check(op.head.exact(operands.exact()).float(), op.head, operands, strict=True)
    backwards = Linear(operands.x.flip(1), operands.weight.flip(1), operands.bias)
    check(op.head.eager(backwards.eager()), op.head, operands)


@every_op
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["both", "x", "weight"])
def test_tf32_operands_fail(op: Fused, kind: str, which: str, device: str) -> None:
    """Operands rounded to TF32 and everything else in float32, or even float64: caught each time,
    with the allowance for luck and without."""
    operands = operands_of(kind, device)
    x = operands.x if which == "weight" else tf32_round(operands.x)
    weight = operands.weight if which == "x" else tf32_round(operands.weight)
    rounded = Linear(x, weight, operands.bias)
    for result in (op.head.eager(rounded.eager()), op.head.exact(rounded.exact()).float()):
        for strict in (True, False):
            with pytest.raises(AssertionError, match=r"error|element"):
                check(result, op.head, operands, strict=strict)


def test_tf32_rounding_is_to_ten_bits_and_to_nearest_even() -> None:
    ulp = 2.0**-10
    t = torch.tensor([1.0, 1 + ulp, 1 + ulp / 2, 1 + 1.5 * ulp, 1 + 0.51 * ulp, -1 - 0.49 * ulp])
    assert tf32_round(t).tolist() == [1.0, 1 + ulp, 1.0, 1 + 2 * ulp, 1 + ulp, -1.0]
    noise = torch.rand(1000) + 1
    assert 0.4 * ulp < (tf32_round(noise) - noise).abs().max() <= 0.5 * ulp


@every_op
def test_tf32_in_backward_fails(op: Fused, device: str) -> None:
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, t: Tensor) -> Tensor:
            return t.clone()

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            return tf32_round(grads[0])

    def call(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return op.call(Rounded.apply(x), Rounded.apply(weight), bias)

    slipped = Fused(op.label, op.head, call, op.op, op.options)
    operands = operands_of("random", device)
    check_gradients(op, operands)
    with pytest.raises(AssertionError, match="grad of"):
        check_gradients(slipped, operands)


def slip_exp(z: Tensor) -> Tensor:
    """exp with a relative error of 1e-5, as an approximation of few terms has it."""
    e = torch.exp(z - z.amax(-1, keepdim=True)) * (1 + 1e-5 * torch.sin(z * 1e3))
    return e / e.sum(-1, keepdim=True)


def test_a_fast_exp_fails(device: str) -> None:
    z = torch.randn(64, 256, device=device)
    with pytest.raises(AssertionError, match="error"):
        check(slip_exp(z), softmax_head(activation=False), Matrix(z))


def test_the_tanh_form_in_place_of_erf_fails(device: str) -> None:
    operands = operands_of("positive", device)
    # About -1, where the forms differ and eager PyTorch is accurate.
    operands = Linear(operands.x, -operands.weight / 6, operands.bias)
    for op, tanh in (
        (softmax_op(), softmax_op("tanh")),
        (pool_max_op(1), pool_max_op(1, 1.0, "tanh")),
    ):
        with pytest.raises(AssertionError, match="error"):
            check(tanh.head.exact(operands.exact()).float(), op.head, operands)


def test_bfloat16_products_fail(device: str) -> None:
    operands = operands_of("random", device)
    high = Linear(operands.x.bfloat16().float(), operands.weight.bfloat16().float(), operands.bias)
    low = operands.x - high.x, operands.weight - high.weight
    # bf16x3: the product of the two low halves, some 2^-16 of the result, is left out.
    z = high.exact() + F.linear(high.x.double(), low[1].double().bfloat16().double())
    z = z + F.linear(low[0].double().bfloat16().double(), high.weight.double())
    for op in OPS:
        with pytest.raises(AssertionError, match="error"):
            check(op.head.exact(high.exact()).float(), op.head, operands)
        with pytest.raises(AssertionError, match="error"):
            check(op.head.exact(z).float(), op.head, operands)


@pytest.mark.parametrize("op", BOTH, ids=repr)
def test_one_wrong_element_fails(op: Fused, device: str) -> None:
    """A thousandth in one element, a row left at zero, a row swapped with its neighbour."""
    operands = operands_of("random", device)
    right = op.head.eager(operands.eager())
    scaled, zeroed = right.clone(), right.clone()
    scaled.view(-1)[right.argmax()] *= 1.001
    zeroed[63] = 0
    for wrong in (scaled, zeroed, right.roll(1, 0)):
        with pytest.raises(AssertionError):
            check(wrong, op.head, operands)


@pytest.mark.parametrize("op", BOTH, ids=repr)
def test_nan_and_infinity_are_held_to_their_places(op: Fused, device: str) -> None:
    operands = operands_of("random", device)
    right = op.head.eager(operands.eager())
    wrong = right.clone()
    wrong.view(-1)[-1] = math.nan
    with pytest.raises(AssertionError, match="NaN in the wrong places"):
        check(wrong, op.head, operands)
    operands.x[5, 7] = math.nan
    missing, spread = right.clone(), right.clone()
    spread[5:7] = math.nan
    for result in (missing, spread):
        with pytest.raises(AssertionError, match="NaN in the wrong places"):
            check(result, op.head, operands)


def test_finite_elements_beside_others_are_judged(device: str) -> None:
    x, weight, bias = linear_like(6, 20, 40, device)
    weight[3, 4], x[5, 1] = math.inf, math.nan
    head, operands = plain_head(torch.relu), Linear(x, weight, bias)
    y = head.exact(operands.exact()).float()
    check(y, head, operands, strict=True)
    y[0] *= 1 + 2.0**-18
    with pytest.raises(AssertionError, match="error"):
        check(y, head, operands)


def test_shape_dtype_and_strides_are_checked(device: str) -> None:
    op = softmax_op()
    operands = operands_of("random", device)
    right = op.head.eager(operands.eager())
    for wrong in (right.double(), right[:-1], right.t().contiguous().t(), right[None]):
        with pytest.raises(AssertionError):
            check(wrong, op.head, operands)


@pytest.mark.parametrize("value", [1e30, -1e30, 1e38])
def test_rows_that_may_overflow_in_one_order_only_are_left_out(value: float, device: str) -> None:
    """inf, NaN or finite: float32 has no right answer there, but the rows beside it have one."""
    x, weight, bias = linear_like(4, 40, 8, device)
    x[2] = value
    weight[3] *= 1e30
    operands = Linear(x, weight, bias)
    op = pool_max_op(1)
    right = op.head.exact(operands.exact()).float()
    for anything in (math.inf, math.nan, 0.0):
        right[2] = anything
        check(right, op.head, operands)
    right[1] = 7.0
    with pytest.raises(AssertionError):
        check(right, op.head, operands)


def test_a_zero_reference_is_judged_absolutely(device: str) -> None:
    x, weight = torch.zeros(3, 4, device=device), torch.randn(5, 4, device=device)
    op = pool_max_op(1)
    check(torch.zeros(3, device=device), op.head, Linear(x, weight))
    with pytest.raises(AssertionError):
        check(torch.full((3,), 1e-6, device=device), op.head, Linear(x, weight))


def test_windows_that_eager_adds_up_exactly_are_no_yardstick(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two large terms that nearly cancel leave no error in eager's order, and none nearby."""
    monkeypatch.setattr(oracle, "tally", Counter(judged=0, allowed=0))
    head = pool_max_head(4, -2.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        moved = 1 + (torch.rand(1, 4, generator=generator) - 0.5) * 2.0**-7
        z = (torch.tensor([[-2.9755, 1.2360, 2.4236, -0.8167]]) * moved).to(device)
        in_pairs = (z[:, :2].sum(-1) + z[:, 2:].sum(-1)).unsqueeze(-1) / 4
        y = head.candidates(in_pairs.double().repeat_interleave(4, -1)).amax(-1).float()
        check(y, head, Matrix(z))
        with pytest.raises(AssertionError):
            check(y * (1 + 2.0**-17), head, Matrix(z))


def test_inputs_nearby_have_other_orders_of_all_their_terms(device: str) -> None:
    """And are the same otherwise, up to a thousandth: a window's mean has terms of its own."""
    generator = torch.Generator(device).manual_seed(0)
    x, weight, bias = linear_like(5, 23, 40, device)
    linear = Linear(x, weight, bias)
    for near in (linear.nearby(generator, 7), Matrix(linear.eager()).nearby(generator, 7)):
        before, after = linear.exact(), near.exact()
        assert not torch.allclose(after, before, rtol=0.01, atol=0.01)
        torch.testing.assert_close(pool(after, 7), pool(before, 7), rtol=0.0, atol=0.01)
        torch.testing.assert_close(after[:, 21:], before[:, 21:], rtol=0.0, atol=0.01)
    near = linear.nearby(generator, 1)
    assert not torch.equal(near.weight, weight)
    assert torch.equal(near.weight.sort(-1).values, weight.sort(-1).values)


def test_exact_gelu_is_the_integral_of_the_normal_density() -> None:
    """The truth itself: z * Phi(z) by quadrature of the density, and the limits."""
    for z in (-3.0, -0.5, 0.0, 1.25, 4.0):
        t = torch.linspace(-12, z, 400_001, dtype=torch.float64)
        phi = torch.trapezoid(torch.exp(-t * t / 2) / math.sqrt(2 * math.pi), t)
        exact = gelu_exact(torch.tensor(z, dtype=torch.float64))
        assert float(exact) == pytest.approx(z * float(phi), rel=1e-8, abs=1e-12)
        tanh = gelu_exact(torch.tensor(z, dtype=torch.float64), "tanh")
        textbook = 0.5 * z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        assert float(tanh) == pytest.approx(textbook, rel=1e-10, abs=1e-14)
    assert gelu_exact(torch.tensor(math.inf)) == math.inf
    assert gelu_exact(torch.tensor(-math.inf)).isnan()


def test_the_allowance_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers: eager is exact, and six roundings are more than its bound."""
    monkeypatch.setattr(oracle, "tally", Counter())
    x = torch.arange(256.0)[None]
    operands, head = Linear(x, x), plain_head(lambda z: z)
    right = operands.exact().float()
    check(right, head, operands)
    assert oracle.tally == {"judged": 1, "allowed": 0}
    check(right, head, operands, strict=True)
    off = right * (1 + 6 * UNIT)
    with pytest.raises(AssertionError, match="error"):
        check(off, head, operands, strict=True)
    assert oracle.tally == {"judged": 1, "allowed": 0}
    check(off, head, operands)
    assert oracle.tally == {"judged": 2, "allowed": 1}
    assert not oracle.allowance_is_overused()
    oracle.tally.update(judged=198, allowed=9)
    assert not oracle.allowance_is_overused()
    oracle.tally.update(allowed=1)
    assert oracle.allowance_is_overused()


def test_the_oracle_does_not_use_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every function of the reference broken, the verdict on a right result is the same."""
    for name in ("gelu", "softmax", "linear", "avg_pool", "gelu_softmax", "gelu_scale_max"):
        monkeypatch.setattr(cutlass_ops.reference, name, None)
    operands = operands_of("random", "cpu")
    for op in OPS:
        yardstick = check(op.head.eager(operands.eager()), op.head, operands, strict=True)
        assert 0 < yardstick.bound < 1e-4
        assert yardstick.bound >= 4 * UNIT
