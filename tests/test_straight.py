"""From the functional API straight to the kernels: which operands, and with the same result.

On the CPU against kernels of PyTorch; who listens to a call: test_calls.py.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_kernels import Kernels, agree, leads, operands
from straight_heads import HEADS, Subclass, both, long_way, pooled_head
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing import assert_close

import cutlass_ops
from cutlass_ops import _library, calls, dispatch, ops, plans, precision, reference, warn


@both
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


@both
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


@both
def test_second_derivatives_straight_and_around(
    op: Callable[..., Tensor], kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [t.requires_grad_() for t in operands((5,))]

    def twice() -> Any:
        first = torch.autograd.grad(op(*inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), inputs)

    straight = twice()
    long_way(monkeypatch)
    assert_close(straight, twice())


@both
def test_an_operand_that_left_its_transform(op: Callable[..., Tensor], kernels: Kernels) -> None:
    """Its wrapper is dead, and what it wrapped goes straight."""
    x, weight, bias = operands((5,))
    left: list[Tensor] = []
    torch.func.grad(lambda t: (left.append(t), t.sum())[1])(x)
    weight.requires_grad_()
    results = []
    for operand in (x, left[0]):
        assert calls.straight(operand, weight, bias)
        y = op(operand, weight, bias)
        results.append((y, *torch.autograd.grad(y.square().sum(), weight)))
    assert_close(*results)


def test_a_pack_tells_how_many_rows_it_folded(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan depends on that: sums of means need shorter chains."""
    asked: list[tuple[Any, ...]] = []
    route = plans.pooled_route

    def spy(*shape: Any) -> plans.PooledRoute:
        asked.append(shape)
        return route(*shape)

    monkeypatch.setattr(plans, "pooled_route", spy)
    x, weight, bias = operands((5,))
    pack = cutlass_ops.pack_linear(weight, bias, kernel_size=3, precision="ieee")
    y = cutlass_ops.linear_avgpool_gelu_scale_max(x, pack)
    agree(y, pooled_head(x, weight, bias, kernel_size=3, precision="ieee"))
    around = dispatch.linear_avgpool_gelu_scale_max(
        x, pack.weight, pack.bias, 1, 1.0, "none", "ieee", 3
    )
    agree(y, around)
    name = "avgpool_gelu_scale_max"
    packed = (name, 5, 3, 7, 1, plans.H200, 3, False, False, True)
    assert asked == [packed, (name, 5, 9, 7, 3, plans.H200, 1, False, False, True), packed]


# Hardly more than the least sizes for which the cost model takes the tensor cores; which native op
# runs; whether the weight is packed.
LARGE: dict[str, tuple[Callable[..., Tensor], tuple[int, int, int], str, bool]] = {
    "A": (cutlass_ops.linear_gelu_softmax, (256, 1024, 2048), "linear_softmax", False),
    "A packed": (cutlass_ops.linear_gelu_softmax, (128, 2048, 256), "linear_softmax", True),
    "B": (pooled_head, (256, 4096, 2048), "folded_epilogue", False),
    "B packed": (pooled_head, (256, 2048, 1024), "linear_epilogue", True),
}


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.parametrize("mode", precision.MODES)
@pytest.mark.parametrize("grad", [False, True])
def test_either_mode_straight_and_around(
    case: str,
    mode: str,
    grad: bool,
    kernels: Kernels,
    plans_by_cost: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In fp16x3 the tensor cores run, on the halves of the pack; in ieee neither is to be seen.
    Around, as on a GPU under a trace: by the registered implementation for CUDA."""
    op, (m, n, k), ran, packed = LARGE[case]
    x, weight = torch.randn(m, k) / k**0.5, torch.randn(n, k)
    if packed and grad:
        pytest.skip("a pack is for inference")
    pack = cutlass_ops.pack_linear(weight, kernel_size=1 + 3 * ("B" in case), precision=mode)
    options = {} if packed else {"precision": mode}
    operand = pack if packed else weight.requires_grad_(grad)
    fp16x3 = mode == "fp16x3"
    assert (pack.pairs is not None) == fp16x3
    for name, (_, on_cuda) in ops.IMPLEMENTATIONS.items():
        monkeypatch.setattr(calls, name, on_cuda, raising=False)
    found = []
    for straight in (True, False):
        if not straight:
            long_way(monkeypatch)
        kernels.ran.clear()
        kernels.products.clear()
        y = op(x, operand, None, **options)
        found.append(y.detach())
        assert kernels.ran == ["linear_winners" if grad and case == "B" else ran]
        ((kernel, halves),) = kernels.products
        assert ("fp16x3" in kernel) == fp16x3
        assert halves == (fp16x3 and packed)
        if grad:
            kernels.ran.clear()
            y.square().sum().backward()
            of_a = ["row_gradient", *(["linear_epilogue"] if fp16x3 else [])]
            assert kernels.ran == (["winner_gradients"] if case == "B" else of_a)
    assert torch.equal(*found)
    plain = reference_of(op, x, weight.detach())
    assert_close(found[0], plain, rtol=1e-4, atol=1e-6)


def reference_of(op: Callable[..., Tensor], x: Tensor, weight: Tensor) -> Tensor:
    if op is pooled_head:
        return reference.linear_avgpool_gelu_scale_max(x, weight, None, kernel_size=4)
    return reference.linear_gelu_softmax(x, weight, None)


def test_few_rows_take_the_same_kernel_in_either_mode(
    kernels: Kernels, plans_by_cost: None
) -> None:
    x, weight = torch.randn(2, 2048), torch.randn(512, 2048)
    packs = [cutlass_ops.pack_linear(weight, precision=mode) for mode in precision.MODES]
    results = [cutlass_ops.linear_gelu_softmax(x, pack) for pack in packs]
    results += [cutlass_ops.linear_gelu_softmax(x, weight, precision="fp16x3")]
    assert [kernel for kernel, _ in kernels.products] == 3 * ["skinny"]
    assert [halves for _, halves in kernels.products] == [False, True, False]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_device_without_the_mode_runs_straight_in_ieee(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an A100 does: one warning, and no pack has halves."""
    monkeypatch.setattr(warn, "_warned", set())
    monkeypatch.setattr(_library, "fp16x3_reason", lambda device: "it is no Hopper")
    x, weight = torch.randn(256, 2048), torch.randn(1024, 2048)
    with pytest.warns(UserWarning, match=r"fp16x3.*it is no Hopper.*running in 'ieee'"):
        pack = cutlass_ops.pack_linear(weight, precision="fp16x3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = cutlass_ops.linear_gelu_softmax(x, pack)
        again = cutlass_ops.linear_gelu_softmax(x, weight, precision="fp16x3")
    assert (pack.precision, pack.pairs) == ("fp16x3", None)
    assert not any("fp16x3" in kernel for kernel, _ in kernels.products)
    assert torch.equal(y, again)
    with cutlass_ops.float32_precision("ieee", strict=True):
        for call in (
            lambda: cutlass_ops.linear_gelu_softmax(x, pack),
            lambda: cutlass_ops.pack_linear(weight, precision="fp16x3"),
        ):
            with pytest.raises(RuntimeError, match=r"fp16x3.*it is no Hopper.*strict"):
                call()


class Four(enum.IntEnum):
    FOUR = 4


def symbolic_four() -> Any:
    return FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.empty(4)).shape[0]


FOURS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.int64(4),
    "enum": lambda: Four.FOUR,
    "symbolic": symbolic_four,
}


@pytest.mark.parametrize("four", FOURS)
def test_any_integer_is_a_kernel_size(four: str, kernels: Kernels) -> None:
    arguments = operands((5,))
    y = pooled_head(*arguments, kernel_size=FOURS[four]())
    assert len(kernels.ran) == 1
    agree(y, pooled_head(*arguments, kernel_size=4))


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
    "a weight of three dimensions": lambda: replaced(weight=torch.randn(9, 7, 1)),
    "a bias of two dimensions": lambda: replaced(bias=torch.randn(9, 1)),
    "a long bias": lambda: replaced(bias=torch.randn(10)),
    "half x": lambda: replaced(x=torch.randn(5, 7).half()),
    "half weight": lambda: replaced(weight=torch.randn(9, 7).half()),
    "double bias": lambda: replaced(bias=torch.randn(9).double()),
    "sparse x": lambda: replaced(x=torch.randn(5, 7).to_sparse_csr()),
    "sparse weight": lambda: replaced(weight=torch.randn(9, 7).to_sparse()),
    "sparse bias": lambda: replaced(bias=torch.randn(9).to_sparse()),
    "weight elsewhere": lambda: replaced(weight=torch.randn(9, 7, device="meta")),
    "bias elsewhere": lambda: replaced(bias=torch.randn(9, device="meta")),
    "a subclass of x": lambda: replaced(x=torch.randn(5, 7).as_subclass(Subclass)),
    "a subclass of weight": lambda: replaced(weight=torch.randn(9, 7).as_subclass(Subclass)),
    "a subclass of bias": lambda: replaced(bias=torch.randn(9).as_subclass(Subclass)),
    "double": lambda: {name: value.double() for name, value in replaced().items()},
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("unusual", UNUSUAL)
def test_what_does_not_go_straight(unusual: str, kernels: Kernels) -> None:
    """It takes the long way, which refuses it, or has a meaning for it."""
    assert calls.straight(*replaced().values())
    assert not calls.straight(*UNUSUAL[unusual]().values())


def test_nothing_goes_straight_to_a_device_without_kernels(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_library, "unsupported_reason", lambda device: f"no kernels on {device}")
    assert not calls.straight(*operands((5,)))


NO_ROWS = {"weight": torch.empty(0, 7), "bias": None, "kernel_size": 1}
WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("AB", "approximate must be", {"approximate": "Tanh"}),
    ("AB", "precision must be", {"precision": "tf32"}),
    ("AB", "must be 'none' or 'tanh', got 1", {"approximate": 1, "precision": "tf32"}),
    ("B", "got kernel_size 0 for N = 9", {"kernel_size": 0}),
    ("B", "got kernel_size 10 for N = 9", {"kernel_size": 10}),
    ("B", "kernel_size must be an int, got None", {"kernel_size": None}),
    ("B", "kernel_size must be an int, got 4.0", {"kernel_size": 4.0}),
    ("B", "the maximum needs N >= 1, got N = 0", NO_ROWS),
]


@pytest.mark.parametrize(
    ("head", "message", "wrong"),
    [(head, message, wrong) for heads, message, wrong in WRONG for head in heads],
)
def test_either_way_complains_of_the_same(
    head: str,
    message: str,
    wrong: dict[str, Any],
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = replaced() | wrong
    assert calls.straight(*(arguments[name] for name in ("x", "weight", "bias")))
    with pytest.raises((TypeError, ValueError), match=message) as straight:
        HEADS[head](**arguments)
    long_way(monkeypatch)
    with pytest.raises(straight.type, match=message) as around:
        HEADS[head](**arguments)
    assert str(straight.value) == str(around.value)
    assert kernels.ran == []
