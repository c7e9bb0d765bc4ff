"""Where the gradient of the pooled maximum goes: ties, NaN, and the rows of W that get none.

Every entry of W outside of the windows that won some row gets exactly zero. Inputs are small
integers where windows tie, and windows a power of two: sums and means are exact in any order of
summation, so which window is first is no matter of rounding. Elsewhere rows that are nearly tied
have a gradient of zero. (test_autograd.py has the smallest cases, and gradcheck.)
"""

from __future__ import annotations

import math

import pytest
import torch
from fused import linear_like, pool_max_op, same_bits
from gradients import Gradients
from heads import gelu_exact
from torch import Tensor

# (rows, columns, depth, kernel_size): N % k is zero and not, one window, k = 1, k = N, few rows and
# many, more than one tile of a kernel.
SIZES = (
    (5, 12, 7, 3),
    (1, 50, 16, 8),
    (33, 10, 8, 6),
    (9, 16, 12, 16),
    (40, 130, 36, 1),
    (200, 1030, 68, 16),
    (130, 2049, 40, 4),
)
SANITIZED = SIZES[1:3]
sizes = pytest.mark.parametrize(
    "size",
    [pytest.param(s, marks=[pytest.mark.sanitizer] * (s in SANITIZED)) for s in SIZES],
    ids=str,
)
exact_sizes = pytest.mark.parametrize("size", [s for s in SIZES if s[3] in (1, 4, 8, 16)], ids=str)
signs = pytest.mark.parametrize("scale", [1.5, -2.0])


def reals(m: int, n: int, k: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """The same on every device."""
    return tuple(t.to(device) for t in linear_like(m, n, k, "cpu"))  # type: ignore[return-value]


def integers(m: int, n: int, k: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m + n + k)
    shapes = ((m, k), (n, k), (n,))
    return tuple(  # type: ignore[return-value]
        torch.randint(-2, 3, s, generator=generator).float().to(device) for s in shapes
    )


def gradients(
    operands: tuple[Tensor, ...], kernel_size: int, scale: float, g: Tensor | None = None
) -> Gradients:
    leaves = [t.detach().clone().requires_grad_() for t in operands]
    y = pool_max_op(kernel_size, scale).call(*leaves)
    g = torch.ones_like(y) if g is None else g
    return list(torch.autograd.grad(y, leaves, g))


def pooled(operands: tuple[Tensor, ...], kernel_size: int) -> Tensor:
    """The window means in float64, on the CPU."""
    x, weight, bias = (t.detach().double().cpu() for t in operands)
    windows = len(weight) // kernel_size
    z = x @ weight.t() + bias
    return z[:, : windows * kernel_size].reshape(len(x), windows, kernel_size).mean(-1)


def upstream(operands: tuple[Tensor, ...], kernel_size: int, scale: float) -> Tensor:
    """From 1 to 2 over the rows, and zero where rounding might decide between two windows."""
    values = scale * gelu_exact(pooled(operands, kernel_size))
    best = values.amax(-1, keepdim=True)
    nearly = ((values < best) & (values > best - 1e-5)).any(-1)
    return torch.where(nearly, 0, torch.linspace(1, 2, len(values))).to(operands[0])


def expected_gradients(
    operands: tuple[Tensor, ...], kernel_size: int, scale: float, g: Tensor
) -> tuple[Gradients, Tensor]:
    """From the definition, in float64 and on the CPU, with the first of equal values the winner;
    and the windows that won a row whose gradient is not zero."""
    h = pooled(operands, kernel_size)
    values = scale * gelu_exact(h)
    winners = (values == values.amax(-1, keepdim=True)).byte().numpy().argmax(-1)  # the first
    rows, winner = torch.arange(len(h)), torch.from_numpy(winners)
    at = h[rows, winner].requires_grad_()
    (slope,) = torch.autograd.grad(scale * gelu_exact(at).sum(), at)
    dz = torch.zeros(len(h), len(operands[1]), dtype=torch.float64)
    for offset in range(kernel_size):
        dz[rows, winner * kernel_size + offset] = g.double().cpu() * slope / kernel_size
    x, weight, _ = (t.detach().double().cpu() for t in operands)
    return [dz @ weight, dz.t() @ x, dz.sum(0)], winner[g.cpu() != 0].unique()


def columns_of(windows: Tensor, kernel_size: int, n: int) -> Tensor:
    """Which columns are in these windows, as a mask of [n]."""
    mask = torch.zeros(n, dtype=torch.bool)
    for window in windows.tolist():
        mask[window * kernel_size : (window + 1) * kernel_size] = True
    return mask


def check(actual: Gradients, expected: Gradients) -> None:
    """Loosely: GELU's slope near its minimum is a small difference. Rounding is for others."""
    for a, e in zip(actual, expected, strict=True):
        assert a.shape == e.shape
        assert (a.double().cpu() - e).norm() <= 1e-4 * e.norm()


@sizes
@signs
def test_rows_of_no_winning_window_get_exactly_zero(
    size: tuple[int, int, int, int], scale: float, device: str
) -> None:
    m, n, k, kernel_size = size
    operands = reals(m, n, k, device)
    g = upstream(operands, kernel_size, scale)
    expected, windows = expected_gradients(operands, kernel_size, scale, g)
    actual = gradients(operands, kernel_size, scale, g)
    check(actual, expected)
    won = columns_of(windows, kernel_size, n)
    assert not actual[1].cpu()[~won].any()
    assert not actual[2].cpu()[~won].any()
    assert actual[1].cpu()[won].any(-1).all()
    assert actual[2].cpu()[won].all()


@exact_sizes
@signs
def test_equal_windows(size: tuple[int, int, int, int], scale: float, device: str) -> None:
    """The rows of W repeat with a period of a few windows: every winner has equals further on."""
    m, n, k, kernel_size = size
    x, weight, bias = integers(m, n, k, device)
    source = torch.arange(n, device=device) % (2 * kernel_size)
    operands = (x, weight[source], bias[source])
    g = upstream(operands, kernel_size, scale)
    expected, windows = expected_gradients(operands, kernel_size, scale, g)
    assert windows.max() < 2
    actual = gradients(operands, kernel_size, scale, g)
    check(actual, expected)
    assert not actual[1][2 * kernel_size :].any()
    assert not actual[2][2 * kernel_size :].any()


@sizes
def test_all_columns_equal(size: tuple[int, int, int, int], device: str) -> None:
    """All of the gradient goes to the first window, of every row."""
    m, n, k, kernel_size = size
    x, weight, bias = integers(m, n, k, device)
    operands = (x, weight[:1].expand(n, k), bias[:1].expand(n))
    g = upstream(operands, kernel_size, 1.5)
    expected, windows = expected_gradients(operands, kernel_size, 1.5, g)
    assert windows.tolist() == [0]
    actual = gradients(operands, kernel_size, 1.5, g)
    check(actual, expected)
    assert not actual[1][kernel_size:].any()
    assert not actual[2][kernel_size:].any()


@sizes
def test_one_window_wins_all_rows(size: tuple[int, int, int, int], device: str) -> None:
    """The last: its gradient is a sum over all rows, and as far as W goes."""
    m, n, k, kernel_size = size
    x, weight, bias = reals(m, n, k, device)
    last = n // kernel_size - 1
    bias[last * kernel_size : (last + 1) * kernel_size] += 100
    operands = (x, weight, bias)
    g = upstream(operands, kernel_size, 1.5)
    expected, windows = expected_gradients(operands, kernel_size, 1.5, g)
    assert windows.tolist() == [last]
    actual = gradients(operands, kernel_size, 1.5, g)
    check(actual, expected)
    won = columns_of(windows, kernel_size, n)
    assert not actual[1].cpu()[~won].any()
    assert not actual[2].cpu()[~won].any()


def nan_columns(grad: Tensor) -> list[int]:
    return grad.isnan().nonzero().flatten().tolist()  # type: ignore[no-any-return]


def window(index: int, kernel_size: int) -> list[int]:
    return list(range(index * kernel_size, (index + 1) * kernel_size))


@sizes
@signs
def test_rows_of_nan(size: tuple[int, int, int, int], scale: float, device: str) -> None:
    """pytorch PR#1465, #40131: no winner, index -1 saved, and backward wrote out of bounds. Here
    every window of the row is NaN, and the first has the gradient; other rows do not notice."""
    m, n, k, kernel_size = size
    x, weight, bias = reals(m, n, k, device)
    clean = gradients((x, weight, bias), kernel_size, scale)
    poisoned = x.clone()
    poisoned[m // 2] = math.nan
    dx, dweight, dbias = gradients((poisoned, weight, bias), kernel_size, scale)
    assert nan_columns(dbias) == window(0, kernel_size)
    assert dx[m // 2].isnan().all()
    others = torch.arange(m, device=device) != m // 2
    check([dx[others]] if m > 1 else [], [clean[0][others].double().cpu()] if m > 1 else [])
    assert dweight[:kernel_size].isnan().all()

    dx, dweight, dbias = gradients((x * math.nan, weight, bias), kernel_size, scale)
    assert nan_columns(dbias) == window(0, kernel_size)
    assert dx.isnan().all()
    assert dweight.shape == weight.shape
    rest = dbias[kernel_size:]
    assert same_bits(rest.abs(), torch.zeros_like(rest))


@sizes
def test_the_first_of_several_nan_windows(size: tuple[int, int, int, int], device: str) -> None:
    """In the weight, in the bias, and in the remainder, where it plays no part."""
    m, n, k, kernel_size = size
    x, weight, bias = reals(m, n, k, device)
    windows = n // kernel_size
    first, second = windows // 2, windows - 1
    for in_bias in (False, True):
        w, b = weight.clone(), bias.clone()
        for index in (first, second):
            column = index * kernel_size + kernel_size - 1
            if in_bias:
                b[column] = math.nan
            else:
                w[column, k // 2] = math.nan
        dx, dweight, dbias = gradients((x, w, b), kernel_size, 1.5)
        assert nan_columns(dbias) == window(first, kernel_size)
        won = columns_of(torch.tensor([first]), kernel_size, n)
        assert dweight.cpu()[won].isnan().all()
        assert not dweight.cpu()[~won].any()
        assert dx.isnan().all()

    remainder = n - windows * kernel_size
    if remainder:
        w, b = weight.clone(), bias.clone()
        w[n - remainder :] = math.nan
        b[n - remainder :] = math.nan
        actual = gradients((x, w, b), kernel_size, 1.5)
        for a, clean in zip(actual, gradients((x, weight, bias), kernel_size, 1.5), strict=True):
            assert same_bits(a, clean)
        assert not actual[1][n - remainder :].any()
        assert not actual[2][n - remainder :].any()
