"""What the binary answers about shapes, remembered: plans, folding, workspaces.

An answer depends on shapes and on the device's number of multiprocessors only. The memories are
bounded: a workload with ever new shapes must not grow without bound, and asking again costs
microseconds.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache

import torch
from torch import Tensor

from . import schemas

_ops = torch.ops.cutlass_ops
_LIBRARY = schemas.LIBRARY  # the ops exist once the schemas are defined

_LIMIT = 4096
_plan = lru_cache(_LIMIT)(_ops._plan.default)
_folding = lru_cache(_LIMIT)(_ops._choose_folding.default)
_matrix_workspace = lru_cache(_LIMIT)(_ops._matrix_workspace.default)
_empty: dict[int, Tensor] = {}
_epilogues: set[str] = set()


@cache
def sm_count(device_index: int) -> int:
    """Number of multiprocessors of a CUDA device."""
    return torch.cuda.get_device_properties(device_index).multi_processor_count


def has_epilogue(name: str) -> bool:
    """Whether kernels are registered under this name. A library loaded later may add some, so only
    a yes is remembered."""
    if name in _epilogues:
        return True
    _epilogues.update(json.loads(_ops._build_info())["epilogues"])
    return name in _epilogues


def linear_plan(
    x: Tensor, name: str, params: tuple[float, ...], m: int, n: int, k: int, folded: int = 1
) -> list[int]:
    """The plan for a fused GEMM on the device of x; its [2] is the workspace in float32.

    ``folded`` is the number of rows that each row of the weight is the mean of: the plan then keeps
    its chains of additions short enough to be as accurate as the mean of so many dot products.
    """
    plan: list[int] = _plan(name, params, m, n, k, sm_count(x.get_device()), folded)
    return plan


def choose_folding(x: Tensor, m: int, n: int, k: int, kernel_size: int) -> bool:
    """Whether to fold the weights first (True) or to pool in the epilogue (False)."""
    folding: bool = _folding(m, n, k, kernel_size, sm_count(x.get_device()))
    return folding


def matrix_workspace(name: str, params: tuple[float, ...], m: int, n: int) -> int:
    """Float32 elements of workspace for an epilogue on a matrix that is already there."""
    elements: int = _matrix_workspace(name, params, m, n)
    return elements


def workspace(x: Tensor, elements: int) -> Tensor:
    """Scratch memory of float32 on the device of x; the empty one, the usual one, is kept."""
    if elements > 0:
        return torch.empty(elements, dtype=torch.float32, device=x.device)
    index = x.get_device()
    empty = _empty.get(index)
    if empty is None:
        with torch.inference_mode(False):  # an inference tensor could not be passed on later
            empty = torch.empty(0, dtype=torch.float32, device=x.device)
        _empty[index] = empty
    return empty
