"""linear_gelu_softmax(..., recompute=True): the same gradients, and less kept for them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fused import linear_like, same_bits, softmax_op
from gradients import check_gradients
from operands import Linear
from test_autograd import doubles
from torch import Tensor

import cutlass_ops
from cutlass_ops.nn import LinearGELUSoftmax


def recomputing(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return cutlass_ops.linear_gelu_softmax(x, weight, bias, recompute=True)


def kept_by(operands: tuple[Tensor, ...], recompute: bool) -> int:
    """The elements of the largest tensor that a call saves."""
    kept: list[int] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        cutlass_ops.linear_gelu_softmax(*operands, recompute=recompute)
    return max(kept)


def test_the_inputs_alone_are_kept(device: str) -> None:
    operands = linear_like(50, 64, 3, device, requires_grad=True)
    assert kept_by(operands, False) == 50 * 64
    assert kept_by(operands, True) == max(t.numel() for t in operands)


@pytest.mark.parametrize("lead", [(17,), (2, 3), (0,), ()], ids=str)
def test_the_same_bits(lead: tuple[int, ...], device: str) -> None:
    _, weight, bias = linear_like(1, 40, 12, device, requires_grad=True)
    x = torch.randn(*lead, 12, device=device, requires_grad=True)
    leaves = (x, weight, bias)
    results = []
    for recompute in (False, True):
        y = cutlass_ops.linear_gelu_softmax(*leaves, recompute=recompute)
        results.append(torch.autograd.grad(y.square().sum(), leaves))
    assert all(same_bits(a, b) for a, b in zip(*results, strict=True))


def test_within_the_bound(device: str) -> None:
    op = dataclasses.replace(softmax_op(), call=recomputing)
    check_gradients(op, Linear(*linear_like(60, 130, 70, device)), strict=True)


@pytest.mark.parametrize("bias", [False, True])
def test_first_and_second_derivatives(bias: bool, device: str) -> None:
    operands = doubles(device=device, bias=bias)
    assert torch.autograd.gradcheck(recomputing, operands)
    assert torch.autograd.gradgradcheck(recomputing, operands)


def test_an_input_that_was_written_to_is_noticed(device: str) -> None:
    x, weight, bias = linear_like(4, 8, 5, device, requires_grad=True)
    y = recomputing(x, weight, bias)
    with torch.no_grad():
        bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_module(device: str) -> None:
    linear = torch.nn.Linear(12, 40, device=device)
    module = LinearGELUSoftmax.from_linear(linear, recompute=True)
    assert "recompute=True" in repr(module)
    assert "recompute" not in repr(LinearGELUSoftmax(3, 4))
    assert LinearGELUSoftmax(3, 4, recompute=True).recompute
    x = torch.randn(6, 12, device=device)
    module(x).square().sum().backward()
    assert linear.weight.grad is not None
    found = linear.weight.grad.clone()
    linear.weight.grad = None
    LinearGELUSoftmax.from_linear(linear)(x).square().sum().backward()
    assert same_bits(linear.weight.grad, found)


def test_compiled(device: str) -> None:
    operands = linear_like(9, 20, 6, device, requires_grad=True)
    compiled = torch.compile(recomputing, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*operands).square().sum(), operands)
    expected = torch.autograd.grad(recomputing(*operands).square().sum(), operands)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_under_autocast(device: str) -> None:
    x, weight, bias = linear_like(9, 20, 6, device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = recomputing(x.bfloat16(), weight, bias)
    assert y.dtype == torch.float32
    y.square().sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
