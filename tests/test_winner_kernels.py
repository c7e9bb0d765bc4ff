"""The kernels that train op B, on the host: a thread for each one of a CTA."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from programs import compile_for_host, pointer

from cutlass_ops.winners import winner_of

GUARD = 4


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp("winners") / "winner_kernels.so"
    return compile_for_host("winner_kernels.cpp", output)


def aligned(size: int, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Memory of NaN, or of -7, and in the middle of it a view that begins on 16 bytes."""
    memory = np.full(size + 4 * GUARD, np.nan if dtype is np.float32 else -7, dtype=dtype)
    begin = GUARD + (-(memory.ctypes.data // 4) - GUARD) % 4
    return memory, memory[begin : begin + size]


def is_poison(values: np.ndarray) -> bool:
    return bool((np.isnan(values) if values.dtype == np.float32 else values == -7).all())


def untouched_around(memory: np.ndarray, view: np.ndarray) -> bool:
    begin = (view.ctypes.data - memory.ctypes.data) // 4
    return is_poison(memory[:begin]) and is_poison(memory[begin + view.size :])


# Rows, windows, K, kernel_size, rows of the weight beyond, shares of a window, windows of a block:
# with one row, rows that fill a slice, slices of every length, more windows than rows, no rows, no
# columns; blocks that are full, that are not, one of every window.
SHAPES = (
    (1, 1, 1, 1, 0, 1, 1),
    (7, 3, 5, 2, 1, 2, 2),
    (64, 6, 132, 4, 3, 3, 1),
    (200, 3, 36, 3, 2, 1, 4),
    (130, 5, 1100, 2, 0, 1, 1),
    (40, 50, 8, 1, 0, 1, 4),
    (40, 50, 8, 1, 0, 1, 1),
    (0, 4, 8, 2, 1, 1, 1),
    (6, 4, 0, 2, 1, 1, 1),
    (2000, 2, 4, 1, 0, 1, 1),
    (2049, 3, 4, 2, 1, 1, 1),
    (8193, 2, 4, 1, 0, 1, 1),
)


WINS = ("any", "one", "threes", "fours", "blocks", "sparse")
# The gradient of x only where rows are few: there is a CTA for every four of them, and its threads
# are started one by one.
CASES = (
    *((wins, shape, "all" if shape[0] <= 200 else "weight") for wins in WINS for shape in SHAPES),
    *(("any", (64, 6, 132, 4, 3, 3, 1), needed) for needed in ("x", "weight")),
)


@pytest.mark.parametrize(("wins", "shape", "needed"), CASES, ids=str)
@pytest.mark.parametrize("vectors", [False, True])
def test_gradients(
    vectors: bool, wins: str, shape: tuple[int, ...], needed: str, kernels: ctypes.CDLL
) -> None:
    """Against float64, and nothing is written but what is to be."""
    m, windows, k, kernel_size, rest, shares, block = shape
    if vectors and k % 4 != 0:
        pytest.skip("rows of another length have no vectors")
    random = np.random.default_rng(m + windows)
    rows = np.arange(m)
    winners = {
        "any": random.integers(0, windows, m),
        "one": np.full(m, windows - 1),
        "threes": rows // 3 % windows,
        "fours": rows // 4 % windows,
        "blocks": rows * windows // max(m, 1),
        # as many terms as a window can have: in no slice enough for a run
        "sparse": np.where(rows % kernels.slice_rows(m) < 3, 0, windows - 1),
    }[wins].astype(np.int32)
    grad, slopes = random.standard_normal((2, m)).astype(np.float32)
    (_, x), (_, windows_of) = aligned(m * k), aligned(windows * k)
    x[:] = random.standard_normal(m * k)
    windows_of[:] = random.standard_normal(windows * k)
    weight_rows = windows * kernel_size + rest
    sizes = (kernels.sums_of_runs(m) * k, 2 * m, m * k, weight_rows * k, weight_rows)
    floats = [aligned(size) for size in sizes]
    integers = aligned(2 * m, np.int32)
    (_, sums), (_, numbers), (_, grad_x), (_, weight), (_, bias) = floats
    inputs = [pointer(array) for array in (grad, winners, slopes, x, windows_of)]
    outputs = [pointer(array) for array in (sums, integers[1], numbers)]
    of_x = pointer(grad_x) if needed != "weight" else None
    of_weight = [pointer(array) for array in (weight, bias)]
    if needed == "x":
        shares = 0
    kernels.winner_gradients(
        *inputs, m, k, weight_rows, kernel_size, shares, block, ctypes.c_bool(vectors),
        *outputs, of_x, *of_weight,
    )  # fmt: skip
    coefficient = (grad * slopes).astype(np.float64)
    expected = np.zeros((windows, k))
    np.add.at(expected, winners, coefficient[:, None] * x.reshape(m, k))
    of_bias = np.bincount(winners, coefficient, windows)
    tolerance = 1e-6 * max(m, 1)
    if needed == "weight":
        assert is_poison(grad_x)
    else:
        products = coefficient[:, None] * windows_of.reshape(windows, k)[winners]
        np.testing.assert_allclose(grad_x.reshape(m, k), products, rtol=1e-6)
    kept = windows * kernel_size
    for found, truth in ((weight.reshape(weight_rows, k), expected), (bias, of_bias)):
        if needed == "x":
            assert is_poison(found)
            continue
        spread = np.repeat(truth / kernel_size, kernel_size, axis=0)
        np.testing.assert_allclose(found[:kept], spread, rtol=1e-5, atol=tolerance)
        assert not found[kept:].any()
    assert all(untouched_around(*pair) for pair in (*floats, integers))


# Columns: one, no multiple of four, a row that fills a thread's fragments, one that does not.
@pytest.mark.parametrize("columns", [1, 31, 512, 1100, 5000])
@pytest.mark.parametrize("splits", [1, 3, 4, 13])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("cta_a_row", [False, True])
def test_row_argmax(
    cta_a_row: bool, vectors: bool, has_bias: bool, splits: int, columns: int, kernels: ctypes.CDLL
) -> None:
    """Of what partial matrices and the bias add up to, in this order. The first of equals, the
    first NaN, infinities; memory beside the rows is NaN."""
    if vectors and columns % 4 != 0:
        pytest.skip("rows of another length have no vectors")
    rows, scale = 11, 1.5
    random = np.random.default_rng(columns + splits)
    row_stride = columns + 4
    split_stride = rows * row_stride
    _, memory = aligned(splits * split_stride)
    parts = memory.reshape(splits, rows, row_stride)[:, :, :columns]
    parts[:] = random.standard_normal(parts.shape)
    _, bias = aligned(columns)
    bias[:] = random.standard_normal(columns)
    parts[:, 1] = 2.0  # equal but for the bias
    if splits > 1:  # which is lost where it comes before the last of these
        parts[:, 1], parts[0, 1], parts[-1, 1] = 0.0, 1e8, -1e8
    parts[-1, 2, columns // 2 :] = np.nan
    parts[0, 3] = np.inf
    parts[0, 4, columns - 1] = -60.0
    parts[-1, 5, columns // 3] = -np.inf
    h = parts[0].copy()
    for part in parts[1:]:
        h += part
    if has_bias:
        h += bias
    (around, values), (_, slopes) = aligned(rows), aligned(rows)
    around_index, index = aligned(rows, np.int32)
    kernels.row_argmax(
        pointer(memory), row_stride, splits, split_stride, pointer(bias) if has_bias else None,
        rows, columns, ctypes.c_float(scale), 1 if columns % 2 else 2, ctypes.c_bool(cta_a_row),
        ctypes.c_bool(vectors), pointer(values), pointer(index), pointer(slopes),
    )  # fmt: skip
    y, expected, _ = winner_of(torch.from_numpy(h).double(), scale, "none")
    np.testing.assert_array_equal(index, expected)
    at = h[np.arange(rows), index]
    np.testing.assert_allclose(values, y, rtol=2e-5, atol=1e-7)
    _, _, truth = winner_of(torch.from_numpy(at).double()[:, None], scale, "none")
    np.testing.assert_allclose(slopes, truth, rtol=1e-5, atol=1e-6)
    assert untouched_around(around, values)
    assert untouched_around(around_index, index)
