"""How a row of the softmax is shared out to threads, run on the host: every width, every offset
from a 16-byte boundary, of each operand for itself."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import compile_for_host

# The order of kRunners in row_shares.cpp: the most columns of each configuration.
LONGEST = (8, 64, 512, 1024, 8192, 3072)
GUARD = 8
OFFSETS = st.integers(0, 3)


@pytest.fixture(scope="session")
def shares(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = compile_for_host("row_shares.cpp", tmp_path_factory.mktemp("rows") / "row_shares.so")
    library.softmax_rows.restype = ctypes.c_bool
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
        ctypes.c_void_p(source.ctypes.data),
        rows,
        columns,
        ctypes.c_long(columns + gap),
        splits,
        ctypes.c_long(rows * (columns + gap)),
        ctypes.c_void_p(addend.ctypes.data),
        ctypes.c_void_p(out.ctypes.data),
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
