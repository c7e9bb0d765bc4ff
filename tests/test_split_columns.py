"""fp16 halves of a transposed matrix, against those of its rows: the same bits."""

from __future__ import annotations

import math

import pytest
import torch
from fused import same_bits
from native import FP16X3, OPS, guarded, guards_are_intact, needs_binary, plan_for, run_plan
from torch import Tensor

# (rows, columns) of the result: one tile and ragged ones, shares of a cluster without rows, a pitch
# in eights and in lines, more than one cluster.
SHAPES = ((64, 64), (1, 2), (3, 5), (65, 63), (130, 7), (7, 1000), (300, 515), (1030, 2052))
sizes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def matrix_of(rows: int, columns: int, device: str, spread: int = 0) -> Tensor:
    """Rows of many kinds, and columns that differ by 10^±spread."""
    generator = torch.Generator(device).manual_seed(rows * columns)
    w = torch.randn(rows, columns, generator=generator, device=device)
    exponents = torch.linspace(-spread, spread, columns, device=device, dtype=torch.float64)
    w = (w.double() * 10**exponents).float()
    for i, value in enumerate((1e30, 1e-30, 1e-42)):
        w[i + 2 :: 11] *= value
    w[5::11] = 0
    w[6::11, -1] = math.nan
    w[7::11, 0] = -math.inf
    w[8::11, -1] = math.inf
    w[8::11, 0] = math.nan
    return w


def transposed(matrix: Tensor, pad: int) -> Tensor:
    """A view of the same numbers in rows of the transpose that are `pad` longer, amid NaN."""
    wide = matrix.new_full((matrix.shape[1], matrix.shape[0] + pad), math.nan)
    wide[:, pad // 2 : pad // 2 + matrix.shape[0]] = matrix.t()
    return wide[:, pad // 2 : pad // 2 + matrix.shape[0]].t()


def halves(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of every row: the halves with their padding, and the scales."""
    rows, columns = weight.shape
    around, pairs = guarded((OPS._fp16_pairs_elements(rows, columns),), "cuda")
    OPS._split_rows(weight, 1, pairs)
    assert guards_are_intact(around)
    multiple = 8 if columns < 512 else 64
    pitch = -(-columns // multiple) * multiple
    return pairs[: rows * pitch], pairs[rows * pitch : rows * (pitch + 2)]


@needs_binary
@sizes
@pytest.mark.parametrize("spread", [0, 3, 12])
@pytest.mark.parametrize("pad", [0, 2, 8])
def test_the_halves_of_the_rows(
    pad: int, spread: int, shape: tuple[int, int], fp16x3_gpu: str
) -> None:
    matrix = matrix_of(*shape, fp16x3_gpu, spread)
    expected, found = halves(matrix), halves(transposed(matrix, pad))
    for name, a, b in zip(("halves", "scales"), expected, found, strict=True):
        assert same_bits(a, b), name


@needs_binary
@pytest.mark.sanitizer
@pytest.mark.parametrize("of_x", [False, True])
def test_small_products_of_transposed_operands(of_x: bool, fp16x3_gpu: str) -> None:
    """Both ways and repaired: what a row with an infinity has no halves for."""
    m, n, k = 130, 132, 200
    x, weight = (matrix_of(rows, k, fp16x3_gpu)[:, :k] for rows in (m, n))
    plan = plan_for("identity", [], (m, n, k), FP16X3, 1)
    assert plan is not None
    expected = run_plan("identity", [], plan, x, weight)
    found = run_plan("identity", [], plan, transposed(x, 4) if of_x else x, transposed(weight, 4))
    assert same_bits(expected, found)


@needs_binary
def test_other_kernels_take_rows_alone(gpu: str) -> None:
    x, weight = torch.randn(8, 8, device=gpu), torch.randn(8, 8, device=gpu)
    plan = plan_for("identity", [], (8, 8, 8), "skinny", 1)
    assert plan is not None
    for operands in ((x.t(), weight), (x, weight.t())):
        with pytest.raises(RuntimeError, match="transposed"):
            run_plan("identity", [], plan, *operands)
    with pytest.raises(RuntimeError, match="dense rows"):
        OPS._split_rows(weight.t(), 2, torch.empty(OPS._fp16_pairs_elements(4, 8), device=gpu))
