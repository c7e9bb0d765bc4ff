"""The kernels that train op B: the first of a row's maxima, and the gradients of its winners."""

from __future__ import annotations

import math

import pytest
import torch
from exact_winners import definition, dense_gradients
from fake_kernels import workspace_of
from fused import linear_like
from native import KERNELS, OPS, guarded, guards_are_intact, needs_binary
from torch.testing import assert_close

from cutlass_ops import winners

pytestmark = needs_binary

# Rows in a warp and in the CTA, and no number of columns that either has a use for.
WIDTHS = (1, 2, 31, 32, 33, 257, 1024, 1025, 5000, 100_003)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_row_argmax(activation: str, n: int, gpu: str) -> None:
    """Rows of any stride; the first of equals; the first NaN; nothing but -inf."""
    approximate = "none" if activation == "gelu" else "tanh"
    wide = torch.randn(70, n + 3, device=gpu)
    h = wide[:, 1 : n + 1]
    h[1] = float(h[1, 0])
    h[2, n // 2 :] = math.nan
    h[3] = math.inf  # -inf, scaled
    h[4, n - 1] = -60.0
    memory, both = guarded((2, 70), gpu)
    index = torch.full((72,), -7, dtype=torch.int32, device=gpu)
    OPS._row_argmax(h, activation, -1.5, both[0], index[1:71], both[1])
    y, expected, _ = winners.winner_of(h.cpu().double(), -1.5, approximate)
    assert guards_are_intact(memory)
    assert index[0] == -7
    assert index[71] == -7
    assert torch.equal(index[1:71].cpu()[1:4], expected[1:4])
    # where two are equal but for rounding, either may be the first
    value_there = h.cpu().double().gather(1, index[1:71].cpu().long()[:, None]).squeeze(1)
    assert_close(both[0].cpu().double(), y, rtol=2e-5, atol=1e-7, equal_nan=True)
    ours = winners.winner_of(value_there[:, None], -1.5, approximate)
    assert_close(ours[0], y, rtol=1e-6, atol=1e-7, equal_nan=True)
    assert_close(both[1].cpu().double(), ours[2], rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 4])
@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize("name", ["skinny", "simt_64x64x8"])
def test_winners_of_partial_matrices(
    name: str, splits: int, kernel_size: int, has_bias: bool, gpu: str
) -> None:
    """The maximum is taken of what the partial matrices add up to, or of h, as the plan leaves it;
    memory holds NaN before."""
    m, windows, k, kernel = 37, 36, 96, KERNELS.index(name)
    x, weight, bias = linear_like(m, windows * kernel_size, k, gpu)
    workspace = workspace_of("identity", (), (m, windows, k), kernel, splits, False)
    memory = x.new_full((OPS._winner_memory(m, windows, workspace),), math.nan)
    folded = x.new_empty(windows, k) if kernel_size > 1 else None
    y, slopes = x.new_full((2, m), math.nan)
    index = torch.full((m,), -7, dtype=torch.int32, device=gpu)
    OPS._linear_winners(
        x, weight, bias if has_bias else None, kernel_size, "gelu", 2.0, kernel, splits, memory,
        folded, y, index, slopes,
    )  # fmt: skip
    z = x.double() @ weight.double().t() + (bias.double() if has_bias else 0.0)
    expected = definition(z, kernel_size, 2.0, "none")
    assert_close(y.double(), expected[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(index.long(), expected[1])
    assert_close(slopes.double(), expected[2], rtol=1e-4, atol=1e-5)


SANITIZED = ((5, 3, 7, 2, 1), (1100, 2, 36, 3, 2), (8195, 9, 4, 1, 0))


@pytest.mark.sanitizer
@pytest.mark.parametrize("shape", SANITIZED, ids=str)
def test_small_gradients(shape: tuple[int, ...], gpu: str) -> None:
    m, windows, k, kernel_size, rest = shape
    rows = windows * kernel_size + rest
    grad, slopes = torch.randn(2, m, device=gpu)
    index = torch.randint(0, windows, (m,), device=gpu, dtype=torch.int32)
    x, weight = torch.randn(m, k, device=gpu), torch.randn(windows, k, device=gpu)
    found = OPS.winner_gradients(
        grad, index, slopes, x, weight, rows, kernel_size, True, True, True
    )
    expected = dense_gradients((grad * slopes).double(), index, x, weight, rows, kernel_size)
    for result, truth in zip(found, expected, strict=True):
        assert_close(result.double(), truth, rtol=1e-4, atol=1e-4)


@pytest.mark.sanitizer
@pytest.mark.parametrize("n", [1, 37, 1030])
def test_small_row_argmax(n: int, gpu: str) -> None:
    h = torch.randn(9, n, device=gpu)
    y, slopes = torch.full((2, 9), math.nan, device=gpu)
    index = torch.full((9,), -7, dtype=torch.int32, device=gpu)
    OPS._row_argmax(h, "gelu", 2.0, y, index, slopes)
    assert torch.equal(index.long(), winners.winner_of(h, 2.0, "none")[1].long())
