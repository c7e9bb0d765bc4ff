"""Gradients of both ops: values, double backward, which inputs get one, what is kept and
written."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from fused import BOTH, Fused, linear_like, op_of, pool_max_op, same_bits, softmax_op
from gradients import check_gradients
from heads import gelu_exact
from hypothesis import example, given, settings
from operands import Linear
from oracle import UNIT
from strategies import Case, cases
from torch import Tensor

import cutlass_ops

OPS = (
    softmax_op(),
    softmax_op("tanh"),
    pool_max_op(1),
    pool_max_op(4, -2.0),
    pool_max_op(3, 1.5, "tanh"),
)
every_op = pytest.mark.parametrize("op", OPS, ids=repr)
both = pytest.mark.parametrize("op", BOTH, ids=repr)


def doubles(
    m: int = 3, n: int = 7, k: int = 4, device: str = "cpu", bias: bool = True
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = [(m, k), (n, k)] + [(n,)] * bias
    tensors = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
    return [t.to(device).requires_grad_() for t in tensors]


def well_posed(case: Case) -> Case:
    """Ties and a softmax that is saturated leave gradients which float32 does not determine: what
    remains of g - sum(g * y) there is rounding."""
    changes: dict[str, object] = {}
    if case.values in ("equal", "columns", "normal"):
        changes["values"] = "uniform"
    if case.bias == "large":
        changes["bias"] = "normal"
    if case.scale == 0:
        changes["scale"] = 1.0
    return dataclasses.replace(case, **changes)  # type: ignore[arg-type]


# All terms of a sum alike: rounding errors add up as the order of summation has it.
ALIKE = Case(
    leading=(1,),
    n=15,
    k=33,
    values="uniform",
    x_layout="column expanded",
    w_layout="column expanded",
    bias="none",
    plant="",
    kernel_size=1,
    scale=1.0,
    approximate="none",
    seed=0,
)


@pytest.mark.deep
@pytest.mark.parametrize("pooled", [False, True])
@given(case=cases(pooled=True))
@example(case=ALIKE)
def test_gradients_match_float64(pooled: bool, case: Case, device: str) -> None:
    case = well_posed(case)
    x, weight, bias = case.tensors(device)
    check_gradients(op_of(case, pooled), Linear(x, weight, bias))


@every_op
def test_gradients_within_the_strict_bound(op: Fused, device: str) -> None:
    check_gradients(op, Linear(*linear_like(120, 260, 200, device)), strict=True)


@every_op
@pytest.mark.parametrize("bias", [True, False])
def test_gradcheck(op: Fused, bias: bool, device: str) -> None:
    """float64 goes through the same autograd function."""
    assert torch.autograd.gradcheck(op.call, doubles(device=device, bias=bias))


@every_op
@pytest.mark.parametrize("bias", [True, False])
def test_gradgradcheck(op: Fused, bias: bool, device: str) -> None:
    """pytorch#76185, #58509: intermediates kept outside the graph make double backward silently
    zero."""
    assert torch.autograd.gradgradcheck(op.call, doubles(device=device, bias=bias))


@every_op
def test_gradient_penalty(op: Fused, device: str) -> None:
    """pytorch#104040, in float32 and as it is used: a norm of gradients in the loss.

    Second derivatives have no bound in the design; twice what it allows first ones.
    """

    def penalty(call: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [t.detach().to(device, dtype).requires_grad_() for t in doubles(20, 9, 8)]
        y = call(*leaves)
        weights = torch.linspace(1, 2, y.numel(), device=device, dtype=dtype).view(y.shape)
        grads = torch.autograd.grad((y * weights).sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in grads), leaves))

    actual = penalty(op.call, torch.float32)
    eager = penalty(lambda *t: op.head.eager(Linear(*t).eager()), torch.float32)
    truth = penalty(lambda *t: op.head.exact(Linear(*t).eager()), torch.float64)
    for a, e, t in zip(actual, eager, truth, strict=True):
        assert t.norm() > 0
        error, yardstick = ((v.double() - t).norm() / t.norm() for v in (a, e))
        assert error <= 4 * yardstick + 8 * UNIT


@every_op
@pytest.mark.parametrize("needed", list(itertools.product([True, False], repeat=3)))
def test_only_the_inputs_that_ask_get_a_gradient(
    op: Fused, needed: tuple[bool, bool, bool], device: str
) -> None:
    """Each of the eight combinations, against the gradients when all are asked for."""
    full = linear_like(6, 12, 5, device, requires_grad=True)
    op.call(*full).square().sum().backward()
    some = [t.detach().requires_grad_(on) for t, on in zip(full, needed, strict=True)]
    y = op.call(*some)
    assert y.requires_grad == any(needed)
    if any(needed):
        y.square().sum().backward()
    for t, reference, on in zip(some, full, needed, strict=True):
        assert (t.grad is not None) == on
        if on:
            torch.testing.assert_close(t.grad, reference.grad, rtol=1e-4, atol=1e-6)


@every_op
def test_without_bias(op: Fused, device: str) -> None:
    x, weight, _ = linear_like(6, 12, 5, device)
    check_gradients(op, Linear(x, weight))


@every_op
def test_backward_twice_doubles_the_gradients(op: Fused, device: str) -> None:
    """Liger-Kernel#254, #272, PR#1251: gradients written into what was saved."""
    operands = linear_like(40, 24, 12, device, requires_grad=True)
    y = op.call(*operands)
    before = y.detach().clone()
    g = torch.linspace(-1, 1, y.numel(), device=device).view(y.shape)
    y.backward(g, retain_graph=True)
    once = [t.grad.clone() for t in operands]  # type: ignore[union-attr]
    y.backward(g)
    for t, single in zip(operands, once, strict=True):
        assert torch.equal(t.grad, 2 * single)  # type: ignore[arg-type]
    assert same_bits(y.detach(), before)


@every_op
@pytest.mark.parametrize("which", [0, 1], ids=["x", "weight"])
def test_writing_into_a_saved_input_is_noticed(op: Fused, which: int, device: str) -> None:
    operands = linear_like(4, 8, 5, device, requires_grad=True)
    y = op.call(*operands)
    with torch.no_grad():
        operands[which].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@every_op
@pytest.mark.parametrize("shape", [(0, 5), (0, 3, 5), (3, 0, 5)])
def test_no_rows_still_gives_gradients_of_zero(
    op: Fused, shape: tuple[int, ...], device: str
) -> None:
    """RL-Align/RL-Kernel PR#243: the empty output was detached, and .grad stayed None."""
    _, weight, bias = linear_like(1, 8, 5, device, requires_grad=True)
    x = torch.empty(shape, device=device, requires_grad=True)
    op.call(x, weight, bias).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape
    for t in (weight, bias):
        assert t.grad is not None
        assert t.grad.shape == t.shape
        assert not t.grad.any()


@every_op
def test_no_depth_still_gives_the_gradient_of_the_bias(op: Fused, device: str) -> None:
    x = torch.empty(4, 0, device=device, requires_grad=True)
    weight = torch.empty(9, 0, device=device, requires_grad=True)
    bias = torch.randn(9, device=device, requires_grad=True)
    check_gradients(op, Linear(x, weight, bias))


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("scale", [1.0, -1.0, 0.0])
def test_ties_go_to_the_first_window(scale: float, k: int, device: str) -> None:
    """pytorch#155048, #56734: max(dim) puts the gradient on the first index, amax splits it. Ours
    is max's."""
    x = torch.ones(3, 2, device=device, requires_grad=True)
    weight = torch.full((9, 2), 0.5, device=device, requires_grad=True)
    bias = torch.zeros(9, device=device, requires_grad=True)
    pool_max_op(k, scale).call(x, weight, bias).sum().backward()
    one = torch.ones((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(gelu_exact(one), one)
    expected = torch.zeros(9, device=device)
    expected[:k] = 3 * scale * float(slope) / k
    assert weight.grad is not None
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad, expected)
    torch.testing.assert_close(weight.grad, expected[:, None].expand(9, 2))


def test_the_dropped_remainder_gets_gradients_of_zero(device: str) -> None:
    x, weight, bias = linear_like(6, 11, 5, device, requires_grad=True)
    pool_max_op(4).call(x, weight, bias).sum().backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert not weight.grad[8:].any()
    assert not bias.grad[8:].any()
    assert weight.grad[:8].any()


@pytest.mark.parametrize("where", ["row", "weight", "all"])
def test_nan_rows_send_their_gradient_to_the_first_nan(where: str, device: str) -> None:
    """pytorch PR#1465, #40131: no winner, index -1 saved, and backward wrote out of bounds."""
    x, weight, bias = (t.detach() for t in linear_like(5, 12, 4, device))
    if where == "row":
        x[2, 1] = math.nan
    elif where == "weight":
        weight[6, 0] = math.nan
    else:
        x[:] = math.nan
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = pool_max_op(1).call(*leaves)
    y.backward(torch.ones_like(y))
    grad = leaves[2].grad
    assert grad is not None
    # The gradient at the winner is gelu'(NaN) = NaN, so it shows where the index points.
    expected = {"row": [0], "weight": [6], "all": [0]}[where]
    assert grad.isnan().nonzero().flatten().tolist() == expected


@both
def test_second_call_keeps_nothing_of_the_first(op: Fused, device: str) -> None:
    """Saved tensors belong to one call: two graphs from the same weights, backward in either
    order."""
    x, weight, bias = linear_like(8, 12, 5, device, requires_grad=True)
    other = torch.randn_like(x).requires_grad_()
    first, second = op.call(x, weight, bias), op.call(other, weight, bias)
    (late,) = torch.autograd.grad(second.square().sum(), other, retain_graph=True)
    (early,) = torch.autograd.grad(first.square().sum(), x)
    (alone,) = torch.autograd.grad(op.call(x, weight, bias).square().sum(), x)
    assert same_bits(early, alone)
    assert not torch.equal(early, late)


@both
def test_gradients_of_strided_and_expanded_operands(op: Fused, device: str) -> None:
    _x, weight, bias = linear_like(6, 12, 5, device)
    wide = torch.randn(2, 3, 10, device=device, requires_grad=True)
    narrow = bias[:1].clone().requires_grad_()
    op.call(wide[..., ::2], weight, narrow.expand(12)).square().sum().backward()
    copy = wide.detach()[..., ::2].clone().requires_grad_()
    dense = narrow.detach().expand(12).clone().requires_grad_()
    op.call(copy, weight, dense).square().sum().backward()
    assert wide.grad is not None
    assert narrow.grad is not None
    torch.testing.assert_close(wide.grad[..., ::2], copy.grad)
    torch.testing.assert_close(narrow.grad, dense.grad.sum()[None], rtol=1e-4, atol=1e-6)  # type: ignore[union-attr]
    assert not wide.grad[..., 1::2].any()


def test_gradients_of_the_parts(device: str) -> None:
    """gelu_softmax, gelu_scale_max, softmax and fold_linear differentiate, twice."""
    z, weight, bias = doubles(3, 5, 5, device)
    parts = (
        (cutlass_ops.gelu_softmax, (z, bias)),
        (lambda z, b: cutlass_ops.gelu_scale_max(z, b, scale=-1.5, approximate="tanh"), (z, bias)),
        (cutlass_ops.softmax, (z,)),
        (lambda w, b: cutlass_ops.fold_linear(w, b, 2), (weight, bias)),
    )
    for part, inputs in parts:
        assert torch.autograd.gradcheck(part, inputs)
        assert torch.autograd.gradgradcheck(part, inputs)


def test_pooled_op_does_not_keep_the_product(device: str) -> None:
    """Saved for backward: inputs and nothing of size M x N, which eager PyTorch keeps."""
    kept: list[int] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t.numel())
        return t

    operands = linear_like(50, 64, 3, device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        pool_max_op(4).call(*operands)
    assert kept
    assert max(kept) <= max(t.numel() for t in operands) < 50 * 64


@settings(max_examples=10)
@given(case=cases(empty=False))
def test_grad_mode_does_not_change_the_result(case: Case, device: str) -> None:
    """With and without gradients different kernels may run; both are within the bound."""
    x, weight, bias = case.tensors(device)
    op = softmax_op(case.approximate)
    leaves = [None if t is None else t.detach().requires_grad_() for t in (x, weight, bias)]
    op.judge(op.call(*leaves), x, weight, bias)
    with torch.no_grad():
        op.judge(op.call(*leaves), x, weight, bias)


def test_what_no_gradient_needs_is_not_kept(device: str) -> None:
    """As in eager PyTorch: an operand whose partner is frozen may be written to, or be an inference
    tensor, and its memory may go."""
    op = softmax_op()
    x, weight, bias = linear_like(5, 8, 6, device)
    hidden = x.clone().requires_grad_() * 1.0
    y = op.call(hidden, weight, bias)
    hidden.add_(1)
    y.square().sum().backward()

    trained = weight.clone().requires_grad_()
    y = op.call(x, trained, bias)
    with torch.no_grad():
        trained.add_(1)
    y.square().sum().backward()

    with torch.inference_mode():
        inferred = torch.randn(5, 6, device=device)
    shift = bias.clone().requires_grad_()
    op.call(inferred, weight, shift).square().sum().backward()
    assert shift.grad is not None
