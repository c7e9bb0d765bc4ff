"""What the binary answers about shapes, remembered: plans, routes, workspaces.

An answer depends on sizes and on two numbers of the GPU only. The memories are
bounded: a workload with ever new shapes must not grow without bound, and asking again costs
microseconds.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .schemas import OPS

_LIMIT = 4096
_empty: dict[int, Tensor] = {}
_epilogues: set[str] = set()


class Plan(NamedTuple):
    """How one fused GEMM runs. The first two are the choice, the rest follows from them
    (and from the number of multiprocessors)."""

    kernel: int  # index into the binary's kernels
    splits: int  # shares of K
    workspace: int  # float32 elements
    nanoseconds: int  # estimate
    direct: int  # 1: the epilogue runs in the GEMM, 0: on partial sums in the workspace


class PooledRoute(NamedTuple):
    """How op B runs on a weight ``[N, K]``."""

    rows: int  # of the weight that play a part: N less the remainder of the pooling
    fold: bool  # whether the weight is folded first; else the epilogue pools
    plan: Plan
    memory: int  # float32 elements: the plan's workspace, and what is made of weight and bias


class Gpu(NamedTuple):
    """What a plan depends on of a GPU."""

    sm_count: int  # multiprocessors
    capability: int  # 10 * major + minor


H200 = Gpu(132, 90)


@cache
def gpu(device_index: int) -> Gpu:
    """A CUDA device as plans see it."""
    properties = torch.cuda.get_device_properties(device_index)
    return Gpu(properties.multi_processor_count, 10 * properties.major + properties.minor)


def has_epilogue(name: str) -> bool:
    """Whether kernels are registered under this name. A library loaded later may add some, so only
    a yes is remembered."""
    if name in _epilogues:
        return True
    _epilogues.update(json.loads(OPS._build_info())["epilogues"])
    return name in _epilogues


@lru_cache(_LIMIT)
def linear_plan(
    name: str,
    params: tuple[float, ...],
    m: int,
    n: int,
    k: int,
    gpu: Gpu,
    folded: int = 1,
    fp16x3: bool = False,
    packed: bool = False,
    x_aligned: bool = True,
) -> Plan:
    """The plan for the epilogue ``name`` on x ``[M, K]``, weight ``[N, K]``.

    ``folded`` is the number of rows that each row of the weight is the mean of: the plan then keeps
    its chains of additions short enough to be as accurate as the mean of so many dot products.
    ``fp16x3``: the mode, in which tensor-core kernels run where they are estimated faster.
    ``packed``: the fp16 halves of the weight exist; else the workspace has room for them.
    ``x_aligned``: whether :func:`.operands.tma_rows` holds of x, which matters in the mode alone.
    """
    return Plan(*OPS._plan(name, params, m, n, k, gpu, folded, fp16x3, packed, x_aligned))


# What halves of a transposed operand take beyond those of rows: a second reading, and a launch.
_TRANSPOSED_ELEMENTS_PER_NS = 1000
_TRANSPOSED_NS = 4000


@lru_cache(_LIMIT)
def transposed_plan(
    m: int, n: int, k: int, gpu: Gpu, transposed: int, packed: bool = False
) -> Plan | None:
    """The plan on tensor cores, in the mode fp16x3, for a product whose operands are transposed, so
    many elements of them; None where without tensor cores it is estimated faster. ``packed``: as
    in :func:`linear_plan`."""
    halves = linear_plan("identity", (), m, n, k, gpu, 1, True, packed, False)
    if "fp16x3" not in OPS._describe_plan(list(halves)):
        return None
    before = _TRANSPOSED_NS + transposed // _TRANSPOSED_ELEMENTS_PER_NS
    faster = halves.nanoseconds + before < linear_plan("identity", (), m, n, k, gpu).nanoseconds
    return halves if faster else None


@lru_cache(_LIMIT)
def pooled_route(
    name: str,
    m: int,
    n: int,
    k: int,
    kernel_size: int,
    gpu: Gpu,
    folded: int = 1,
    fp16x3: bool = False,
    packed: bool = False,
    x_aligned: bool = True,
) -> PooledRoute:
    """The route of op B on x ``[M, K]``, weight ``[N, K]``.

    ``folded``, ``fp16x3``, ``packed``, ``x_aligned``: as in :func:`linear_plan`, for a weight that
    the caller folded, or split into halves.
    """
    windows = n // kernel_size
    rows = windows * kernel_size
    scale = 1.0  # a plan does not depend on it
    if kernel_size > 1 and OPS._choose_folding(m, rows, k, kernel_size, gpu, fp16x3, x_aligned):
        plan = linear_plan(
            name, (1.0, scale), m, windows, k, gpu, kernel_size, fp16x3, False, x_aligned
        )
        memory: int = OPS._folded_memory(windows, k, plan.kernel, plan.workspace)
        return PooledRoute(rows, True, plan, memory)
    params = (float(kernel_size), scale)
    plan = linear_plan(name, params, m, rows, k, gpu, folded, fp16x3, packed, x_aligned)
    return PooledRoute(rows, False, plan, plan.workspace)


@lru_cache(_LIMIT)
def winner_plan(
    m: int, windows: int, k: int, folded: int, gpu: Gpu, fp16x3: bool, x_aligned: bool
) -> tuple[int, int, int]:
    """For the forward of a training step of op B, on a weight ``[windows, K]`` of means of
    ``folded`` rows: kernel and splits of its linear part, and float32 elements of memory."""
    kernel, splits, workspace, _, _ = linear_plan(
        "identity", (), m, windows, k, gpu, folded, fp16x3, False, x_aligned
    )
    return kernel, splits, OPS._winner_memory(m, windows, workspace)


@lru_cache(_LIMIT)
def winner_gradient_memory(m: int, k: int) -> int:
    """Float32 elements for the gradient of the weight and bias of op B from ``m`` rows of ``k``
    columns; ``k`` 0 for that of the bias alone."""
    elements: int = OPS._winner_gradient_memory(m, k)
    return elements


@lru_cache(_LIMIT)
def matrix_workspace(name: str, params: tuple[float, ...], m: int, n: int) -> int:
    """Float32 elements of workspace for an epilogue on a matrix that is already there."""
    elements: int = OPS._matrix_workspace(name, params, m, n)
    return elements


@lru_cache(_LIMIT)
def gradient_groups(m: int, n: int) -> int:
    """Rows of partial sums with which the kernel of op A's backward is to sum the columns of its
    result ``[M, N]``; 0 where it is not to."""
    groups: int = OPS._row_gradient_groups(m, n)
    return groups


def workspace(x: Tensor, elements: int) -> Tensor:
    """Scratch memory like x, of float32; the empty one, the usual one, is kept."""
    if elements > 0:
        return x.new_empty(elements)
    index = x.get_device()
    empty = _empty.get(index)
    if empty is None:
        with torch.inference_mode(False):  # an inference tensor could not be passed on later
            empty = torch.empty(0, dtype=torch.float32, device=x.device)
        _empty[index] = empty
    return empty
