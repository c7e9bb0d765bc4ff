"""The Python side of the CUDA implementations, run on the CPU against kernels of PyTorch.

What the binary would be handed is checked and computed by the reference instead, so that shapes,
views and choices are tested where there is no GPU. The kernels themselves: test_kernels_cuda.py,
test_row_kernels_cuda.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from native import KERNELS, OPS, force_folding
from torch import Tensor
from torch.testing import assert_close

import cutlass_ops
from cutlass_ops import _library, calls, dispatch, plans, reference
from cutlass_ops.epilogues import lookup
from cutlass_ops.packing import pack_linear

GELU = {"gelu": "none", "gelu_tanh": "tanh"}
LEADS = [(), (5,), (1,), (2, 3), (0,), (2, 0)]
approximations = pytest.mark.parametrize("approximate", ["none", "tanh"])
leads = pytest.mark.parametrize("lead", LEADS, ids=str)


def takes(matrix: Tensor, vector: Tensor | None = None) -> None:
    """What bindings.cpp demands of an operand."""
    assert matrix.dim() == 2
    assert matrix.shape[1] <= 1 or matrix.stride(1) == 1
    assert vector is None or vector.stride() == (1,)


def linear_head(
    x: Tensor, weight: Tensor, bias: Tensor | None, name: str, params: Sequence[float]
) -> Tensor:
    """What an epilogue makes of operands that the binary takes, in one dimension."""
    takes(x)
    takes(weight, bias)
    return lookup(name).reference(reference.linear(x, weight, bias), params).view(-1)


def workspace_of(
    name: str, params: Sequence[float], shape: Sequence[int], kernel: int, splits: int
) -> int:
    """What bindings.cpp makes of the choice of a plan."""
    made = OPS._plan_for(name, params, *shape, plans.H200, KERNELS[kernel], splits)
    return plans.Plan(*made).workspace


class Kernels:
    """Stand-ins for the native ops; ``ran`` lists their names."""

    def __init__(self) -> None:
        self.ran: list[str] = []

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
    ) -> None:
        self.ran.append("linear_epilogue")
        assert out.is_contiguous()
        made = OPS._plan_for(
            name, params, len(x), *weight.shape, plans.H200, KERNELS[kernel], splits
        )
        assert workspace.numel() >= plans.Plan(*made).workspace
        out.view(-1).copy_(linear_head(x, weight, bias, name, params))

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
    ) -> None:
        linear = torch.empty_like(out) if z is None else z
        self.linear_epilogue(x, weight, bias, "identity", (), kernel, splits, workspace, linear)
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
        assert out.is_contiguous()
        windows = len(weight) // int(params[0])
        shape = len(x), windows, weight.shape[1]
        inner = workspace_of(name, (1.0, 1.0), shape, kernel, splits)
        assert memory.numel() >= windows * (weight.shape[1] + 1) + inner
        out.view(-1).copy_(linear_head(x, weight, bias, name, params))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    if not _library.loaded():
        pytest.skip("the plans come from the binary")
    kernels = Kernels()
    for name in vars(Kernels):
        if not name.startswith("__"):
            monkeypatch.setattr(dispatch, f"_{name}_native", getattr(kernels, name))
    monkeypatch.setattr(_library, "unsupported_reason", lambda device: None)
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
    pack = pack_linear(weight, bias, kernel_size=3)
    args = (1, 2.0, "none", "ieee", 3)
    y = dispatch.linear_avgpool_gelu_scale_max(x, pack.weight, pack.bias, *args)
    expected = reference.linear_avgpool_gelu_scale_max(x, weight, bias, kernel_size=3, scale=2.0)
    agree(y, expected)
    assert kernels.ran == ["linear_epilogue"]


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
    agree(dispatch.fold_rows(weight, 4), reference.fold_rows(weight, 4))
    agree(dispatch.fold_rows(bias, 2), reference.fold_rows(bias, 2))
    few = ["fold_rows", "fold_rows"]
    assert (
        kernels.ran
        == (["row_softmax", "row_softmax", "matrix_epilogue"] if z.numel() else []) + few
    )


STRAIGHT: dict[str, Callable[..., Tensor]] = {
    "A": cutlass_ops.linear_gelu_softmax,
    "B": lambda *t, **o: cutlass_ops.linear_avgpool_gelu_scale_max(*t, kernel_size=4, **o),
}
straight_ops = pytest.mark.parametrize("op", STRAIGHT.values(), ids=STRAIGHT)


def long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "straight", lambda *operands: False)


@straight_ops
@leads
@pytest.mark.parametrize("with_bias", [True, False])
def test_straight_to_the_kernels(
    op: Callable[..., Tensor],
    lead: tuple[int, ...],
    with_bias: bool,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, weight, bias = operands(lead)
    arguments = (x, torch.nn.Parameter(weight), bias if with_bias else None)
    with torch.no_grad():
        assert calls.straight(*arguments)
        y = op(*arguments)
        assert len(kernels.ran) == (x.numel() > 0)
        long_way(monkeypatch)
        agree(y, op(*arguments))
    assert len(kernels.ran) == (x.numel() > 0)  # a tensor on the CPU: the reference


@straight_ops
def test_straight_to_the_kernels_with_grad(
    op: Callable[..., Tensor], kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [t.requires_grad_() for t in operands((2, 3))]
    y = op(*inputs)
    found = torch.autograd.grad(y.square().sum(), inputs)
    long_way(monkeypatch)
    expected = op(*inputs)
    assert_close(y, expected)
    assert_close(found, torch.autograd.grad(expected.square().sum(), inputs))


class Subclass(Tensor):
    pass


def replaced(**others: Any) -> dict[str, Any]:
    x, weight, bias = operands((5,))
    return {"x": x, "weight": weight, "bias": bias} | others


UNUSUAL: dict[str, Callable[[], dict[str, Any]]] = {
    "a list": lambda: replaced(x=[[1.0] * 7]),
    "None for x": lambda: replaced(x=None),
    "a number for bias": lambda: replaced(bias=1.0),
    "a scalar": lambda: replaced(x=torch.randn(())),
    "another depth": lambda: replaced(x=torch.randn(5, 6)),
    "a weight of one dimension": lambda: replaced(weight=torch.randn(7)),
    "a bias of two dimensions": lambda: replaced(bias=torch.randn(9, 1)),
    "a long bias": lambda: replaced(bias=torch.randn(10)),
    "half x": lambda: replaced(x=torch.randn(5, 7).half()),
    "double bias": lambda: replaced(bias=torch.randn(9).double()),
    "sparse weight": lambda: replaced(weight=torch.randn(9, 7).to_sparse()),
    "sparse x": lambda: replaced(x=torch.randn(5, 7).to_sparse_csr()),
    "weight elsewhere": lambda: replaced(weight=torch.randn(9, 7, device="meta")),
    "bias elsewhere": lambda: replaced(bias=torch.randn(9, device="meta")),
    "a subclass": lambda: replaced(x=torch.randn(5, 7).as_subclass(Subclass)),
    "a subclass of bias": lambda: replaced(bias=torch.randn(9).as_subclass(Subclass)),
    "double": lambda: {name: value.double() for name, value in replaced().items()},
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("unusual", UNUSUAL)
def test_what_does_not_go_straight(unusual: str, kernels: Kernels) -> None:
    """It takes the long way, which refuses it, or has a meaning for it."""
    assert calls.straight(*replaced().values())
    assert not calls.straight(*UNUSUAL[unusual]().values())


WRONG_OPTIONS = {
    "approximate must be": {"approximate": "Tanh"},
    "precision must be": {"precision": "tf32"},
    "approximate must be 'none' or 'tanh', got 1": {"approximate": 1, "precision": "tf32"},
}


@straight_ops
@pytest.mark.parametrize("message", WRONG_OPTIONS)
def test_either_way_complains_of_the_same(
    message: str, op: Callable[..., Tensor], kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = operands((5,))
    assert calls.straight(*arguments)
    with pytest.raises(ValueError, match=message) as straight:
        op(*arguments, **WRONG_OPTIONS[message])
    long_way(monkeypatch)
    with pytest.raises(ValueError, match=message) as around:
        op(*arguments, **WRONG_OPTIONS[message])
    assert str(straight.value) == str(around.value)
    assert kernels.ran == []
