"""The binary's own ops refuse memory that does not fit, whoever calls them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from native import OPS, gpu_of, needs_binary, require_kernels

from cutlass_ops import plans

POOLED = "avgpool_gelu_scale_max"
sizes = st.integers(1, 70_000)


def linear_arguments(device: str) -> dict[str, Any]:
    """A valid call of _linear_epilogue that takes partial sums through its workspace."""
    plan = OPS._plan_for("gelu", [], 40, 70, 256, gpu_of(), "simt_64x64x8", 2)
    return {
        "x": torch.randn(40, 256, device=device),
        "weight": torch.randn(70, 256, device=device),
        "bias": torch.randn(70, device=device),
        "name": "gelu",
        "params": [],
        "kernel": plan[0],
        "splits": plan[1],
        "workspace": torch.empty(plan[2], device=device),
        "out": torch.empty(40, 70, device=device),
    }


WRONG: dict[str, Any] = {
    "short workspace": lambda a: a | {"workspace": a["workspace"][:-1]},
    "short output": lambda a: a | {"out": a["out"][:-1]},
    "strided output": lambda a: a | {"out": torch.empty(70, 40, device="cuda").t()},
    "short bias": lambda a: a | {"bias": a["bias"][:-1]},
    "strided bias": lambda a: a | {"bias": torch.randn(140, device="cuda")[::2]},
    "double output": lambda a: a | {"out": a["out"].double()},
    "half weight": lambda a: a | {"weight": a["weight"].half()},
    "weight on the CPU": lambda a: a | {"weight": a["weight"].cpu()},
    "strided columns": lambda a: a | {"x": torch.randn(256, 40, device="cuda").t()},
    "other depth": lambda a: a | {"x": a["x"][:, :-1]},
    "more splits": lambda a: a | {"splits": 3},
    "splits beyond K": lambda a: a | {"splits": 257},
    "no split": lambda a: a | {"splits": 0},
    "no such kernel": lambda a: a | {"kernel": 99},
    "no kernel": lambda a: a | {"kernel": -1},
    "no such epilogue": lambda a: a | {"name": "gelu_"},
    "too many params": lambda a: a | {"params": [1.0]},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_linear_epilogue_refuses(wrong: str, cuda: str) -> None:
    require_kernels(cuda)
    arguments = linear_arguments(cuda)
    OPS._linear_epilogue(*arguments.values())
    before = arguments["out"].clone()
    with pytest.raises(RuntimeError):
        OPS._linear_epilogue(*WRONG[wrong](arguments).values())
    assert torch.equal(arguments["out"], before)


def test_a_plan_for_fewer_rows_does_not_shrink_the_workspace(cuda: str) -> None:
    """A plan's workspace was once believed, whatever it was made for: the kernel wrote past it."""
    require_kernels(cuda)
    arguments = linear_arguments(cuda)
    small = OPS._plan_for("gelu", [], 1, 70, 256, gpu_of(), "simt_64x64x8", 2)
    assert list(small[:2]) == [arguments["kernel"], arguments["splits"]]
    arguments["workspace"] = torch.empty(small[2], device=cuda)
    with pytest.raises(RuntimeError, match="workspace must hold"):
        OPS._linear_epilogue(*arguments.values())


def test_the_other_ops_refuse(cuda: str) -> None:
    require_kernels(cuda)
    z = torch.randn(6, 40, device=cuda)
    scratch = torch.empty(10_000, device=cuda)
    row = torch.empty(5, device=cuda)
    weight = torch.randn(32, 40, device=cuda)
    plan = OPS._plan(POOLED, [1.0, 1.0], 6, 16, 40, gpu_of())[:2]
    for call in (
        lambda: OPS._row_softmax(z, None, "gelu", torch.empty(6, 39, device=cuda)),
        lambda: OPS._row_softmax(z, None, "silu", torch.empty_like(z)),
        lambda: OPS._fold_rows(z, None, 2, torch.empty(2, 40, device=cuda), None),
        lambda: OPS._fold_rows(z, None, 7, torch.empty_like(z), None),
        lambda: OPS._fold_rows(z, row, 2, z, row),  # a bias of 5 for 6 rows
        lambda: OPS._fold_rows(z, scratch[:12:2], 2, z, row),
        lambda: OPS._fold_rows(z, scratch, 2, z, row[:2]),
        lambda: OPS._fold_rows(z, scratch, 2, z, None),
        lambda: OPS._fold_rows(z, None, 2, z, row),
        lambda: OPS._fold_rows(z, scratch.cpu(), 2, z, row),
        lambda: OPS._matrix_epilogue(z, None, POOLED, [2.0, 1.0], scratch, row),
        lambda: OPS._refine_nonfinite(z, weight, None, POOLED, [2.0, 1.0], row),
        lambda: OPS._refine_nonfinite(z, weight, None, "gelu", [], z),
        lambda: OPS._folded_epilogue(z, weight, None, POOLED, [2.0, 1.0], *plan, scratch, row),
        lambda: OPS._folded_epilogue(z, weight, None, POOLED, [2.0, 1.0], *plan, row, scratch[:6]),
        lambda: OPS._folded_epilogue(z, weight, None, POOLED, [40.0, 1.0], *plan, scratch, row),
        lambda: OPS._folded_epilogue(z, weight, None, "gelu", [], *plan, scratch, z),
    ):
        with pytest.raises(RuntimeError):
            call()


@needs_binary
@pytest.mark.parametrize("gpu", [[0, 90], [-1, 90], [2**17, 90], [132], []])
def test_a_gpu_without_multiprocessors_is_no_question(gpu: list[int]) -> None:
    """A division by zero ended the process."""
    with pytest.raises(RuntimeError, match="a GPU is its number of multiprocessors"):
        OPS._plan("identity", [], 64, 64, 64, gpu)
    with pytest.raises(RuntimeError, match="a GPU is its number of multiprocessors"):
        OPS._choose_folding(64, 64, 64, 4, gpu)


@needs_binary
@given(m=sizes, n=sizes, k=sizes, folded=st.sampled_from([1, 2, 16, 100]))
def test_workspaces_are_bounded(m: int, n: int, k: int, folded: int) -> None:
    """64 MiB, or the [M, N] matrix of the unfolded layer; a plan took 2.9 GiB to gain 0.04 %."""
    name, params = ("gelu", []) if folded == 1 else (POOLED, [1.0, 1.0])
    workspace = OPS._plan(name, params, m, n, k, plans.H200, folded)[2]
    assert workspace <= max(2**24, 2 * m * n * folded)
