"""The parts of a GEMM that need no GPU, compiled for the host: scales of halves, which CTA
computes which piece, and staging."""

from __future__ import annotations

import ctypes
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import compile_for_host, compile_library, cutlass_include, nvcc, pointer


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_host("host_gemm.cpp", tmp_path_factory.mktemp("gemm") / "host_gemm.so")


@pytest.fixture(scope="session")
def staging(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    flags = ["-std=c++17", "-arch=sm_80", "-Xcompiler=-fPIC", "-isystem", str(cutlass_include())]
    output = tmp_path_factory.mktemp("staging") / "simt_staging.so"
    return compile_library([str(nvcc()), *flags], "simt_staging.cu", output)


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
