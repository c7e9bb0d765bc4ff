"""gelu_softmax, gelu_scale_max, softmax and fold_linear: the ops for those who keep their own
GEMM."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from fused import poison, run_opcheck, same_bits
from heads import gelu_exact, pool_max_head, softmax_head
from hypothesis import given
from hypothesis import strategies as st
from operands import Matrix
from oracle import check
from strategies import BIASES, LAYOUTS, dims, kernel_sizes, lay_out, make_bias
from torch import Tensor

import cutlass_ops

NAN, INF = math.nan, math.inf
OPS = torch.ops.cutlass_ops


@st.composite
def matrices(draw: st.DrawFn) -> Callable[[str], tuple[Tensor, Tensor | None]]:
    """A function from a device to z [M, N] and a bias [N] or None."""
    n = draw(dims(100_000))
    m = draw(dims(max(1, 200_000 // n)))
    spread = draw(st.sampled_from([0.1, 1.0, 10.0, 1e4]))
    shift = draw(st.sampled_from([0.0, 3.0, -3.0, 1e3]))
    layout, bias = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(BIASES))
    seed = draw(st.integers(0, 2**31 - 1))

    def build(device: str) -> tuple[Tensor, Tensor | None]:
        generator = torch.Generator(device).manual_seed(seed)
        z = torch.randn(m, n, generator=generator, device=device) * spread + shift
        return lay_out(z, layout), make_bias(bias, n, generator)

    return build


approximations = st.sampled_from(["none", "tanh"])


@given(build=matrices(), approximate=approximations)
def test_gelu_softmax(build: Callable, approximate: str, device: str) -> None:
    z, bias = build(device)
    poison(device, *z.shape)
    y = cutlass_ops.gelu_softmax(z, bias, approximate=approximate)
    check(y, softmax_head(approximate), Matrix(z, bias))
    run_opcheck(OPS.gelu_softmax.default, (z, bias, approximate))


@given(
    build=matrices(), approximate=approximations, scale=st.sampled_from([1.0, -1.0, 2.5, 0.0, -1e4])
)
def test_gelu_scale_max(build: Callable, approximate: str, scale: float, device: str) -> None:
    z, bias = build(device)
    poison(device, len(z))
    y = cutlass_ops.gelu_scale_max(z, bias, scale=scale, approximate=approximate)
    check(y, pool_max_head(1, scale, approximate), Matrix(z, bias))
    run_opcheck(OPS.gelu_scale_max.default, (z, bias, scale, approximate))


@given(build=matrices())
def test_softmax(build: Callable, device: str) -> None:
    z, _ = build(device)
    poison(device, *z.shape)
    check(cutlass_ops.softmax(z), softmax_head(activation=False), Matrix(z))
    run_opcheck(OPS.softmax.default, (z,))


@given(build=matrices(), power=st.integers(-3, 6))
def test_softmax_of_shifted_rows_is_the_same(build: Callable, power: int, device: str) -> None:
    """By a power of two that is exact for the rounded logits, so that the bits agree."""
    z, _ = build(device)
    z = (z.clamp(-100, 100) * 64).round() / 64
    shift = 2.0**power
    assert same_bits(cutlass_ops.softmax(z), cutlass_ops.softmax(z + shift))


@given(n=dims(3000), m=dims(60), data=st.data())
def test_fold_linear(n: int, m: int, data: st.DataObject, device: str) -> None:
    """The mean of k rows, within one rounding of the float64 mean; the remainder plays no part."""
    k = data.draw(kernel_sizes(n))
    layout = data.draw(st.sampled_from(LAYOUTS))
    generator = torch.Generator(device).manual_seed(n * 61 + m)
    weight = lay_out(torch.randn(n, m, generator=generator, device=device), layout)
    bias = make_bias(data.draw(st.sampled_from(BIASES)), n, generator)
    poison(device, n // k, m)
    folded = cutlass_ops.fold_linear(weight, bias, k)
    assert folded[0].shape == (n // k, m)
    assert (folded[1] is None) == (bias is None)
    for result, source in zip(folded, (weight, bias), strict=True):
        if source is None or result is None:
            continue
        exact = source[: n // k * k].double().unflatten(0, (n // k, k)).mean(1)
        magnitude = source[: n // k * k].double().abs().unflatten(0, (n // k, k)).mean(1)
        # Accumulated in float64: one rounding to float32 and no cancellation error worth naming.
        assert ((result.double() - exact).abs() <= 2**-24 * exact.abs() + 1e-14 * magnitude).all()
        assert result.is_contiguous()
    run_opcheck(OPS.fold_rows.default, (weight, k))


def test_folding_does_not_overflow(device: str) -> None:
    weight = torch.full((6, 5), 3e38, device=device)
    bias = torch.full((6,), -3e38, device=device)
    folded, folded_bias = cutlass_ops.fold_linear(weight, bias, 3)
    assert same_bits(folded, weight[:2])
    assert same_bits(folded_bias, bias[:2])


def test_folding_keeps_nan_and_infinity_in_their_window(device: str) -> None:
    weight = torch.ones(7, 3, device=device)
    weight[0, 0], weight[3, 1], weight[6, 2] = NAN, -INF, NAN
    folded, _ = cutlass_ops.fold_linear(weight, None, 2)
    assert folded.isnan().nonzero().tolist() == [[0, 0]]
    assert folded[1].tolist() == [1.0, -INF, 1.0]
    assert folded[2].tolist() == [1.0, 1.0, 1.0]  # row 6 is the remainder


@pytest.mark.parametrize(
    "n", [1, 2, 3, 31, 33, 1023, 1025, 4097, 8191, 8192, 8193, 32769, 65537, 1_048_577]
)
def test_softmax_of_any_row_length(n: int, device: str) -> None:
    """In registers, by ever more threads a row, and streaming: each has its edges."""
    z = torch.randn(5, n, device=device) * 3
    check(cutlass_ops.softmax(z), softmax_head(activation=False), Matrix(z))
    check(cutlass_ops.gelu_softmax(z), softmax_head(), Matrix(z))
    check(cutlass_ops.gelu_scale_max(z, scale=-1.0), pool_max_head(1, -1.0), Matrix(z))


@pytest.mark.parametrize("n", [1, 7, 64, 1000, 20_000])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_softmax_of_non_finite_rows(bad: float, n: int, device: str) -> None:
    """As torch: NaN or +inf takes its row; -inf alone is a zero, and a row of nothing else is
    NaN."""
    z = torch.randn(4, n, device=device)
    z[1, n // 2] = bad
    z[3] = bad
    y, expected = cutlass_ops.softmax(z), torch.softmax(z.double(), -1)
    assert torch.equal(y.isnan(), expected.isnan())
    assert y[1, n // 2].isnan() or y[1, n // 2] == 0
    clean = cutlass_ops.softmax(z[[0, 2]])
    assert same_bits(y[[0, 2]], clean)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_the_infinities(approximate: str, device: str) -> None:
    """GELU(+inf) = +inf and GELU(-inf) = NaN on every device, whatever a vectorised kernel makes of
    it."""
    z = torch.tensor([[INF], [-INF], [NAN], [3e38], [-3e38]], device=device)
    for columns in (1, 40):  # scalar and vectorised paths
        wide = z.expand(5, columns).contiguous()
        y = cutlass_ops.gelu_scale_max(wide, approximate=approximate)
        assert y[0] == INF
        assert y[1].isnan()
        assert y[2].isnan()
        assert y[3] == z[3, 0]
        assert y[4] == 0


@pytest.mark.parametrize("z", [-1.0, -2.0, -3.0, -4.0, -5.0, -5.5, -6.0, -7.0, -8.0, -9.0, -10.0])
def test_negative_tail_of_gelu_does_not_cancel(z: float, device: str) -> None:
    """pytorch#187806, tenstorrent/tt-metal#56490: 1 + erf is 57 % off at -5.5 and exactly 0 from -6
    on.

    Through every op that shows GELU itself: the maximum of one column.
    """
    exact = float(gelu_exact(torch.tensor(z, dtype=torch.float64)))
    x, one = torch.tensor([[z]], device=device), torch.ones(1, 1, device=device)
    results = [
        cutlass_ops.gelu_scale_max(x),
        cutlass_ops.linear_avgpool_gelu_scale_max(x, one, kernel_size=1),
        cutlass_ops.linear_avgpool_gelu_scale_max(x, one.expand(4, 1), kernel_size=2),
        OPS.linear_epilogue(x, one, None, "gelu", []),
    ]
    assert all(float(y) == pytest.approx(exact, rel=2e-5) for y in results), results


@pytest.mark.parametrize(("approximate", "largest"), [("none", 2e-5), ("tanh", 2e-4)])
def test_gelu_is_accurate_everywhere(approximate: str, largest: float, device: str) -> None:
    """Relative error of each value on a fine grid; tanh's argument grows with z^3, and its error
    too."""
    z = torch.linspace(-10 if approximate == "none" else -5, 10, 200_001, device=device)[:, None]
    y = cutlass_ops.gelu_scale_max(z, approximate=approximate).double()
    exact = gelu_exact(z.double(), approximate).squeeze(1)
    error = (y - exact).abs() / exact.abs().clamp_min(1e-300)
    assert error.max() <= largest
    assert error[z.squeeze(1) > -1].max() <= 1e-6


@pytest.mark.parametrize("leading", [(), (0,), (2, 3), (2, 0, 3)])
def test_leading_dims_of_the_parts(leading: tuple[int, ...], device: str) -> None:
    z, bias = torch.randn(*leading, 21, device=device), torch.randn(21, device=device)
    check(cutlass_ops.softmax(z), softmax_head(activation=False), Matrix(z))
    check(cutlass_ops.gelu_softmax(z, bias), softmax_head(), Matrix(z, bias))
    check(cutlass_ops.gelu_scale_max(z, bias), pool_max_head(1), Matrix(z, bias))


def test_parts_compose_to_the_whole(device: str) -> None:
    """fold_linear, one's own F.linear, gelu_scale_max: the recipe for those who keep their GEMM."""
    x, weight = torch.randn(40, 96, device=device), torch.randn(70, 96, device=device) / 10
    bias = torch.randn(70, device=device)
    w2, b2 = cutlass_ops.fold_linear(weight, bias, 4)
    parts = cutlass_ops.gelu_scale_max(torch.nn.functional.linear(x, w2, b2), scale=2.0)
    whole = cutlass_ops.linear_avgpool_gelu_scale_max(x, weight, bias, kernel_size=4, scale=2.0)
    torch.testing.assert_close(parts, whole, rtol=2e-5, atol=2e-6)


def test_strided_rows_are_read_in_place(device: str) -> None:
    """z of a wider matrix, an unaligned one, and a transposed one."""
    wide = torch.full((50, 301), NAN, device=device)
    z = wide[:, 1:258]
    z.copy_(torch.randn(50, 257, device=device))
    for view in (z, z.t(), z[:, ::2], z[::3]):
        check(cutlass_ops.gelu_softmax(view), softmax_head(), Matrix(view))
        check(cutlass_ops.gelu_scale_max(view), pool_max_head(1), Matrix(view))
        check(cutlass_ops.softmax(view), softmax_head(activation=False), Matrix(view))
