"""The device functors, compiled for the host: steps, sinks and monoids, raster and staging.

The GPU runs the same code through its adapters; here every value can be looked at without one.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import re
import textwrap
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from programs import (
    ROOT,
    compile_for_host,
    compile_library,
    cutlass_include,
    load_module,
    nvcc,
)
from torch.nn import functional as F

# The order of kRunners in host_functors.cpp.
IDENTITY, GELU, GELU_TANH, RELU, POOL_GELU_SCALE, POOL_GELU_SCALE_MAX, SUM, SCALE_POOL_POOL = range(
    8
)
SOFTMAX_GELU = 8


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp("host") / "host_functors.so"
    library = compile_for_host("host_functors.cpp", output)
    library.combine_max.restype = library.max_identity.restype = ctypes.c_float
    library.combine_max.argtypes = [ctypes.c_float, ctypes.c_float]
    return library


@pytest.fixture(scope="session")
def staging(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    flags = ["-std=c++17", "-arch=sm_80", "-Xcompiler=-fPIC", "-isystem", str(cutlass_include())]
    output = tmp_path_factory.mktemp("staging") / "simt_staging.so"
    return compile_library([str(nvcc()), *flags], "simt_staging.cu", output)


def pointer(array: np.ndarray | None) -> ctypes.c_void_p | None:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def run(
    host: ctypes.CDLL,
    description: int,
    z: np.ndarray,
    bias: np.ndarray | None = None,
    params: tuple[float, ...] = (),
    slot_columns: int = 1 << 20,
    outputs: tuple[int, ...] = (),
) -> np.ndarray:
    """z [splits, rows, columns] through a description; `outputs` is the shape of the result."""
    splits, rows, columns = z.shape
    numbers = np.array(params, dtype=np.float64)
    out = np.full(outputs or (rows, columns), np.nan, dtype=np.float32)
    stride = ctypes.c_long(z.strides[1] // 4)
    host.run_description(
        description,
        pointer(z),
        rows,
        columns,
        stride,
        splits,
        pointer(bias),
        pointer(numbers),
        len(params),
        slot_columns,
        pointer(out),
    )
    return out


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def exact(z: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(z).double()


def gelu64(z: torch.Tensor) -> torch.Tensor:
    return z * torch.erfc(-z / 2**0.5) / 2


REFERENCES: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    IDENTITY: lambda z: z,
    GELU: gelu64,
    GELU_TANH: lambda z: F.gelu(z, approximate="tanh"),
    RELU: F.relu,
}


@pytest.mark.parametrize("description", REFERENCES)
@pytest.mark.parametrize("columns", [1, 3, 4, 5, 130])
def test_elementwise_chains(host: ctypes.CDLL, description: int, columns: int) -> None:
    z, bias = normal(1, 3, columns), normal(columns, seed=1)
    expected = REFERENCES[description](exact(z[0]) + exact(bias)).numpy()
    np.testing.assert_allclose(run(host, description, z, bias), expected, rtol=3e-6, atol=1e-7)


def test_gelu_keeps_its_negative_tail(host: ctypes.CDLL) -> None:
    """1 + erf is 17 % off at -5 and zero from -6 on (pytorch#187806)."""
    z = np.linspace(-10, 10, 4001, dtype=np.float32)[None, None]
    for description, rtol in ((GELU, 2e-5), (GELU_TANH, 2e-5)):
        tail = exact(z[0])
        if description == GELU:
            expected = gelu64(tail)
        else:
            expected = tail * torch.sigmoid(2 * (2 / np.pi) ** 0.5 * (tail + 0.044715 * tail**3))
        np.testing.assert_allclose(run(host, description, z), expected.numpy(), rtol=rtol)


def test_gelu_of_non_finite_values(host: ctypes.CDLL) -> None:
    z = np.array([[[np.nan, np.inf, -np.inf, -1e30, 1e30]]], dtype=np.float32)
    for description in (GELU, GELU_TANH, SOFTMAX_GELU):
        y = run(host, description, z)[0]
        assert np.isnan(y[0])
        assert y[1] == np.inf
        assert np.isnan(y[2])
        assert y[3] == 0
        assert y[4] == np.float32(1e30)


def test_gelu_for_the_softmax(host: ctypes.CDLL) -> None:
    """A polynomial: the absolute error is bounded, which is all that the softmax behind it sees."""
    huge = np.array([6.5, 7, 10, 12, 16, 30, 1e3, 1e10, 1e30, 3.4e38])
    x = np.concatenate([np.linspace(-20, 20, 400_001), huge, -huge, [0.0, -0.0, 1e-30, -1e-42]])
    z = x.astype(np.float32)[None, None]
    y = run(host, SOFTMAX_GELU, z)[0].astype(np.float64)
    error = np.abs(y - gelu64(exact(z[0, 0])).numpy())
    assert (error <= 1e-7 * np.maximum(1, np.abs(z[0, 0]))).all()
    assert error[z[0, 0] < 0].max() < 5e-8
    assert (y[z[0, 0] > 10] == z[0, 0][z[0, 0] > 10]).all()


@pytest.mark.parametrize("tanh", [False, True])
def test_derivatives_of_gelu(host: ctypes.CDLL, tanh: bool) -> None:
    """Beside zero the error is absolute, for the derivative has one at -0.75; in the tail it is
    relative, where 1 + erf would leave nothing. Far out it is 0 or 1, and no inf * 0."""
    huge = np.array([15.0, 40.0, 41.0, 1e3, 1e10, 1e19, 1e30, 3.4e38])
    x = np.concatenate([np.linspace(-12, 12, 200_001), huge, -huge, [0.0, 1e-30, -1e-42]])
    x = x.astype(np.float32)
    y = np.empty_like(x)
    host.gelu_derivatives(ctypes.c_bool(tanh), pointer(x), len(x), pointer(y))
    z = exact(x).clamp(-100, 100).requires_grad_()
    slope = (2 / np.pi) ** 0.5 * 2
    g = z * torch.sigmoid(slope * (z + 0.044715 * z**3)) if tanh else gelu64(z)
    (expected,) = torch.autograd.grad(g.sum(), z)
    error = np.abs(y - expected.numpy())
    assert error.max() < 4e-7
    tail = (x < -2) & (x > (-5 if tanh else -10))
    assert (error[tail] <= 1e-4 * expected.abs().numpy()[tail]).all()
    assert (y[x >= 15] == 1).all()
    assert (y[x <= -15] == 0).all()
    special = np.array([np.nan, np.inf, -np.inf], dtype=np.float32)
    host.gelu_derivatives(ctypes.c_bool(tanh), pointer(special), 3, pointer(y))
    assert np.isnan(y[:3]).all()


def test_coefficients_are_those_of_the_fit() -> None:
    fit = load_module(ROOT / "scripts" / "fit_softmax_gelu.py")
    header = (ROOT / "include/cutlass_ops/epilogue/softmax_gelu.h").read_text()
    written = re.findall(r"(?:float p = |fmaf\(p, t, )(-?[\d.e-]+)f", header)
    coefficients, error = fit.fit(len(written) - 1)
    np.testing.assert_allclose([float(c) for c in written], coefficients[::-1], rtol=1e-6)
    assert error < 1e-8


@given(
    kernel_size=st.integers(1, 20),
    windows=st.integers(1, 9),
    remainder=st.integers(0, 19),
    splits=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_pooling_reads_its_windows_and_nothing_else(
    host: ctypes.CDLL, kernel_size: int, windows: int, remainder: int, splits: int, seed: int
) -> None:
    columns = kernel_size * windows + remainder % kernel_size
    z = normal(splits, 2, columns, seed=seed)
    z[:, :, kernel_size * windows :] = np.nan
    bias = normal(columns, seed=seed + 1)
    y = run(
        host,
        POOL_GELU_SCALE,
        z,
        bias,
        (float(kernel_size), -1.5),
        outputs=(2, windows),
    )
    total = (exact(z).sum(0) + exact(bias))[:, : kernel_size * windows]
    expected = -1.5 * gelu64(total.reshape(2, windows, kernel_size).mean(-1))
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-4, atol=1e-6)


def test_steps_take_their_numbers_in_order(host: ctypes.CDLL) -> None:
    """Also: a chain pools twice, and the second window counts in columns of the first."""
    z = normal(1, 2, 27)
    y = run(host, SCALE_POOL_POOL, z, None, (3.0, 4.0, 2.0), outputs=(2, 3))
    expected = 3.0 * exact(z[0])[:, :24].reshape(2, 3, 8).mean(-1)
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_the_recipe_shows_the_header_that_it_says_to_copy() -> None:
    header = (ROOT / "include/cutlass_ops/epilogue/relu.h").read_text()
    step = header[header.index("struct Relu") : header.index("}  // namespace")].rstrip()
    assert textwrap.indent(step, " " * 7) in (ROOT / "docs" / "epilogues.md").read_text()


@pytest.mark.parametrize("slot_columns", [4, 8, 64])
def test_reductions_over_slots(host: ctypes.CDLL, slot_columns: int) -> None:
    z, rows, columns = normal(2, 3, 37), 3, 37
    slots = -(-columns // slot_columns)
    partials = run(host, SUM, z, None, (), slot_columns, (rows, slots))
    np.testing.assert_allclose(
        partials.sum(1), exact(z).sum(0).sum(1).numpy(), rtol=1e-5, atol=1e-5
    )
    partials = run(host, POOL_GELU_SCALE_MAX, z, None, (1.0, 2.0), slot_columns, (rows, slots))
    expected = 2 * gelu64(exact(z).sum(0)).amax(1)
    np.testing.assert_allclose(partials.max(1), expected.numpy(), rtol=1e-5)


def test_maximum_is_that_of_torch(host: ctypes.CDLL) -> None:
    """A maximum that starts at 0 or -FLT_MAX, or drops NaN, is wrong (taichi#7735, tvm#19518)."""
    values = [float("nan"), float("inf"), -float("inf"), -1.5, -0.0, 0.0, 2.0]
    for a in values:
        for b in values:
            expected = torch.maximum(torch.tensor(a), torch.tensor(b)).item()
            assert host.combine_max(a, b) == pytest.approx(expected, nan_ok=True)
        assert host.combine_max(host.max_identity(), a) == pytest.approx(a, nan_ok=True)


def test_scale_of_a_row_that_is_split_into_halves(host: ctypes.CDLL) -> None:
    """Every exponent of float32, denormals too: the largest comes into the binade below 2^15, and
    back without an error. Each factor is a power of two whose inverse is finite."""
    exponents = range(-149, 128)
    values = np.concatenate(
        [np.ldexp(np.float64(m), exponents) for m in (1.0, 1.25, 1.75, 1 + 127 / 128, 2 - 2**-23)]
    ).astype(np.float32)  # a denormal keeps the bits that it has room for
    values = np.append(values[np.isfinite(values)], np.float32(3.4e38))
    out = np.empty((len(values), 4), dtype=np.float32)
    host.fp16_scale.argtypes = [ctypes.c_float, ctypes.c_void_p]
    for value, row in zip(values, out, strict=True):
        host.fp16_scale(value, pointer(row))
    scaled, back, *factors = out.T
    assert ((scaled >= 2**14) & (scaled < 2**15)).all()
    np.testing.assert_array_equal(back, values)
    product = factors[0].astype(np.float64) * factors[1]
    np.testing.assert_array_equal(scaled, values * product)
    for factor in factors:
        assert (np.frexp(factor)[0] == 0.5).all()
        assert (1 / factor >= np.finfo(np.float32).tiny).all()
        assert np.isfinite(1 / factor).all()


def test_scales_are_taken_back_within_the_range(host: ctypes.CDLL) -> None:
    """Of rows of any exponents, those of factors of columns too: what float32 can hold comes back
    without an error, what it cannot is infinite, and 0 stays 0, where the scales' product is
    infinite."""
    host.fp16_scale_back.argtypes = [ctypes.c_float, ctypes.c_int, ctypes.c_int]
    host.fp16_scale_back.restype = ctypes.c_float
    exponents = [*range(-189, 168, 13), -1, 0, 14, 127, 167]
    for x, w in itertools.product(exponents, exponents):
        for z in (2.0**30, -1.5 * 2.0**26, 2.0**37, 0.0):
            exact = math.ldexp(z, x + w - 28)
            expected = (
                float(np.float32(exact)) if abs(exact) < 2**128 else math.copysign(math.inf, z)
            )
            assert host.fp16_scale_back(z, x, w) == expected, (z, x, w)


def test_what_has_no_halves_comes_back_as_nan(host: ctypes.CDLL) -> None:
    host.fp16_scale_back_none.argtypes = [ctypes.c_float, ctypes.c_bool, ctypes.c_int]
    host.fp16_scale_back_none.restype = ctypes.c_float
    for has_nan, w in itertools.product((False, True), (-149, 0, 127)):
        assert math.isnan(host.fp16_scale_back_none(0.0, has_nan, w))


def test_a_row_of_zeros_is_not_scaled(host: ctypes.CDLL) -> None:
    out = np.empty(4, dtype=np.float32)
    host.fp16_scale.argtypes = [ctypes.c_float, ctypes.c_void_p]
    host.fp16_scale(0.0, pointer(out))
    assert out.tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("tiles_m", "tiles_n", "splits"), [(1, 1, 1), (8, 32, 1), (17, 5, 3), (33, 1, 2), (1, 70, 1)]
)
def test_raster_visits_every_tile_once(
    host: ctypes.CDLL, tiles_m: int, tiles_n: int, splits: int
) -> None:
    count = tiles_m * tiles_n * splits
    places = np.empty((count, 3), dtype=np.int32)
    host.raster(tiles_m, tiles_n, splits, pointer(places))
    assert (places >= 0).all()
    assert (places < [tiles_m, tiles_n, splits]).all()
    assert len({tuple(place) for place in places.tolist()}) == count


@given(tiles=st.integers(1, 60), blocks=st.integers(1, 40), ctas=st.integers(1, 40))
def test_stream_k_gives_every_block_to_one_piece(
    host: ctypes.CDLL, tiles: int, blocks: int, ctas: int
) -> None:
    """Every block of every tile once; no more slots than CTAs, each for one piece; one item
    completes a tile, with the slots of all its other pieces, and comes after their items."""
    host.stream_piece.restype = ctypes.c_bool
    seen = np.zeros((tiles, blocks), dtype=int)
    published: dict[int, tuple[int, int]] = {}  # slot -> (tile, item)
    completed: dict[int, int] = {}  # tile -> item
    pieces = []
    for item in range(host.stream_items(tiles, blocks, ctas)):
        piece, done = np.empty(4, dtype=np.int32), 0
        while host.stream_piece(tiles, blocks, ctas, item, done, pointer(piece)):
            tile, begin, end, slot = piece.tolist()
            assert 0 <= begin < end <= blocks
            seen[tile, begin:end] += 1
            if slot == -1:
                assert tile not in completed
                completed[tile] = item
            else:
                assert 0 <= slot < ctas
                assert slot not in published
                published[slot] = (tile, item)
            pieces.append((item, end - begin))
            done += 1
    assert (seen == 1).all()
    for tile in range(tiles):
        slots = np.empty(ctas, dtype=np.int32)
        count = host.stream_slots(tiles, blocks, ctas, tile, pointer(slots))
        wanted = {slot for slot, (owner, _) in published.items() if owner == tile}
        assert sorted(slots[:count].tolist()) == sorted(wanted)
        assert all(published[slot][1] < completed[tile] for slot in wanted)


@pytest.mark.parametrize(
    ("tiles", "blocks", "longest"),
    [
        (512, 256, 228),  # 225 and more would be all even
        (128, 256, 251),
        (32, 256, 64),
        (384, 96, 90),
        (1376, 128, 57),
        (1024, 16, 14),
    ],
)
def test_stream_k_shares_are_even(host: ctypes.CDLL, tiles: int, blocks: int, longest: int) -> None:
    """132 CTAs, an H200's: the longest item of the last wave, a piece of a tail counted as a block
    more than it has. Whole tiles alone would take `blocks`."""
    host.stream_piece.restype = ctypes.c_bool
    items = host.stream_items(tiles, blocks, 132)
    whole = tiles // 132 * 132
    work = dict.fromkeys(range(whole, items), 0)
    for item in work:
        piece, done = np.empty(4, dtype=np.int32), 0
        while host.stream_piece(tiles, blocks, 132, item, done, pointer(piece)):
            work[item] += int(piece[2] - piece[1]) + (items - whole <= 132 and done > 0)
            done += 1
    assert len(work) <= 132
    assert max(work.values()) <= longest


@pytest.mark.parametrize("tile", ["64x64", "128x64", "128x128", "128x256", "128x128x32"])
def test_simt_staging_puts_every_accumulator_in_its_place(staging: ctypes.CDLL, tile: str) -> None:
    """CUTLASS's EVT thread layout is silently wrong for most coordinates under SIMT. This adapter
    has its own, held against CUTLASS's warp iterator over C: a tile of numbers, distributed to
    threads by the one and staged by the other, must come out as it was."""
    rows, columns = map(int, tile.split("x")[:2])
    numbers = np.arange(rows * columns, dtype=np.float32)
    out = np.full_like(numbers, np.nan)
    getattr(staging, f"stage_{tile}")(pointer(numbers), pointer(out))
    np.testing.assert_array_equal(out, numbers)
