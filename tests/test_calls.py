"""Calls past the dispatcher: only where nothing listens, and with the same result."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from fused import BOTH, Fused, linear_like, same_bits
from torch import Tensor
from torch._C._profiler import _ExperimentalConfig
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from cutlass_ops import _library, calls, ops
from cutlass_ops.functional import linear_gelu_softmax
from cutlass_ops.nn import LinearAvgPoolGELUScaleMax, LinearGELUSoftmax
from cutlass_ops.packing import pack_linear


class Modes(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Subclass(Tensor):
    pass


Direct = tuple[Callable[..., Tensor], list[str]]


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> Direct:
    """softmax as the package calls it, and a list that grows where it went past the dispatcher."""
    went: list[str] = []
    plain = ops.IMPLEMENTATIONS["softmax"]

    def spy(implementation: Callable[..., Any], device: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            went.append(device)
            return implementation(*args)

        return run

    spies = spy(plain[0], "cpu"), spy(plain[1], "cuda")
    monkeypatch.setitem(ops.IMPLEMENTATIONS, "softmax", spies)
    return calls.call_of("softmax"), went


@pytest.mark.parametrize("kind", [Tensor, torch.nn.Parameter], ids=lambda kind: kind.__name__)
def test_a_plain_call_goes_past_the_dispatcher(kind: Any, direct: Direct, device: str) -> None:
    call, went = direct
    z = torch.randn(3, 5, device=device)
    y = call(torch.nn.Parameter(z) if kind is not Tensor else z)
    assert went == [device]
    assert same_bits(y, torch.ops.cutlass_ops.softmax(z))
    assert not y.requires_grad


LISTENERS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "dispatch mode": Modes,
    "function mode": Functions,
    "profiler": lambda: profile(activities=[ProfilerActivity.CPU]),
    "profiler of all threads": lambda: profile(
        activities=[ProfilerActivity.CPU],
        experimental_config=_ExperimentalConfig(profile_all_threads=True),
    ),
}


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_listener_hears_of_every_call(listener: str, direct: Direct, device: str) -> None:
    call, went = direct
    z = torch.randn(3, 5, device=device)
    with LISTENERS[listener]() as heard:
        y = call(z)
    assert went == []
    assert same_bits(y, torch.ops.cutlass_ops.softmax(z))
    if "profiler" in listener:
        assert "cutlass_ops::softmax" in {event.key for event in heard.key_averages()}
    call(z)
    assert went == [device]


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
def test_transforms_traces_and_subclasses_take_the_registered_op(
    direct: Direct, device: str
) -> None:
    call, went = direct
    z = torch.randn(3, 5, device=device)
    torch.func.vmap(call)(z)
    traced = torch.jit.trace(call, (z,), check_trace=False)
    assert "cutlass_ops::softmax" in str(traced.graph)
    with FakeTensorMode() as mode:
        assert call(mode.from_tensor(z)).shape == z.shape
    call(z.as_subclass(Subclass))
    assert call(z.to("meta")).device.type == "meta"
    assert went == []


Operands = tuple[Tensor, Tensor, Tensor]


@pytest.fixture
def head(device: str, monkeypatch: pytest.MonkeyPatch) -> Operands:
    """Operands of a head that go straight to the kernels, had the device any."""
    monkeypatch.setattr(_library, "unsupported_reason", lambda device: None)
    operands = linear_like(5, 9, 7, device)
    assert calls.straight(*operands)
    return operands


@pytest.mark.parametrize("listener", LISTENERS)
def test_with_a_listener_nothing_goes_straight(listener: str, head: Operands) -> None:
    with LISTENERS[listener]():
        assert not calls.straight(*head)
    assert calls.straight(*head)


Function = Callable[[Tensor], Tensor]
TRANSFORMS: dict[str, Callable[[Function, Tensor], object]] = {
    "vmap": lambda function, x: torch.func.vmap(function)(x.unsqueeze(0)),
    "grad": lambda function, x: torch.func.grad(function)(x),
    "jit.trace": lambda function, x: torch.jit.trace(function, (x,), check_trace=False),
    "compile": lambda function, x: torch.compile(function, backend="eager", fullgraph=True)(x),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_in_transforms_and_traces_nothing_goes_straight(transform: str, head: Operands) -> None:
    x, weight, bias = head
    answers: list[bool] = []

    def function(x: Tensor) -> Tensor:
        answers.append(calls.straight(x, weight, bias))
        return x.sum()

    TRANSFORMS[transform](function, x)
    assert answers == [False]


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_listener_hears_of_the_halves_of_a_pack(
    listener: str, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registered op is called with them, and the way straight to the kernels passes them on."""
    x, weight, bias = linear_like(5, 9, 7, "cpu")
    pack = pack_linear(weight, bias, precision="fp16x3")
    handed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(calls, "linear_gelu_softmax", lambda *args: handed.append(args) or args[0])
    with LISTENERS[listener]():
        linear_gelu_softmax(x, pack)
    ((*_, approximate, mode, pairs),) = handed
    assert (approximate, mode) == ("none", "fp16x3")
    assert pairs is pack.pairs
    linear_gelu_softmax(x, pack)
    assert len(handed) == 1
    assert [halves for _, halves in kernels.products] == [True]


@pytest.mark.parametrize("op", BOTH, ids=repr)
@pytest.mark.parametrize("grad", [False, True])
def test_observed_or_not_the_results_are_the_same(op: Fused, grad: bool, device: str) -> None:
    operands = linear_like(9, 24, 17, device, requires_grad=grad)
    found = []
    for context in (nullcontext(), Modes()):
        with context:
            y = op.call(*operands)
            grads = torch.autograd.grad(y.square().sum(), operands) if grad else ()
        found.append((y.detach(), *grads))
    for quiet, heard in zip(*found, strict=True):
        assert same_bits(quiet, heard)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "module",
    [LinearGELUSoftmax(24, 20), LinearAvgPoolGELUScaleMax(24, 20, 4, -1.5)],
    ids=lambda module: type(module).__name__,
)
def test_jit_trace_with_grad(module: torch.nn.Module, device: str, tmp_path: Path) -> None:
    """The tracer cannot save an autograd function, which it takes for a call of Python. (Its own
    check traces again without grad, and finds another graph, that of the op.)"""
    module = copy.deepcopy(module).to(device)
    x = torch.randn(9, 24, device=device, requires_grad=True)
    torch.jit.save(torch.jit.trace(module, (x,), check_trace=False), str(tmp_path / "head.pt"))
    traced = torch.jit.load(str(tmp_path / "head.pt"))
    torch.testing.assert_close(traced(x), module(x))
    expected = torch.autograd.grad(module(x).square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(traced(x).square().sum(), x), expected)
