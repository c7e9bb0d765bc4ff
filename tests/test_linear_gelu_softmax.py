"""softmax(gelu(x @ W.T + b)): against float64, as properties, and values from public bug
reports."""

from __future__ import annotations

import math

import pytest
import torch
from fused import linear_like, poison, run_opcheck, same_bits, softmax_op
from hypothesis import given
from hypothesis import strategies as st
from strategies import Case, cases

import cutlass_ops

NAN, INF = math.nan, math.inf


def rows_through_identity(rows: list[list[float]], device: str) -> torch.Tensor:
    """The op on an identity weight: the rows are the pre-activations."""
    x = torch.tensor(rows, device=device)
    return cutlass_ops.linear_gelu_softmax(x, torch.eye(x.shape[1], device=device))


@pytest.mark.deep
@given(case=cases())
def test_matches_float64(case: Case, device: str) -> None:
    x, weight, bias = case.tensors(device)
    poison(device, case.m, case.n)
    softmax_op(case.approximate).check(x, weight, bias)


@pytest.mark.deep
@given(case=cases(planted=True, empty=False))
def test_non_finite_values_spread_as_far_as_in_float64(case: Case, device: str) -> None:
    x, weight, bias = case.tensors(device)
    op = softmax_op(case.approximate)
    op.judge(op.call(x, weight, bias), x, weight, bias)


@pytest.mark.deep
@given(case=cases(empty=False), shuffle=st.integers(0, 2**31 - 1))
def test_permuting_columns_permutes_the_result(case: Case, shuffle: int, device: str) -> None:
    """Judged against the truth of the original: a column must not depend on where it stands."""
    x, weight, bias = case.tensors(device)
    generator = torch.Generator(device).manual_seed(shuffle)
    order = torch.randperm(case.n, generator=generator, device=device)
    op = softmax_op(case.approximate)
    y = op.call(x, weight[order], None if bias is None else bias[order])
    op.judge(y[..., order.argsort()].contiguous(), x, weight, bias)


@pytest.mark.deep
@given(case=cases(empty=False))
def test_rows_are_distributions(case: Case, device: str) -> None:
    x, weight, bias = case.tensors(device)
    y = softmax_op(case.approximate).call(x, weight, bias).double()
    assert (y >= 0).all()
    assert (y.sum(-1) - 1).abs().max() <= 1e-5


@pytest.mark.deep
@given(case=cases(empty=False), bad=st.sampled_from([NAN, INF, -INF]))
def test_a_bad_row_touches_no_other_row(case: Case, bad: float, device: str) -> None:
    x, weight, bias = case.tensors(device)
    x = x.reshape(case.m, case.k).clone()
    op = softmax_op(case.approximate)
    clean = op.call(x, weight, bias)
    x[case.seed % case.m] = bad
    y = op.call(x, weight, bias)
    others = torch.arange(case.m, device=device) != case.seed % case.m
    assert y[~others].isnan().all()
    assert same_bits(y[others], clean[others])


def test_a_bad_value_in_one_row_of_weight_reaches_every_row(device: str) -> None:
    x, weight, bias = linear_like(5, 130, 40, device)
    weight[129, 7] = NAN
    assert cutlass_ops.linear_gelu_softmax(x, weight, bias).isnan().all()


@pytest.mark.parametrize("n", [10, 82, 81, 1, 3, 127, 129, 257])
def test_columns_beyond_n_do_not_enter_the_row(n: int, device: str) -> None:
    """NVIDIA/cutlass PR#586: inf and NaN, or a wrong sum, where N is under a tile or unaligned."""
    x, weight, bias = linear_like(16, n, 64, device)
    bias -= 50  # a phantom column of zeros would win the maximum
    poison(device, 16, n)
    softmax_op().check(x, weight, bias)


def test_all_negative_rows(device: str) -> None:
    """Every GELU is in (-0.17, 0]: a maximum that starts from 0 still gives the right softmax only
    if columns beyond N stay out of the sum."""
    x = torch.rand(9, 33, device=device)
    weight = -torch.rand(131, 33, device=device) / 8
    softmax_op().check(x, weight)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([88.72284], [1.0]),
        ([378.1, -249.9], [1.0, 0.0]),
        ([1e30, -1e30, 0.0], [1.0, 0.0, 0.0]),
        ([1e30, 1e30], [0.5, 0.5]),
        ([3e38, -3e38], [1.0, 0.0]),
    ],
)
def test_exp_does_not_overflow(row: list[float], expected: list[float], device: str) -> None:
    """cornell-brg/hb-pytorch#61, uTensor/uTensor#175, allenai/allennlp PR#437: exp without the
    maximum."""
    y = rows_through_identity([row], device)
    assert y.tolist() == [expected]


def test_shifting_logits_that_gelu_leaves_alone(device: str) -> None:
    """gelu(z) = z from about 6 on in float32, so adding a constant to the bias there shifts the
    logits and leaves the softmax."""
    x, weight, bias = linear_like(7, 65, 16, device)
    near = cutlass_ops.linear_gelu_softmax(x, weight, bias + 16)
    far = cutlass_ops.linear_gelu_softmax(x, weight, bias + 32)
    torch.testing.assert_close(near, far, rtol=2e-5, atol=0)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_non_finite_rows_are_nan_as_a_whole(bad: float, device: str) -> None:
    """tenstorrent/tt-metal#56056, intel/torch-xpu-ops PR#5022: NaN hidden as zeros or as uniform.

    One +inf makes the row NaN (inf - inf), and -inf too: GELU(-inf) = -inf * 0.
    """
    rows = torch.linspace(-2, 2, 5 * 37).reshape(5, 37)
    clean = rows_through_identity(rows.tolist(), device)
    rows[2, 11] = bad
    # 0 * inf is NaN, so the value goes in through the bias-free identity only as a whole row.
    z = cutlass_ops.gelu_softmax(rows.to(device))
    y = rows_through_identity(rows.tolist(), device)
    for result in (y, z):
        assert result[2].isnan().all()
        assert not result[[0, 1, 3, 4]].isnan().any()
    assert same_bits(y[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_bias_of_minus_infinity(approximate: str, device: str) -> None:
    """All logits -inf: no winner, and the answer is NaN, not 1/N and not 0."""
    x, weight, bias = linear_like(3, 20, 8, device)
    y = cutlass_ops.linear_gelu_softmax(
        x, weight, torch.full_like(bias, -INF), approximate=approximate
    )
    assert y.isnan().all()


def test_one_infinite_bias_makes_every_row_nan(device: str) -> None:
    x, weight, bias = linear_like(3, 20, 8, device)
    bias[13] = INF
    assert cutlass_ops.linear_gelu_softmax(x, weight, bias).isnan().all()


@pytest.mark.parametrize("leading", [(), (1,), (6,), (2, 3), (2, 3, 4), (1, 1, 1, 5)])
def test_leading_dims_are_kept(leading: tuple[int, ...], device: str) -> None:
    """A vector gives [N]; any number of leading dims stays."""
    _, weight, bias = linear_like(1, 19, 23, device)
    x = torch.randn(*leading, 23, device=device)
    y = softmax_op().check(x, weight, bias)
    assert y.shape == (*leading, 19)


@pytest.mark.parametrize("shape", [(0, 12), (0, 5, 12), (5, 0, 12)])
def test_no_rows(shape: tuple[int, ...], device: str) -> None:
    """pytorch#27619, flashinfer PR#4020: batch 0 reached a launch with an empty grid."""
    _, weight, bias = linear_like(1, 7, 12, device)
    y = softmax_op().check(torch.empty(shape, device=device), weight, bias)
    assert y.shape == (*shape[:-1], 7)


def test_no_columns(device: str) -> None:
    x, weight = torch.randn(4, 8, device=device), torch.empty(0, 8, device=device)
    y = cutlass_ops.linear_gelu_softmax(x, weight)
    assert y.shape == (4, 0)
    assert y.device.type == device
    run_opcheck(softmax_op().op, softmax_op().arguments(x, weight))


@pytest.mark.parametrize("with_bias", [True, False])
def test_no_depth(with_bias: bool, device: str) -> None:
    """pytorch PR#175905, robertknight/rten PR#526: K = 0 returned memory as it was. It is the
    bias."""
    bias = torch.randn(70, device=device) if with_bias else None
    poison(device, 9, 70)
    x, weight = torch.empty(9, 0, device=device), torch.empty(70, 0, device=device)
    y = softmax_op().check(x, weight, bias)
    torch.testing.assert_close(y, y[:1].expand(9, 70), rtol=1e-6, atol=0)
    if bias is None:
        torch.testing.assert_close(y, torch.full_like(y, 1 / 70), rtol=1e-6, atol=0)


def test_inputs_are_not_written_and_the_output_is_fresh(device: str) -> None:
    operands = linear_like(33, 65, 40, device)
    copies = [t.clone() for t in operands]
    first = cutlass_ops.linear_gelu_softmax(*operands)
    kept = first.clone()
    second = cutlass_ops.linear_gelu_softmax(-operands[0], *operands[1:])
    assert first.data_ptr() != second.data_ptr()
    assert same_bits(first, kept)
    assert all(same_bits(a, b) for a, b in zip(operands, copies, strict=True))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("values", ["uniform", "positive", "negative", "compensated", "cancelling"])
def test_strict_bound_at_a_moderate_size(values: str, approximate: str, device: str) -> None:
    """The design's bound without any allowance for luck: 2x eager's own error, on 64 rows or
    more."""
    case = Case((96,), 512, 768, values=values, approximate=approximate, seed=5)
    x, weight, bias = case.tensors(device)
    softmax_op(approximate).check(x, weight, bias, strict=True)
