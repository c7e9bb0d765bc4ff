"""The Python side of the CUDA implementations, run on the CPU against kernels of PyTorch.

So shapes, views and choices are tested where there is no GPU. The way to them from the functional
API: test_straight.py. The kernels themselves: test_kernels_cuda.py, test_fp16x3_kernels_cuda.py,
test_row_kernels_cuda.py, test_row_gradient_cuda.py, test_winner_kernels_cuda.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_kernels import Kernels, agree, leads, operands, takes_pairs
from native import force_folding
from strategies import at_offset
from torch import Tensor

from cutlass_ops import backward, dispatch, plans, precision, reference, weights
from cutlass_ops import operands as operands_module
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


# x of 5 rows and 8 columns, and whether TMA reads it, or, of "transposed", what unit_columns makes.
X_VIEWS: dict[str, tuple[Callable[[], Tensor], bool]] = {
    "contiguous": (lambda: torch.randn(5, 8), True),
    "padded": (lambda: torch.randn(5, 12)[:, :8], True),
    "16 bytes on": (lambda: torch.randn(5, 12)[:, 4:], True),
    "more dims": (lambda: torch.randn(5, 1, 12)[..., :8], True),
    "transposed": (lambda: torch.randn(8, 5).t(), True),
    "beside a column": (lambda: torch.randn(5, 9)[:, 1:], False),
    "odd rows": (lambda: torch.randn(5, 9)[:, :8], False),
    "one float on": (lambda: at_offset(torch.randn(5, 8), 1), False),
    "two floats on": (lambda: torch.randn(5, 12)[:, 2:10], False),
    "one row": (lambda: torch.randn(1, 8).expand(5, 8), False),
}


@pytest.mark.parametrize("view", X_VIEWS)
@pytest.mark.parametrize("mode", precision.MODES)
def test_plans_of_the_mode_know_how_x_lies(
    mode: str, view: str, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ieee nobody asks: it would be time of every call."""
    make, aligned = X_VIEWS[view]
    x, weight, bias = make(), torch.randn(9, 8), torch.randn(9)
    asked: list[Tensor] = []
    planned: list[tuple[bool, bool]] = []  # the mode, and what is said of x

    def spy(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            planned.append((arguments[-3], arguments[-1]))
            return function(*arguments)

        return call

    def ask(rows: Tensor) -> bool:
        asked.append(rows)
        return operands_module.tma_rows(rows)

    monkeypatch.setattr(dispatch, "tma_rows", ask)
    for name in ("linear_plan", "pooled_route"):
        monkeypatch.setattr(plans, name, spy(getattr(plans, name)))
    agree(dispatch.linear(x, weight, bias, mode), reference.linear(x, weight, bias))
    y = dispatch.linear_gelu_softmax(x, weight, bias, "none", mode)
    agree(y, reference.linear_gelu_softmax(x, weight, bias))
    dispatch.linear_gelu_softmax_training(x, weight, bias, "none", mode)
    for kernel_size in (1, 3):
        y = dispatch.linear_avgpool_gelu_scale_max(x, weight, bias, kernel_size, 1.0, "none", mode)
        agree(y, reference.linear_avgpool_gelu_scale_max(x, weight, bias, kernel_size=kernel_size))
    fp16x3 = mode == "fp16x3"
    assert set(planned) == {(fp16x3, aligned or not fp16x3)}
    assert len(asked) == (5 if fp16x3 else 0)


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


@leads
@approximations
def test_gradient_of_the_rows(lead: tuple[int, ...], approximate: str, kernels: Kernels) -> None:
    z, _, _ = operands(lead)
    bias, g = torch.randn(14)[::2], torch.randn_like(z)
    y = reference.gelu_softmax(z, bias, approximate=approximate)
    for need_bias in (False, True):
        args = (g, z, bias, y, approximate, need_bias)
        for found, expected in zip(
            backward.gelu_softmax(*args), backward.gelu_softmax_plain(*args), strict=True
        ):
            agree(found, expected)
    assert kernels.ran == (["row_gradient"] * 2 if z.numel() > 0 else [])


def test_gradient_of_many_rows_is_summed_by_the_kernel(kernels: Kernels) -> None:
    """And not where rows are few, or cannot be aligned, or nobody asks."""
    made: list[int] = []
    stand_in = backward._row_gradient_native

    def spy(*args: Any) -> None:
        made.append(0 if args[-1] is None else len(args[-1]))
        stand_in(*args)

    backward._row_gradient_native = spy  # the fixture puts it back
    for rows, columns in ((32, 16384), (512, 16384), (512, 16383), (512, 16388), (3000, 1024)):
        z = torch.randn(rows, columns)
        y = reference.gelu_softmax(z)
        args = (torch.randn(rows, 1).expand(rows, columns).contiguous(), z, None, y, "none")
        dz, sums = backward.gelu_softmax(*args, True)
        torch.testing.assert_close(sums, dz.sum(0), rtol=1e-4, atol=1e-6)
        backward.gelu_softmax(*args, False)
    assert made[1::2] == [0] * 5
    assert made[::2] == [0, 128, 0, 0, 0]


def test_a_gradient_for_all_rows_is_not_written_out(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    strides: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        backward, "_row_gradient_native", lambda g, *rest: strides.append(g.stride())
    )
    z = torch.randn(5, 7)
    for g in (
        torch.ones(()).expand(5, 7),
        torch.randn(7).expand(5, 7),
        torch.randn(5, 1).expand(5, 7),
        torch.randn(7, 5).t(),
        torch.randn(5, 9)[:, 1:8],
    ):
        backward.gelu_softmax(g, z, None, z, "none", False)
    assert strides == [(0, 1), (0, 1), (7, 1), (7, 1), (9, 1)]
