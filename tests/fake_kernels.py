"""Stand-ins for the native ops, in PyTorch: what Python hands to the binary, where there is no GPU.

What the binary would be handed is checked and computed by the reference instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from native import FP16X3, KERNELS, OPS, reads
from torch import Tensor
from torch.testing import assert_close

from cutlass_ops import (
    _library,
    backward,
    dispatch,
    plans,
    products,
    reference,
    weights,
    winner_gradients,
    winners,
)
from cutlass_ops.epilogues import lookup
from cutlass_ops.gradients import gelu_softmax_gradient

GELU = {"gelu": "none", "gelu_tanh": "tanh"}
LEADS = [(), (5,), (1,), (2, 3), (0,), (2, 0)]
leads = pytest.mark.parametrize("lead", LEADS, ids=str)


def takes(matrix: Tensor, vector: Tensor | None = None, either: bool = False) -> None:
    """What bindings.cpp demands of an operand; ``either``: which may be transposed."""
    assert matrix.dim() == 2
    transposed = matrix.shape[0] <= 1 or matrix.stride(0) == 1
    assert matrix.shape[1] <= 1 or matrix.stride(1) == 1 or (either and transposed)
    assert vector is None or vector.stride() == (1,)


def linear_head(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    name: str,
    params: Sequence[float],
    kernel: int,
) -> Tensor:
    """What an epilogue makes of operands that the binary takes, in one dimension."""
    halves = KERNELS[kernel] == FP16X3
    takes(x, either=halves)
    assert halves or reads(KERNELS[kernel], x)
    takes(weight, bias, either=halves)
    return lookup(name).reference(reference.linear(x, weight, bias), params).view(-1)


def workspace_of(
    name: str,
    params: Sequence[float],
    shape: Sequence[int],
    kernel: int,
    splits: int,
    packed: bool,
) -> int:
    """What bindings.cpp makes of the choice of a plan."""
    made = OPS._plan_for(name, params, *shape, plans.H200, KERNELS[kernel], splits, packed)
    return plans.Plan(*made).workspace


def on_tensor_cores(kernel: int) -> bool:
    return KERNELS[kernel].startswith("fp16x3")


def takes_pairs(pairs: Tensor, weight: Tensor) -> None:
    """The halves of this weight, and of no other: see Kernels.split_rows."""
    assert pairs.dtype == torch.float32
    assert pairs.shape == (OPS._fp16_pairs_elements(*weight.shape),)
    assert torch.equal(pairs[: weight.numel()].view(weight.shape), weight)


class Kernels:
    """Stand-ins for the native ops; ``ran`` lists their names, ``products`` the kernels of the
    GEMMs and whether they were handed halves."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.products: list[tuple[str, bool]] = []

    def linear_epilogue(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        name: str,
        params: Sequence[float],
        kernel: int,
        splits: int,
        workspace: Tensor,
        out: Tensor,
        pairs: Tensor | None,
    ) -> None:
        self.ran.append("linear_epilogue")
        self.products.append((KERNELS[kernel], pairs is not None))
        assert out.is_contiguous()
        shape = len(x), *weight.shape
        needed = workspace_of(name, params, shape, kernel, splits, pairs is not None)
        assert workspace.numel() >= needed
        if pairs is not None:
            takes_pairs(pairs, weight)
        out.view(-1).copy_(linear_head(x, weight, bias, name, params, kernel))

    def linear_softmax(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kernel: int,
        splits: int,
        workspace: Tensor,
        activation: str,
        z: Tensor | None,
        out: Tensor,
        pairs: Tensor | None,
    ) -> None:
        linear = torch.empty_like(out) if z is None else z
        choice = (kernel, splits, workspace)
        self.linear_epilogue(x, weight, bias, "identity", (), *choice, linear, pairs)
        shape = len(x), len(weight)
        self.row_softmax(linear.view(shape), None, activation, out.view(shape))
        self.ran[-2:] = ["linear_softmax"]

    def matrix_epilogue(
        self,
        z: Tensor,
        bias: Tensor | None,
        name: str,
        params: Sequence[float],
        workspace: Tensor,
        out: Tensor,
    ) -> None:
        self.ran.append("matrix_epilogue")
        takes(z, bias)
        assert out.is_contiguous()
        out.view(-1).copy_(lookup(name).reference(z if bias is None else z + bias, params).view(-1))

    def row_softmax(self, z: Tensor, bias: Tensor | None, activation: str, out: Tensor) -> None:
        self.ran.append("row_softmax")
        takes(z, bias)
        assert out.is_contiguous()
        z = z if bias is None else z + bias
        out.copy_(
            reference.softmax(reference.gelu(z, GELU[activation]) if activation in GELU else z)
        )

    def row_gradient(
        self,
        g: Tensor,
        y: Tensor,
        z: Tensor,
        bias: Tensor | None,
        activation: str,
        dz: Tensor,
        sums: Tensor | None,
    ) -> None:
        self.ran.append("row_gradient")
        for matrix in (g, y, z):
            takes(matrix, bias)
            assert matrix.shape == dz.shape
        assert dz.is_contiguous()
        h = z if bias is None else z + bias
        dz.copy_(gelu_softmax_gradient(g, h, y, GELU[activation]))
        if sums is not None:
            assert sums.is_contiguous()
            assert dz.shape[1] % 4 == 0
            for group, total in enumerate(sums):
                total.copy_(dz[group :: len(sums)].sum(0))

    def fold_rows(
        self,
        weight: Tensor,
        bias: Tensor | None,
        kernel_size: int,
        out: Tensor,
        bias_out: Tensor | None,
    ) -> None:
        self.ran.append("fold_rows")
        takes(weight, bias)
        assert out.is_contiguous()
        out.copy_(reference.fold_rows(weight, kernel_size))
        assert (bias is None) == (bias_out is None)
        if bias is not None and bias_out is not None:
            assert bias_out.is_contiguous()
            bias_out.copy_(reference.fold_rows(bias, kernel_size))

    def folded_epilogue(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        name: str,
        params: Sequence[float],
        kernel: int,
        splits: int,
        memory: Tensor,
        out: Tensor,
    ) -> None:
        self.ran.append("folded_epilogue")
        self.products.append((KERNELS[kernel], False))
        assert out.is_contiguous()
        windows = len(weight) // int(params[0])
        shape = len(x), windows, weight.shape[1]
        inner = workspace_of(name, (1.0, 1.0), shape, kernel, splits, False)
        assert memory.numel() >= OPS._folded_memory(windows, shape[2], kernel, inner)
        out.view(-1).copy_(linear_head(x, weight, bias, name, params, kernel))

    def split_rows(self, weight: Tensor, kernel_size: int, pairs: Tensor) -> None:
        """The rows as they are, which take as much memory, where their halves would be."""
        self.ran.append("split_rows")
        takes(weight, either=kernel_size == 1)
        rows = reference.fold_rows(weight, kernel_size)
        assert pairs.shape == (OPS._fp16_pairs_elements(*rows.shape),)
        pairs[: rows.numel()].copy_(rows.reshape(-1))

    def linear_winners(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kernel_size: int,
        activation: str,
        scale: float,
        kernel: int,
        splits: int,
        memory: Tensor,
        folded: Tensor | None,
        values: Tensor,
        indices: Tensor,
        slopes: Tensor,
    ) -> None:
        self.ran.append("linear_winners")
        self.products.append((KERNELS[kernel], False))
        takes(x)
        assert reads(KERNELS[kernel], x)
        takes(weight, bias)
        shape = len(x), len(weight) // kernel_size, weight.shape[1]
        inner = workspace_of("identity", (), shape, kernel, splits, False)
        assert memory.numel() >= OPS._winner_memory(shape[0], shape[1], inner)
        assert (folded is None) == (kernel_size == 1)
        if folded is not None:
            assert folded.is_contiguous()
            folded.copy_(reference.fold_rows(weight, kernel_size))
        h = reference.avg_pool(reference.linear(x, weight, bias), kernel_size)
        found = winners.winner_of(h, scale, GELU[activation])
        for out, result in zip((values, indices, slopes), found, strict=True):
            assert out.is_contiguous()
            out.view(-1).copy_(result)

    def winner_gradients(
        self,
        grad: Tensor,
        indices: Tensor,
        slopes: Tensor,
        x: Tensor,
        weight: Tensor,
        kernel_size: int,
        memory: Tensor,
        *outputs: Tensor | None,
    ) -> None:
        self.ran.append("winner_gradients")
        takes(x, grad)
        takes(weight)
        columns = 0 if outputs[1] is None else x.shape[1]
        needed = OPS._winner_gradient_memory(len(x), columns)
        assert memory.numel() >= needed or outputs[1:] == (None, None)
        lengths = [len(out) for out in outputs[1:] if out is not None]
        rows = max(lengths, default=len(weight) * kernel_size)
        wanted = (out is not None for out in outputs)
        found = winner_gradients.gradients(
            grad, indices, slopes, x, weight, rows, kernel_size, *wanted
        )
        for out, result in zip(outputs, found, strict=True):
            if out is not None:
                assert out.is_contiguous()
                out.copy_(result)

    def product_memory(self, a: Tensor, a_transposed: bool, b: Tensor) -> int:
        takes(a)
        takes(b)
        return 4

    def product(
        self, a: Tensor, a_transposed: bool, b: Tensor, memory: Tensor, out: Tensor
    ) -> None:
        self.ran.append("product")
        assert memory.numel() == 4
        assert out.is_contiguous()
        out.copy_((a.t() if a_transposed else a) @ b)


OWNERS = {
    "linear_epilogue": (dispatch, products),
    "fold_rows": (weights,),
    "split_rows": (weights,),
    "row_gradient": (backward,),
    "linear_winners": (winners,),
    "winner_gradients": (winner_gradients,),
    "product_memory": (products,),
    "product": (products,),
}


def replace_kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Stand-ins in the place of the native ops, and any device as one that has kernels, of either
    mode."""
    if not _library.loaded():
        pytest.skip("the plans come from the binary")
    kernels = Kernels()
    for name in vars(Kernels):
        if not name.startswith("__"):
            suffix = "" if name == "product_memory" else "_native"
            for owner in OWNERS.get(name, (dispatch,)):
                monkeypatch.setattr(owner, f"_{name}{suffix}", getattr(kernels, name))
    monkeypatch.setattr(_library, "unsupported_reason", lambda device: None)
    monkeypatch.setattr(_library, "fp16x3_reason", lambda device: None)
    monkeypatch.setattr(plans, "gpu", lambda index: plans.H200)
    monkeypatch.setattr(plans, "_empty", {})
    return kernels


def operands(lead: tuple[int, ...], layout: str = "dense") -> tuple[Tensor, Tensor, Tensor]:
    x, weight, bias = torch.randn(*lead, 7), torch.randn(9, 7), torch.randn(9)
    if layout == "transposed":
        weight = weight.t().contiguous().t()
        bias = bias.repeat_interleave(2)[::2]
    return x, weight, bias


def agree(y: Tensor, expected: Tensor) -> None:
    """A fresh tensor, too: a view made without grad refuses in-place operations with grad."""
    assert_close(y, expected)
    assert y.is_contiguous()
    assert y._base is None
