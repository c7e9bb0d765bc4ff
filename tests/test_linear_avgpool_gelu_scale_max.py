"""max(scale * gelu(avg_pool(x @ W.T + b, k))): against float64, as properties, and from bug
reports."""

from __future__ import annotations

import math

import pytest
import torch
from fused import linear_like, poison, pool_max_op, same_bits
from heads import gelu_exact
from hypothesis import given
from hypothesis import strategies as st
from native import force_folding
from strategies import Case, cases
from torch import Tensor

import cutlass_ops
from cutlass_ops import precision

NAN, INF = math.nan, math.inf


def through_identity(row: list[float], k: int, scale: float, device: str) -> float:
    """The op on an identity weight: the row is the pre-activation."""
    x = torch.tensor(row, dtype=torch.float32, device=device)
    weight = torch.eye(len(row), device=device)
    y = cutlass_ops.linear_avgpool_gelu_scale_max(x, weight, kernel_size=k, scale=scale)
    assert y.shape == ()
    return float(y)


def gelu_of(value: float) -> float:
    return float(gelu_exact(torch.tensor(value, dtype=torch.float64)))


def call(case: Case, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return pool_max_op(case.kernel_size, case.scale, case.approximate).call(x, weight, bias)


@pytest.mark.deep
@given(case=cases(pooled=True))
def test_matches_float64(case: Case, device: str) -> None:
    x, weight, bias = case.tensors(device)
    poison(device, max(case.m, 1))
    pool_max_op(case.kernel_size, case.scale, case.approximate).check(x, weight, bias)


@pytest.mark.deep
@given(case=cases(pooled=True, planted=True, empty=False))
def test_non_finite_values_spread_as_far_as_in_float64(case: Case, device: str) -> None:
    """Infinities too: folding W first turns inf * w1 + inf * w2 = NaN into inf * mean(w)."""
    x, weight, bias = case.tensors(device)
    op = pool_max_op(case.kernel_size, case.scale, case.approximate)
    op.judge(op.call(x, weight, bias), x, weight, bias)


@pytest.mark.deep
@given(case=cases(pooled=True, empty=False), shuffle=st.integers(0, 2**31 - 1))
def test_permuting_windows_changes_nothing(case: Case, shuffle: int, device: str) -> None:
    """Whole windows in another order, and the columns inside each window too."""
    x, weight, bias = case.tensors(device)
    windows, k = case.n // case.kernel_size, case.kernel_size
    generator = torch.Generator(device).manual_seed(shuffle)
    order = torch.arange(case.n, device=device)
    blocks = order[: windows * k].view(windows, k)
    blocks = blocks[torch.randperm(windows, generator=generator, device=device)]
    blocks = blocks[:, torch.randperm(k, generator=generator, device=device)]
    order = torch.cat([blocks.flatten(), order[windows * k :]])
    y = call(case, x, weight[order], None if bias is None else bias[order])
    pool_max_op(k, case.scale, case.approximate).judge(y, x, weight, bias)


@pytest.mark.deep
@given(case=cases(pooled=True, empty=False), power=st.integers(-20, 20))
def test_a_positive_scale_scales_the_result(case: Case, power: int, device: str) -> None:
    """By a power of two exactly: the maximum commutes with it, and so does every rounding."""
    x, weight, bias = case.tensors(device)
    options = {"kernel_size": case.kernel_size, "approximate": case.approximate}
    plain = cutlass_ops.linear_avgpool_gelu_scale_max(x, weight, bias, **options)
    scaled = cutlass_ops.linear_avgpool_gelu_scale_max(x, weight, bias, scale=2.0**power, **options)
    # Below the normal range multiplying by a power of two rounds, or the device may flush.
    normal = plain.abs() * min(1.0, 2.0**power) > 1e-37
    assert torch.equal(scaled[normal], plain[normal] * 2.0**power)


@pytest.mark.deep
@given(case=cases(pooled=True, empty=False), bad=st.sampled_from([NAN, INF, -INF]))
def test_a_bad_row_touches_no_other_row(case: Case, bad: float, device: str) -> None:
    x, weight, bias = case.tensors(device)
    x = x.reshape(case.m, case.k).clone()
    clean = call(case, x, weight, bias)
    x[case.seed % case.m, case.seed % case.k] = bad
    y = call(case, x, weight, bias)
    others = torch.arange(case.m, device=device) != case.seed % case.m
    assert same_bits(y[others], clean[others])
    assert not math.isnan(bad) or y[~others].isnan().all()


@pytest.mark.parametrize("k", [1, 4, 5])
@pytest.mark.parametrize("place", ["x", "w first", "w last", "tail"])
def test_nan_is_kept_by_the_maximum(place: str, k: int, device: str) -> None:
    """apache/tvm#19518, tile-ai/tilelang#3270, NVIDIA/Fuser#319, pytorch#6996: fmax drops NaN.

    In x it makes its row NaN, in W every row, unless its column is in the remainder of the pooling.
    """
    n = 131 if place == "tail" else 130 // k * k
    x, weight, bias = linear_like(9, n, 33, device)
    if place == "x":
        x[0, 0] = NAN
    else:
        weight[0 if place == "w first" else n - 1, 5] = NAN
    poison(device, 9)
    y = pool_max_op(k).call(x, weight, bias)
    pool_max_op(k).judge(y, x, weight, bias)
    expected = {"x": 1, "w first": 9, "w last": 9, "tail": 0 if 131 % k else 9}[place]
    assert int(y.isnan().sum()) == expected


@pytest.mark.parametrize("bad", [NAN, INF])
def test_the_remainder_plays_no_part(bad: float, device: str) -> None:
    """sonos/tract PR#2851, apple/coremltools PR#2844: the ragged end averaged in instead of
    dropped."""
    assert through_identity([1, 1, 1, 1, 100], 2, 1.0, device) == pytest.approx(gelu_of(1.0))
    assert through_identity([1, 2, 3, 4, 5], 2, 1.0, device) == pytest.approx(gelu_of(3.5))
    x, weight, bias = linear_like(3, 5, 8, device)
    clean = pool_max_op(2).call(x, weight, bias)
    weight[4], bias[4] = bad, bad
    assert same_bits(pool_max_op(2).call(x, weight, bias), clean)


@pytest.mark.parametrize(
    ("row", "k", "scale", "expected"),
    [
        ([-1, -1, 3, 3], 2, -2.0, -2 * gelu_of(-1.0)),
        ([-2, 2], 2, 1.0, 0.0),  # gelu of the average, not the average of gelu (0.95)
        ([4, 6], 1, -1.0, -gelu_of(4.0)),
        ([4, 6], 1, 0.0, 0.0),
        ([1, 2, 3, 4, 5], 5, 3.0, 3 * gelu_of(3.0)),
    ],
)
def test_order_of_the_steps_and_sign_of_the_scale(
    row: list[float], k: int, scale: float, expected: float, device: str
) -> None:
    assert through_identity(row, k, scale, device) == pytest.approx(expected, rel=1e-6, abs=1e-30)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.0])
def test_scale_meets_infinity(scale: float, device: str) -> None:
    """0 * inf is NaN, and a NaN in any window wins; -1 * inf loses to the finite windows."""
    x, weight = torch.ones(2, 1, device=device), torch.tensor([[1.0], [2.0], [1.0]], device=device)
    bias = torch.tensor([0.0, INF, 0.0], device=device)
    y = pool_max_op(1, scale).call(x, weight, bias)
    pool_max_op(1, scale).judge(y, x, weight, bias)
    expected = {0.0: NAN, 1.0: INF, -1.0: -gelu_of(1.0)}[scale]
    assert y.tolist() == pytest.approx([expected] * 2, nan_ok=True)


def test_infinities_of_both_signs_in_one_window_are_nan(device: str) -> None:
    """x = inf meets weights of both signs in a window: their average is inf - inf. Folding the
    weights first would give inf times their mean, and a finite-looking +inf as the result."""
    weight = torch.tensor([[1.0], [-0.5], [1.0], [2.0]], device=device)
    x = torch.tensor([[INF], [1.0], [-INF]], device=device)
    y = pool_max_op(2).call(x, weight)
    assert y.isnan().tolist() == [True, False, True]
    y = pool_max_op(2).call(x, weight[2:])
    assert y[0] == INF
    assert y[2].isnan()
    assert y[1].item() == pytest.approx(gelu_of(1.5))


@pytest.mark.filterwarnings("ignore:cutlass_ops. precision 'fp16x3' has no native kernel")
@pytest.mark.parametrize("mode", precision.MODES)
@pytest.mark.parametrize("folding", [False, True])
def test_a_few_infinite_rows_among_many(
    folding: bool, mode: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so many rows a CTA asks about 19 at a time: the first and the last of those, neighbours,
    and the very last row. Against column 3 all windows are infinite, against others NaN, which the
    folded weights hide: a window has weights of both signs, and a mean above zero."""
    force_folding(folding, monkeypatch)
    m, k = 20_000, 16
    x, weight, bias = linear_like(m, 64, k, device)
    weight.abs_()
    weight[::4, [c for c in range(k) if c != 3]] *= -1e-3
    for row in (0, 18, 19, 20, 8191, 8192, 12_345, 19_455, 19_456, m - 2, m - 1):
        x[row, 3 if row % 2 else row % k] = -INF if row % 3 == 0 else INF
    x[7777, 3], x[7778, 3], x[7778, 4] = NAN, INF, NAN
    op = pool_max_op(4, 2.0)
    with cutlass_ops.float32_precision(mode):
        y = op.call(x, weight, bias)
    op.judge(y, x, weight, bias)
    assert int((~y.isfinite()).sum()) == 13


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("scale", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("row", [[INF, 1.0], [-INF, 1.0], [INF, -INF], [INF, 0.0]], ids=str)
def test_an_infinite_row_has_a_gradient_of_nan(
    row: list[float], scale: float, approximate: str, device: str
) -> None:
    """The maximum is NaN by the window (1, -0.5), whose mean hides it: backward may take another
    window, but must not make a finite gradient of that. Other rows do not notice."""
    weight = torch.tensor([[1.0, 1.0], [2.0, 0.5], [1.0, 2.0], [-0.5, 3.0]], device=device)
    bias = torch.zeros(4, device=device)
    x = torch.tensor([[0.3, 1.0], row], device=device)
    op = pool_max_op(2, scale, approximate)

    def gradients(x: Tensor) -> tuple[Tensor, ...]:
        inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
        return torch.autograd.grad(op.call(*inputs).sum(), inputs)

    assert op.call(x, weight, bias)[1].isnan()
    dx, dweight, dbias = gradients(x)
    assert dx[1].isnan().all()
    assert dweight.isnan().any()
    assert dbias.isnan().any()
    torch.testing.assert_close(dx[:1], gradients(x[:1])[0])


@pytest.mark.parametrize("n", [1, 3, 64, 65, 127, 128, 129, 256, 257, 300])
@pytest.mark.parametrize(("z", "scale"), [(-1.0, 1.0), (1.0, -1.0), (-0.5, 0.25), (-3.0, 1.0)])
def test_all_negative_rows_do_not_become_zero(z: float, scale: float, n: int, device: str) -> None:
    """taichi#7735, facebookincubator/velox PR#4208, halide/Halide#298: 0 as the identity of max, or
    as the value of columns beyond N; integer atomics on floats get the order of negatives wrong."""
    x = torch.ones(17, 2, device=device)
    weight = torch.full((n, 2), z / 2, device=device)
    y = pool_max_op(1, scale).check(x, weight)
    torch.testing.assert_close(y, torch.full_like(y, scale * gelu_of(z)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("leading", [(), (1,), (6,), (2, 3), (2, 3, 4), (1, 1, 1, 5)])
def test_leading_dims_are_kept(leading: tuple[int, ...], device: str) -> None:
    """A vector gives a scalar; avg_pool1d of [M, N] pools along N, not along M."""
    _, weight, bias = linear_like(1, 19, 23, device)
    x = torch.randn(*leading, 23, device=device)
    assert pool_max_op(4, 2.0).check(x, weight, bias).shape == leading


@pytest.mark.parametrize("shape", [(0, 12), (0, 5, 12), (5, 0, 12)])
def test_no_rows(shape: tuple[int, ...], device: str) -> None:
    """pytorch#27619, flashinfer PR#4734: a grid of zero blocks is a launch error."""
    _, weight, bias = linear_like(1, 7, 12, device)
    y = pool_max_op(3).check(torch.empty(shape, device=device), weight, bias)
    assert y.shape == shape[:-1]


@pytest.mark.parametrize("with_bias", [True, False])
def test_no_depth(with_bias: bool, device: str) -> None:
    """K = 0: the linear part is the bias, or zero."""
    bias = torch.randn(70, device=device) if with_bias else None
    poison(device, 9)
    x, weight = torch.empty(9, 0, device=device), torch.empty(70, 0, device=device)
    y = pool_max_op(8, -1.5).check(x, weight, bias)
    assert bias is not None or not y.any()


@pytest.mark.parametrize("k", [1, 16, 17, 100])
@pytest.mark.parametrize("values", ["uniform", "positive", "negative", "compensated", "cancelling"])
def test_strict_bound_at_a_moderate_size(values: str, k: int, device: str) -> None:
    """The design's bound without any allowance for luck: 2x eager's own error, on 96 rows."""
    case = Case((96,), 512, 768, values=values, kernel_size=k, seed=6)
    x, weight, bias = case.tensors(device)
    pool_max_op(k, 2.0).check(x, weight, bias, strict=True)
