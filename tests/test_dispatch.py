"""The Python side of the CUDA implementations, run on the CPU against kernels of PyTorch.

So shapes, views and choices are tested where there is no GPU. The way to them from the functional
API: test_straight.py. The kernels themselves: test_kernels_cuda.py, test_row_kernels_cuda.py.
"""

from __future__ import annotations

import pytest
import torch
from fake_kernels import Kernels, agree, leads, operands, takes_pairs
from native import force_folding

from cutlass_ops import dispatch, reference, weights
from cutlass_ops.packing import pack_linear

approximations = pytest.mark.parametrize("approximate", ["none", "tanh"])


@leads
@approximations
@pytest.mark.parametrize("layout", ["dense", "transposed"])
def test_softmax_head(
    lead: tuple[int, ...], approximate: str, layout: str, kernels: Kernels
) -> None:
    x, weight, bias = operands(lead, layout)
    expected = reference.linear_gelu_softmax(x, weight, bias, approximate=approximate)
    agree(dispatch.linear_gelu_softmax(x, weight, bias, approximate, "ieee"), expected)
    y, z = dispatch.linear_gelu_softmax_training(x, weight, bias, approximate, "ieee")
    agree(y, expected)
    agree(z, reference.linear(x, weight, bias))
    agree(dispatch.linear(x, weight, bias), z)
    assert y.numel() == 0 or y.data_ptr() != z.data_ptr()
    ran = ["linear_softmax", "linear_softmax", "linear_epilogue"]
    assert kernels.ran == (ran if y.numel() > 0 else [])


@leads
@approximations
@pytest.mark.parametrize("folding", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 9])
def test_pooled_head(
    lead: tuple[int, ...],
    approximate: str,
    folding: bool,
    kernel_size: int,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force_folding(folding, monkeypatch)
    x, weight, bias = operands(lead)
    y = dispatch.linear_avgpool_gelu_scale_max(
        x, weight, bias, kernel_size, -1.5, approximate, "ieee"
    )
    expected = reference.linear_avgpool_gelu_scale_max(
        x, weight, bias, kernel_size=kernel_size, scale=-1.5, approximate=approximate
    )
    agree(y, expected)
    ran = ["folded_epilogue" if folding and kernel_size > 1 else "linear_epilogue"]
    assert kernels.ran == (ran if y.numel() > 0 else [])


def test_packed_weights_are_not_folded_again(kernels: Kernels) -> None:
    x, weight, bias = operands((5,))
    pack = pack_linear(weight, bias, kernel_size=3, precision="ieee")
    args = (1, 2.0, "none", "ieee", 3)
    y = dispatch.linear_avgpool_gelu_scale_max(x, pack.weight, pack.bias, *args)
    expected = reference.linear_avgpool_gelu_scale_max(x, weight, bias, kernel_size=3, scale=2.0)
    agree(y, expected)
    assert kernels.ran == ["linear_epilogue"]


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_pairs_are_for_the_mode_and_the_unpooled_weight(kernel_size: int, kernels: Kernels) -> None:
    """Anywhere else the registered ops, called by hand, leave them alone."""
    x, weight, bias = operands((5,))
    pairs = weights.split_rows(weight)
    for mode in ("ieee", "fp16x3"):
        dispatch.linear_gelu_softmax(x, weight, bias, "none", mode, pairs)
        dispatch.linear_gelu_softmax_training(x, weight, bias, "none", mode)
        dispatch.linear_avgpool_gelu_scale_max(
            x, weight, bias, kernel_size, 1.0, "none", mode, 1, pairs
        )
        dispatch.linear(x, weight, bias, mode)
    handed = [halves for _, halves in kernels.products]
    assert handed == [False] * 4 + [True, False, kernel_size == 1, False]


def test_halves_are_written_to_memory_that_fits(kernels: Kernels) -> None:
    weight = torch.randn(9, 7)
    pairs = weights.split_rows(weight)
    takes_pairs(pairs, weight)
    assert weights.split_rows(2 * weight, pairs) is pairs
    takes_pairs(pairs, 2 * weight)
    assert weights.split_rows(weight[:8], pairs) is not pairs
    sliced = weight.t().contiguous().t()
    takes_pairs(weights.split_rows(sliced), weight)


@leads
@approximations
def test_parts(lead: tuple[int, ...], approximate: str, kernels: Kernels) -> None:
    z, weight, _ = operands(lead)
    bias = torch.randn(7)
    expected = reference.gelu_softmax(z, bias, approximate=approximate)
    agree(dispatch.gelu_softmax(z, bias, approximate), expected)
    agree(dispatch.softmax(z), reference.softmax(z))
    expected = reference.gelu_scale_max(z, bias, scale=-2.0, approximate=approximate)
    agree(dispatch.gelu_scale_max(z, bias, -2.0, approximate), expected)
    agree(weights.fold_rows(weight, 4), reference.fold_rows(weight, 4))
    agree(weights.fold_rows(bias, 2), reference.fold_rows(bias, 2))
    few = ["fold_rows", "fold_rows"]
    assert (
        kernels.ran
        == (["row_softmax", "row_softmax", "matrix_epilogue"] if z.numel() else []) + few
    )
