"""What decides on the factors of the columns of W, on the host: samples of W, the exponents of
factors, and the rows that do not follow."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch
from programs import ROOT, compile_for_host, load_module, pointer
from strategies import make_operands

peers = load_module(ROOT / "benchmarks" / "peers.py")
BIAS = 127  # of a float's exponent
SAMPLES, ENOUGH, ROUNDS = 8, 6, 8
HAS_NONE = (0.0, -0.0, 1e-40, math.inf, -math.inf, math.nan)  # exponents


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp("columns") / "column_exponents.so"
    library = compile_for_host("column_exponents.cpp", output)
    library.exponents_of_factors.restype = library.row_loses.restype = ctypes.c_bool
    library.hold_factor.argtypes, library.hold_factor.restype = [ctypes.c_float], ctypes.c_float
    library.factor_there_and_back.argtypes = [ctypes.c_float, ctypes.c_void_p]
    return library


def weight_of(rows: int, exponents: np.ndarray, seed: int = 0) -> np.ndarray:
    """Columns of these exponents, of either sign."""
    generator = np.random.default_rng(seed)
    mantissas = generator.uniform(1, 2, (rows, len(exponents)))
    signs = generator.choice([-1.0, 1.0], mantissas.shape)
    return (signs * np.ldexp(mantissas, exponents)).astype(np.float32)


def sample(host: ctypes.CDLL, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean exponents, and how many elements each is the mean of."""
    rows, columns = weight.shape
    means, counts = np.zeros(columns, np.float32), np.zeros(columns, np.int32)
    stride, step = (ctypes.c_long(size // weight.itemsize) for size in weight.strides)
    host.sample_columns(
        pointer(weight), stride, step, rows, columns, pointer(means), pointer(counts)
    )
    return means - BIAS, counts


def factors(
    host: ctypes.CDLL, means: np.ndarray, suffice: np.ndarray | None = None
) -> np.ndarray | None:
    """Their exponents, or None where columns are alike."""
    means = (means + BIAS).astype(np.float32)
    suffice = np.ones(len(means), bool) if suffice is None else suffice
    out = np.zeros(len(means), np.int32)
    spread = host.exponents_of_factors(pointer(means), pointer(suffice), len(means), pointer(out))
    return out if spread else None


EXPONENTS = np.array([0, 7, -20, 100, -120, 1, -1, 33])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 100])
def test_a_mean_of_eight_rows(host: ctypes.CDLL, rows: int, transposed: bool) -> None:
    weight = weight_of(rows, EXPONENTS)
    means, counts = sample(host, np.ascontiguousarray(weight.T).T if transposed else weight)
    np.testing.assert_array_equal(means, EXPONENTS)
    assert (counts == SAMPLES).all()
    places = [i * rows // SAMPLES for i in range(SAMPLES)]
    mixed = np.ldexp(weight, np.arange(rows)[:, None] % 5)
    means, _ = sample(host, mixed)
    np.testing.assert_allclose(means, EXPONENTS + np.mean([p % 5 for p in places]), atol=1e-5)


@pytest.mark.parametrize("value", HAS_NONE)
@pytest.mark.parametrize("rows", [2, 3, 5, 8, 9, 80, 1000])
def test_elements_without_an_exponent_do_not_count(
    host: ctypes.CDLL, rows: int, value: float
) -> None:
    """In the first row, which is always looked at, in one that is if there are enough, and in half
    of all elements; the others tell as much as they did."""
    weight = weight_of(rows, EXPONENTS)
    for places in (0, rows // 2, np.random.default_rng(rows).random(weight.shape) < 0.5):
        planted = weight.copy()
        planted[places] = value
        means, counts = sample(host, planted)
        known = counts > 0
        assert (known == (np.isfinite(planted) & (np.abs(planted) > 1e-37)).any(0)).all()
        np.testing.assert_array_equal(means[known], EXPONENTS[known])
        assert np.isnan(means[~known]).all()
        assert (counts >= ENOUGH).all() or rows < 80


@pytest.mark.parametrize("value", HAS_NONE)
def test_rows_behind_those_without_an_exponent(host: ctypes.CDLL, value: float) -> None:
    """As many as there are rounds, and no more."""
    rows = 160
    for behind in range(ROUNDS + 1):
        weight = weight_of(rows, EXPONENTS)
        weight[np.arange(rows) % (rows // SAMPLES) < behind] = value
        means, counts = sample(host, weight)
        if behind < ROUNDS:
            np.testing.assert_array_equal(means, EXPONENTS)
            assert (counts == SAMPLES).all()
        else:
            assert (counts == 0).all()


def test_factors_are_what_columns_differ_by(host: ctypes.CDLL) -> None:
    """From the mean, rounded, and 40 binades at the most."""
    means = np.array([-6.0, 6.0, 0.0, 2.75, -2.75])
    np.testing.assert_array_equal(factors(host, means), [-6, 6, 0, 3, -3])
    np.testing.assert_array_equal(factors(host, np.array([-60.0, 60.0, 0.0])), [-40, 40, 0])
    assert factors(host, np.array([3.0, 13.0, 5.0])) is None  # alike: within 10 binades
    assert factors(host, np.array([3.0, 13.125, 5.0])) is not None


def test_columns_of_few_samples_follow_the_others(host: ctypes.CDLL) -> None:
    """They do not decide whether columns differ, and are held to the range of those that do."""
    means = np.array([-8.0, 8.0, 50.0, -50.0, 3.0, math.nan])
    suffice = np.array([True, True, False, False, False, False])
    np.testing.assert_array_equal(factors(host, means, suffice), [-8, 8, 8, -8, 3, 0])
    suffice[1] = False
    assert factors(host, means, suffice) is None
    assert factors(host, means, np.zeros(6, bool)) is None


def loses(host: ctypes.CDLL, row: np.ndarray, exponents: np.ndarray) -> bool:
    numbers, powers = row.astype(np.float32), np.ldexp(np.float32(1), exponents)
    largest = max(0, int(exponents.max()))
    return bool(host.row_loses(pointer(numbers), pointer(powers), len(numbers), largest))


def test_rows_that_do_not_follow(host: ctypes.CDLL) -> None:
    """An outlier that a row of W has nothing to set against, by more than 16 binades."""
    one = np.array([20, 0])
    assert not loses(host, np.array([2.0**20, 1.0]), one)  # follows
    assert loses(host, np.array([0.0, 1.0]), one)
    assert loses(host, np.array([2.0**3, 1.0]), one)
    assert not loses(host, np.array([2.0**4, 1.0]), one)
    assert not loses(host, np.array([0.0, 1.0]), np.array([16, 0]))
    assert not loses(host, np.array([0.0, 0.0]), np.array([40, -40]))
    for value in (math.inf, math.nan):  # such a row is computed anew
        assert not loses(host, np.array([0.0, value, 1.0]), np.array([20, 0, 0]))
    for scale in (2.0**-140, 2.0**100):  # denormals follow or not as others do
        assert loses(host, scale * np.array([0.0, 1.0]), one)
        assert not loses(host, scale * np.array([2.0**5, 1.0]), one)


@pytest.mark.parametrize("k", [256, 4096, 65536])
def test_many_small_losses_count(host: ctypes.CDLL, k: int) -> None:
    """Half of the columns are large, and this row has one small number in them: elements of x in
    the others are lost beside one that meets nothing, each within the bound of a single product."""
    exponents = np.where(np.arange(k) < k // 2, 15, -15)
    row = np.ldexp(np.where(exponents < 0, 1.0, 0.0), -15)
    row[1] = 0.5
    assert loses(host, row, exponents)
    follows = np.ldexp(np.ones(k), exponents)
    assert not loses(host, follows, exponents)


def test_held_factors_lose_no_row(host: ctypes.CDLL) -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        held = [host.hold_factor(2.0**e) for e in generator.integers(-40, 41, 50)]
        exponents = np.log2(held).astype(int)
        assert set(exponents) >= {-8, 8}
        row = generator.standard_normal(50) * (generator.random(50) < 0.1) * 10.0 ** exponents[::-1]
        assert not loses(host, row, exponents)
    assert [host.hold_factor(2.0**e) for e in (-9, -8, 0, 5, 9)] == [2**-8, 2**-8, 1, 2**5, 2**8]


def halves(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In float64, in units of the rows."""
    split = peers.split(torch.from_numpy(rows))
    high, low = (half.double() * split.unscale for half in (split.high, split.low))
    return high.numpy(), low.numpy()


def undone(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """x and W whose columns differ by 10^+-6, the other way round."""
    x, weight = make_operands("compensated", m, n, k, torch.Generator().manual_seed(0))
    return x.numpy(), weight.numpy()


def product_of_halves(
    host: ctypes.CDLL, x: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Three products of halves under the factors of the columns, and whether all rows of W follow
    these. Rows of W that have no halves count as zeros."""
    means, counts = sample(host, weight)
    exponents = factors(host, means, counts >= ENOUGH)
    assert exponents is not None
    follow = not any(loses(host, row, exponents) for row in weight)
    powers = np.ldexp(np.float32(1), exponents)
    if not follow:
        powers = np.array([host.hold_factor(power) for power in powers], np.float32)
    x_high, x_low = halves(x * powers)
    finite = np.isfinite(weight).all(1, keepdims=True)
    w_high, w_low = halves(np.where(finite, weight, np.float32(0)) / powers)
    return x_high @ w_high.T + x_high @ w_low.T + x_low @ w_high.T, follow


@pytest.mark.parametrize("value", [math.inf, math.nan, 0.0])
@pytest.mark.parametrize("of_w", ["nothing", "an entry", "a row", "rows", "half"])
def test_what_x_and_w_undo_keeps_its_accuracy(host: ctypes.CDLL, of_w: str, value: float) -> None:
    """2^-21 of the terms of a sum at most; 0.08 without factors."""
    x, weight = undone(40, 60, 200)
    if of_w == "an entry":
        weight[0, np.abs(weight[0]).argmax()] = value
    elif of_w == "half" and value == 0.0:
        weight[np.random.default_rng(1).random(weight.shape) < 0.5] = value
    elif of_w != "nothing":
        weight[{"a row": slice(1), "rows": slice(0, 60, 2), "half": slice(30, 60)}[of_w]] = value
    y, follow = product_of_halves(host, x, weight)
    assert follow
    weight[~np.isfinite(weight).all(1)] = 0.0  # computed anew
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    assert (np.abs(y - x @ weight.T) <= 2.0**-21 * (np.abs(x) @ np.abs(weight).T)).all()


@pytest.mark.parametrize("row", ["ordinary", "ones", "one"])
def test_a_row_that_does_not_follow_costs_the_others_bits(host: ctypes.CDLL, row: str) -> None:
    """But not all: 0.08 without any factors. Its own result is as accurate as norms have it."""
    x, weight = undone(40, 60, 200)
    weight[-1] = {"ordinary": np.random.default_rng(1).standard_normal(200), "ones": 1.0}.get(
        row, np.arange(200) == 0
    )
    y, follow = product_of_halves(host, x, weight)
    assert not follow
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    error, norms = np.abs(y - x @ weight.T), np.linalg.norm(x, axis=1)
    assert (error[:, :-1] <= 2.0**-17 * (np.abs(x) @ np.abs(weight[:-1]).T)).all()
    assert (error[:, -1] <= 2.0**-21 * norms * np.linalg.norm(weight[-1])).all()


def test_the_inverse_of_a_factor(host: ctypes.CDLL) -> None:
    inverse = np.zeros(1, np.float32)
    for exponent in range(-40, 41):
        assert host.factor_there_and_back(2.0**exponent, pointer(inverse)) == exponent
        assert inverse[0] == 2.0**-exponent
