"""The same bits from run to run, and a row that does not depend on its company."""

from __future__ import annotations

import pytest
import torch
from fused import Fused, linear_like, op_of, pool_max_op, same_bits, softmax_op
from hypothesis import given
from operands import Linear
from oracle import check
from strategies import Case, cases

import cutlass_ops

OPS = (softmax_op(), pool_max_op(1, -1.0), pool_max_op(4, 2.0))
every_op = pytest.mark.parametrize("op", OPS, ids=repr)


@pytest.mark.deep
@pytest.mark.parametrize("pooled", [False, True])
@given(case=cases(pooled=True))
def test_reruns_are_bit_identical(pooled: bool, case: Case, device: str) -> None:
    x, weight, bias = case.tensors(device)
    op = op_of(case, pooled)
    assert same_bits(op.call(x, weight, bias), op.call(x, weight, bias))


@every_op
@pytest.mark.parametrize("deterministic", [False, True])
def test_deep_and_narrow_a_hundred_times(op: Fused, deterministic: bool, device: str) -> None:
    """warpfront/hipfire PR#383, onnxruntime#27003: split-K that adds in the order blocks finish.

    Also under use_deterministic_algorithms(True), which fills fresh memory with NaN.
    """
    x, weight, bias = linear_like(16, 16, 65536, device)
    torch.use_deterministic_algorithms(deterministic)
    try:
        first = op.call(x, weight, bias)
        runs = 100 if device == "cuda" else 10
        assert all(same_bits(first, op.call(x, weight, bias)) for _ in range(runs))
    finally:
        torch.use_deterministic_algorithms(False)
    op.judge(first, x, weight, bias)


@every_op
@pytest.mark.parametrize("rows", [1, 2, 17, 33, 128, 257, 1024])
def test_a_row_in_any_company_is_the_same_up_to_rounding(op: Fused, rows: int, device: str) -> None:
    """pytorch#136338, TransformerEngine#2986: x[:1] and x[:2] differ. Another batch size may choose
    another kernel, so equality of bits is not promised; the bound of the check is."""
    x, weight, bias = linear_like(1, 200, 300, device)
    company = torch.randn(rows, 300, device=device)
    for place in {0, rows // 2, rows - 1}:
        batch = company.clone()
        batch[place] = x[0]
        y = op.call(batch, weight, bias)[place : place + 1].contiguous()
        check(y, op.head, Linear(x, weight, bias))


@every_op
def test_the_same_row_anywhere_in_one_call_has_the_same_bits(op: Fused, device: str) -> None:
    """Within one call every row goes through the same sums, at the edge of the matrix too."""
    if device == "cpu":
        pytest.skip("the CPU's matrix product treats rows at block edges differently")
    x, weight, bias = linear_like(1, 200, 300, device)
    y = op.call(x.expand(259, 300).contiguous(), weight, bias)
    assert same_bits(y, y[:1].expand_as(y).contiguous())


@every_op
def test_gradients_are_bit_identical_from_run_to_run(op: Fused, device: str) -> None:
    """Rows that share a winning window add up in a fixed order: no atomics."""
    operands = linear_like(300, 8, 40, device, requires_grad=True)

    def gradients() -> list[torch.Tensor]:
        y = op.call(*operands)
        seeds = torch.linspace(-1, 1, y.numel(), device=device).view(y.shape)
        return list(torch.autograd.grad(y, operands, seeds))

    first = gradients()
    for _ in range(10):
        assert all(same_bits(a, b) for a, b in zip(first, gradients(), strict=True))


def test_folding_is_bit_identical_and_independent_of_its_place(device: str) -> None:
    weight = torch.randn(96, 50, device=device)
    folded, _ = cutlass_ops.fold_linear(weight, None, 8)
    again, _ = cutlass_ops.fold_linear(weight, None, 8)
    part, _ = cutlass_ops.fold_linear(weight[40:56], None, 8)
    assert same_bits(folded, again)
    assert same_bits(folded[5:7].contiguous(), part)
