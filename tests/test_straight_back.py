"""A training step straight to the kernels and back: what it asks, saves and takes, and what goes
around.

On the CPU against kernels of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_kernels import Kernels, operands
from straight_heads import Subclass, long_way, pooled_head
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

import cutlass_ops
from cutlass_ops import calls, dispatch, winner_gradients, winners


def refuse(*_: Any) -> Any:
    raise AssertionError("asked again")


def test_a_training_step_asks_once_each_way(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who listens, in forward and in backward; and of the operands nothing that was known."""
    asked: list[None] = []
    observed = calls.observed
    monkeypatch.setattr(calls, "observed", lambda: asked.append(None) or observed())
    for owner, name in (
        (winners, "native"),
        (winners, "check_native"),
        (winners, "check_linear_shapes"),
        (winners, "check_kernel_size"),
        (winner_gradients, "native"),
        (calls, "winner_gradients"),
        (calls, "linear_avgpool_gelu_scale_max_training"),
    ):
        monkeypatch.setattr(owner, name, refuse)
    inputs = [t.requires_grad_() for t in operands((5,))]
    y = pooled_head(*inputs)
    assert len(asked) == 1
    y.sum().backward()
    assert len(asked) == 2
    assert kernels.ran == ["linear_winners", "winner_gradients"]


def test_with_grad_either_head_asks_once(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("native", "check_native", "check_linear_shapes"):
        monkeypatch.setattr(dispatch, name, refuse)
    monkeypatch.setattr(calls, "linear_gelu_softmax_training", refuse)
    cutlass_ops.linear_gelu_softmax(*(t.requires_grad_() for t in operands((5,))))
    assert kernels.ran == ["linear_softmax"]


@pytest.mark.parametrize("kernel_size", [1, 4])
def test_either_way_saves_the_same(
    kernel_size: int, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint compares what is saved when it computes again, maybe the other way."""
    inputs = [t.requires_grad_() for t in operands((5,))]

    def saved() -> list[tuple[Any, ...]]:
        kept: list[tuple[Any, ...]] = []

        def pack(t: Tensor) -> Tensor:
            kept.append((t.shape, t.dtype, t.requires_grad))
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            pooled_head(*inputs, kernel_size=kernel_size)
        return kept

    straight = saved()
    assert len(straight) == 6
    long_way(monkeypatch)
    assert saved() == straight


Backward = Callable[[Tensor, list[Tensor], Tensor], Any]


def listened_to(y: Tensor, inputs: list[Tensor], g: Tensor) -> Any:
    with profile(activities=[ProfilerActivity.CPU]):
        return torch.autograd.grad(y, inputs, g)


def in_a_batch(y: Tensor, inputs: list[Tensor], g: Tensor) -> Any:
    grads = torch.autograd.grad(y, inputs, g[None], is_grads_batched=True)
    return [one[0] for one in grads]


DETOURS: dict[str, Backward] = {
    "a listener": listened_to,
    "a graph": lambda y, inputs, g: torch.autograd.grad(y, inputs, g, create_graph=True),
    "a batch": in_a_batch,
    "a subclass": lambda y, inputs, g: torch.autograd.grad(y, inputs, g.as_subclass(Subclass)),
}


@pytest.mark.parametrize("kernel_size", [1, 4])
@pytest.mark.parametrize("detour", DETOURS)
def test_what_does_not_go_straight_back(
    detour: str, kernel_size: int, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, g = [t.requires_grad_() for t in operands((5,))], torch.randn(5)
    y = pooled_head(*inputs, kernel_size=kernel_size)
    kernels.ran.clear()
    found = DETOURS[detour](y, inputs, g)
    assert kernels.ran == []
    long_way(monkeypatch)
    y = pooled_head(*inputs, kernel_size=kernel_size)
    assert_close(list(found), list(torch.autograd.grad(y, inputs, g)))


def test_what_hooks_give_back_does_not_go_straight(kernels: Kernels) -> None:
    inputs, g = [t.requires_grad_() for t in operands((5,))], torch.randn(5)
    expected = torch.autograd.grad(pooled_head(*inputs), inputs, g)
    kernels.ran.clear()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.as_subclass(Subclass)):
        y = pooled_head(*inputs)
    found = torch.autograd.grad(y, inputs, g)
    assert kernels.ran == ["linear_winners"]
    assert_close([one.as_subclass(Tensor) for one in found], list(expected))


GRADIENTS: dict[str, Tensor] = {
    "expanded": torch.randn(1).expand(5),
    "strided": torch.randn(10)[::2],
    "a parameter": torch.nn.Parameter(torch.randn(5)),
}


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_gradients_that_go_straight_back(gradient: str, kernels: Kernels) -> None:
    """Of any strides, and again while the graph is there."""
    inputs, g = [t.requires_grad_() for t in operands((5,))], GRADIENTS[gradient]
    y = pooled_head(*inputs)
    found = torch.autograd.grad(y, inputs, g, retain_graph=True)
    again = torch.autograd.grad(y, inputs, g.detach().clone())
    assert kernels.ran == ["linear_winners", "winner_gradients", "winner_gradients"]
    assert_close(found, again, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, inputs, g)


@pytest.mark.parametrize("which", range(3))
def test_gradients_that_are_needed(which: int, kernels: Kernels) -> None:
    inputs = operands((5,))
    inputs[which].requires_grad_()
    pooled_head(*inputs).sum().backward()
    assert [t.grad is not None for t in inputs] == [i == which for i in range(3)]
