"""How a row of the softmax, or of its gradient, is shared out to threads, run on the host: every
width, every offset from a 16-byte boundary, of each operand for itself."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from gradients import check_sums_of_rows
from heads import gelu_exact
from hypothesis import given
from hypothesis import strategies as st
from programs import compile_for_host, pointer

# The order of kRunners in row_shares.cpp: the most columns of each configuration.
LONGEST = (8, 64, 512, 1024, 8192, 3072)
GRADIENT_LONGEST = (8, 64, 512, 2048)  # of kGradientRunners
GUARD = 8
OFFSETS = st.integers(0, 3)


@pytest.fixture(scope="session")
def shares(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = compile_for_host("row_shares.cpp", tmp_path_factory.mktemp("rows") / "row_shares.so")
    library.softmax_rows.restype = library.gradient_rows.restype = ctypes.c_bool
    return library


def at_offset(values: np.ndarray, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """NaN, and in the middle of it a copy that begins `offset` floats behind a boundary."""
    memory = np.full(values.size + 2 * GUARD + 8, np.nan, dtype=np.float32)
    begin = GUARD + (-(memory.ctypes.data // 4) - GUARD) % 4 + offset
    copy = memory[begin : begin + values.size].reshape(values.shape)
    copy[...] = values
    return memory, copy


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def check_rows(
    library: ctypes.CDLL,
    index: int,
    columns: int,
    offsets: tuple[int, int, int],
    gap: int = 0,
    splits: int = 1,
    inplace: bool = False,
) -> None:
    """Five rows, `gap` floats apart in the source; what is around them is NaN, and stays NaN."""
    rows = 5
    random = np.random.default_rng(columns)
    z = random.standard_normal((splits, rows, columns + gap)).astype(np.float32)
    z[:, :, columns:] = np.nan
    bias = random.standard_normal(columns).astype(np.float32)
    memory, source = at_offset(z, offsets[0])
    _, addend = at_offset(bias, offsets[1])
    beside, out = at_offset(np.full((rows, columns), np.nan, dtype=np.float32), offsets[2])
    if inplace:
        beside, out = memory, source[0]
    aligned = library.softmax_rows(
        index,
        pointer(source),
        rows,
        columns,
        ctypes.c_long(columns + gap),
        splits,
        ctypes.c_long(rows * (columns + gap)),
        pointer(addend),
        pointer(out),
    )
    assert aligned
    expected = softmax((z.astype(np.float64).sum(0) + np.pad(bias, (0, gap)))[:, :columns])
    np.testing.assert_allclose(out, expected, rtol=3e-5, atol=1e-12)
    assert np.isfinite(beside).sum() == out.size + (splits - 1 if inplace else 0) * out.size


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("index", range(len(LONGEST)))
def test_edges_of_a_configuration(shares: ctypes.CDLL, index: int, offset: int) -> None:
    """The longest row begins where it takes least fragments, and where it takes most."""
    longest = LONGEST[index]
    widths = {longest // 3 + 1, longest // 2 + 1, *range(longest - 5, longest + 1)}
    for columns in sorted(widths):
        check_rows(shares, index, columns, (offset, 0, offset))
        check_rows(shares, index, columns, (offset, 3, 0), inplace=True)


@pytest.mark.parametrize("offset", range(4))
def test_every_width_of_a_few_threads(shares: ctypes.CDLL, offset: int) -> None:
    """Rows that are all edge among them."""
    for columns in range(1, 65):
        check_rows(shares, 1, columns, (offset, 0, offset))
    for columns in range(1, 200):
        check_rows(shares, 4, columns, (offset, 0, offset))


@given(
    index=st.integers(0, len(LONGEST) - 1),
    width=st.floats(0, 1),
    offsets=st.tuples(OFFSETS, OFFSETS, OFFSETS),
    gap=st.integers(0, 5),
    splits=st.integers(1, 3),
)
def test_operands_that_lie_differently(
    shares: ctypes.CDLL,
    index: int,
    width: float,
    offsets: tuple[int, int, int],
    gap: int,
    splits: int,
) -> None:
    """Source, splits, bias and output each beside a boundary of its own in every row."""
    columns = max(1, round(width * LONGEST[index]))
    check_rows(shares, index, columns, offsets, gap, splits)


def check_gradient_rows(
    library: ctypes.CDLL,
    index: int,
    columns: int,
    offsets: tuple[int, int, int, int, int],
    stride: int | None = None,
    biased: bool = True,
) -> None:
    """Five rows; those of g `stride` floats apart, or all the same. Every operand is amid NaN."""
    rows = 5
    random = np.random.default_rng(columns)
    stride = columns if stride is None else stride
    wide = np.full(rows * stride + columns, np.nan, dtype=np.float32)
    for row in range(rows):
        wide[row * stride : row * stride + columns] = random.standard_normal(columns)
    _, g = at_offset(wide, offsets[0])
    _, z = at_offset(random.standard_normal((rows, columns)).astype(np.float32), offsets[1])
    _, bias = at_offset(random.standard_normal(columns).astype(np.float32), offsets[2])
    h = torch.from_numpy(z.astype(np.float64) + bias * biased).requires_grad_()
    y64 = torch.softmax(gelu_exact(h), -1)
    _, y = at_offset(y64.detach().float().numpy(), offsets[3])
    beside, dz = at_offset(np.full((rows, columns), np.nan, dtype=np.float32), offsets[4])
    sums = np.zeros(columns, dtype=np.float32)
    arrays = [pointer(a) for a in (g, y, z, bias, dz, sums)]
    addend = arrays[3] if biased else None
    aligned = library.gradient_rows(
        index, arrays[0], ctypes.c_long(stride), *arrays[1:3], addend, rows, columns, *arrays[4:]
    )
    assert aligned
    upstream = np.stack([g[row * stride : row * stride + columns] for row in range(rows)])
    (expected,) = torch.autograd.grad(y64, h, torch.from_numpy(upstream).double())
    np.testing.assert_allclose(dz, expected.numpy(), rtol=1e-4, atol=2e-6)
    assert np.isfinite(beside).sum() == dz.size
    if columns % 4 == 0 and offsets[4] == 0:  # rows without edges
        np.testing.assert_allclose(sums, dz.sum(0), rtol=1e-4, atol=1e-5)


def test_errors_of_the_gradient_do_not_add_up(shares: ctypes.CDLL) -> None:
    """Where all of g have one exponent, g - sum(g * y) would be off by the same for all columns."""
    rows, columns = 8, GRADIENT_LONGEST[-1]
    random = np.random.default_rng(1)
    g = random.choice([-1, 1], (rows, columns)) * (1 + random.random((rows, columns)))
    z = random.standard_normal((rows, columns)) / 4
    y = torch.softmax(gelu_exact(torch.from_numpy(z)), -1).numpy()
    _, g, z, y, dz = (at_offset(a.astype(np.float32), 0)[1] for a in (g, g, z, y, g))
    sums = np.zeros(columns, dtype=np.float32)
    arrays = [pointer(a) for a in (g, y, z, dz, sums)]
    assert shares.gradient_rows(
        len(GRADIENT_LONGEST) - 1, arrays[0], ctypes.c_long(columns), *arrays[1:3], None, rows,
        columns, *arrays[3:],
    )  # fmt: skip
    check_sums_of_rows(*(torch.from_numpy(a) for a in (dz, g, z, y)))


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("index", range(len(GRADIENT_LONGEST)))
def test_edges_of_a_configuration_of_the_gradient(
    shares: ctypes.CDLL, index: int, offset: int
) -> None:
    longest = GRADIENT_LONGEST[index]
    widths = {1, 2, 7, longest // 3 + 1, longest // 2, *range(longest - 5, longest + 1)}
    for columns in sorted(width for width in widths if width <= longest):
        check_gradient_rows(shares, index, columns, (offset, offset, 0, offset, offset))
        check_gradient_rows(shares, index, columns, (0, 3, 0, offset, 1), 0, biased=False)


@given(
    index=st.integers(0, len(GRADIENT_LONGEST) - 1),
    width=st.floats(0, 1),
    offsets=st.tuples(OFFSETS, OFFSETS, OFFSETS, OFFSETS, OFFSETS),
    gap=st.integers(0, 5),
    biased=st.booleans(),
)
def test_operands_of_the_gradient_that_lie_differently(
    shares: ctypes.CDLL,
    index: int,
    width: float,
    offsets: tuple[int, int, int, int, int],
    gap: int,
    biased: bool,
) -> None:
    columns = max(1, round(width * GRADIENT_LONGEST[index]))
    check_gradient_rows(shares, index, columns, offsets, columns + gap, biased)
