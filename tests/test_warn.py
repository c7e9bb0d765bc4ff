"""Warnings: once per text, and they name the program's own line, whichever way led to them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fused import linear_like
from torch import Tensor, nn

import cutlass_ops
from cutlass_ops import _library, ops, warn

MODE = "fp16x3"


@pytest.fixture(autouse=True)
def _nothing_was_told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(warn, "_warned", set())
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def heads(x: Tensor, weight: Tensor, bias: Tensor) -> dict[str, Callable[[], Any]]:
    """Each way to ask for a mode that has no kernel, called from this file."""
    module = cutlass_ops.nn.LinearGELUSoftmax(8, 5, precision=MODE)
    pooled = cutlass_ops.nn.LinearAvgPoolGELUScaleMax(8, 5, 2, precision=MODE)
    model = nn.Sequential(nn.Identity(), module).to(x.device)
    graph = torch.compile(pooled.to(x.device), fullgraph=True, backend="eager")
    return {
        "functional": lambda: cutlass_ops.linear_gelu_softmax(x, weight, bias, precision=MODE),
        "pooled": lambda: cutlass_ops.linear_avgpool_gelu_scale_max(
            x, weight, bias, kernel_size=2, precision=MODE
        ),
        "module": lambda: model(x),
        "pack_linear": lambda: cutlass_ops.pack_linear(weight, bias, precision=MODE),
        "pack of a module": lambda: pooled.pack(),
        "compiled": lambda: graph(x),
    }


@pytest.mark.parametrize("way", heads(*linear_like(4, 5, 8, "cpu")))
def test_a_fallback_is_told_once_in_the_name_of_the_caller(
    way: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_library, "fp16x3_reason", lambda device: "no tensor cores")
    call = heads(*linear_like(4, 5, 8, device))[way]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
        call()
    told = [w for w in caught if MODE in str(w.message)]
    assert [w.filename for w in told] == [__file__]
    assert [w.category for w in told] == [UserWarning]
    first = call.__code__.co_firstlineno  # type: ignore[attr-defined]
    assert first <= told[0].lineno <= first + 2


def test_texts_are_told_apart() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for text in ("one", "two", "one"):
            warn.warn_once(text)
    assert [str(w.message) for w in caught] == ["cutlass_ops: one", "cutlass_ops: two"]


def test_a_device_without_kernels_is_told_to_the_caller_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The CUDA implementation, on the CPU: it finds no kernels and turns to the reference."""
    monkeypatch.setattr(_library, "unsupported_reason", lambda device: "no kernels here")
    on_cuda = ops.IMPLEMENTATIONS["softmax"][1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        on_cuda(torch.ones(2, 3))
    assert [w.filename for w in caught] == [__file__]
    assert "no kernels here" in str(caught[0].message)


def test_where_no_frame_is_outside_the_outermost_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of the autograd engine has frames of torch and of ours only."""
    monkeypatch.setattr(warn, "_SKIPPED", ("",))
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    assert warn._outside(sys._getframe()) == depth
