"""The device functors, compiled for the host: steps, sinks and monoids.

The GPU runs the same code through its adapters; here every value can be looked at without one.
"""

from __future__ import annotations

import ctypes
import re
import textwrap
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from programs import ROOT, compile_for_host, load_module, pointer
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
