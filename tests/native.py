"""The binary's own ops, called past the Python layer with a kernel of the test's choice."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fused import linear_like, same_bits
from heads import head_of, is_pooled, some_params
from operands import Linear
from oracle import check
from torch import Tensor

from cutlass_ops import _library, plans
from cutlass_ops.epilogues import EPILOGUES
from cutlass_ops.operands import tma_rows

OPS = torch.ops.cutlass_ops
needs_binary = pytest.mark.skipif(
    not _library.loaded(), reason=f"no binary: {_library.load_error()}"
)
KERNELS = tuple(_library.build_info().get("kernels", ()))
BUILT = tuple(_library.build_info().get("epilogues", ()))
STREAM_K = "stream_k_128x128x32"
SLICED_K = "sliced_k_128x128x32"
FP16X3 = "fp16x3_128x128x64"
FP16X3_NARROW = "fp16x3_64x64x64"  # for few columns; it reads x by TMA
FP16X3_KERNELS = (FP16X3, FP16X3_NARROW)
fp16x3_kernels = pytest.mark.parametrize("kernel", FP16X3_KERNELS)
GUARD = 64  # floats of NaN on both sides of what a kernel writes


def gpu_of(device: str = "cuda") -> plans.Gpu:
    return plans.gpu(torch.device(device).index or 0)


def require_kernels(device: str) -> None:
    """Skip, with the reason, where no native kernel can run on this device."""
    reason = _library.unsupported_reason(torch.device(device, 0))
    if reason is not None:
        pytest.skip(reason)


def reason_without(kernel: str, device: str) -> str | None:
    """Why a device with kernels lacks this one. Built for 90 and not for 90a, those of fp16x3 are
    there, and empty."""
    return _library.fp16x3_reason(torch.device(device, 0)) if kernel in FP16X3_KERNELS else None


def reads(kernel: str, x: Tensor) -> bool:
    """Whether the kernel takes x with the strides and at the address that it has."""
    return kernel != FP16X3_NARROW or tma_rows(x)


def rows_for(kernel: str, x: Tensor) -> Tensor:
    """x, or, where the kernel does not read it as it is, a copy in longer rows amid NaN."""
    if reads(kernel, x):
        return x
    m, k = x.shape
    return x.new_full((m, k // 4 * 4 + 8), math.nan)[:, 4 : 4 + k].copy_(x)


class _Choice:
    """The binary's queries, but for the choice of folding."""

    def __init__(self, folding: bool) -> None:
        self._choose_folding = lambda *shape: folding

    def __getattr__(self, name: str) -> Any:
        return getattr(OPS, name)


def force_folding(folding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Op B folds the weight, or does not, whatever its cost."""
    monkeypatch.setattr(plans, "OPS", _Choice(folding))
    route = plans.pooled_route.__wrapped__  # its memory would outlive the patch
    monkeypatch.setattr(plans, "pooled_route", route)


def guarded(shape: tuple[int, ...], device: str) -> tuple[Tensor, Tensor]:
    """Memory full of NaN and a contiguous, 16-byte aligned view of this shape in the middle of
    it."""
    memory = torch.full((math.prod(shape) + 2 * GUARD,), math.nan, device=device)
    return memory, memory[GUARD : GUARD + math.prod(shape)].view(shape)


def guards_are_intact(memory: Tensor) -> bool:
    return bool(memory[:GUARD].isnan().all()) and bool(memory[-GUARD:].isnan().all())


def run_plan(
    name: str,
    params: list[float],
    plan: list[int],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    pairs: Tensor | None = None,
) -> Tensor:
    """One call of the binary with poisoned workspace and output, and guards around both. With
    ``pairs`` the plan must be one for packed weights."""
    n = len(weight)
    columns = EPILOGUES[name].columns
    shape = (len(x),) if columns is None else (len(x), columns(n, params))
    memory, out = guarded(shape, "cuda")
    scratch, workspace = guarded((plan[2],), "cuda")
    OPS._linear_epilogue(x, weight, bias, name, params, *plan[:2], workspace, out, pairs)
    assert guards_are_intact(memory), "a kernel wrote outside its output"
    assert guards_are_intact(scratch), "a kernel wrote outside its workspace"
    return out.clone()


def plan_for(
    name: str,
    params: list[float],
    shape: tuple[int, int, int],
    kernel: str,
    splits: int,
    packed: bool = False,
) -> list[int] | None:
    """The plan with this kernel and number of splits of k, or None where the binary refuses it."""
    try:
        return list(OPS._plan_for(name, params, *shape, gpu_of(), kernel, splits, packed))
    except RuntimeError as error:
        if kernel not in str(error):  # a refusal names the kernel; anything else is a failure
            raise
        return None


def forced(
    kernel: str,
    name: str,
    params: list[float],
    shape: tuple[int, int, int],
    splits: int,
    packed: bool = False,
) -> list[int]:
    """The same, of a kernel that must not refuse it."""
    plan = plan_for(name, params, shape, kernel, splits, packed)
    assert plan is not None, f"{kernel} refuses {shape} in {splits}"
    return plan


def run_matrix(name: str, params: list[float], z: Tensor, bias: Tensor | None = None) -> Tensor:
    """A description on a matrix that is already there."""
    m, n = z.shape
    columns = EPILOGUES[name].columns
    shape = (m,) if columns is None else (m, columns(n, params))
    memory, out = guarded(shape, "cuda")
    elements = OPS._matrix_workspace(name, params, m, n)
    scratch, workspace = guarded((elements,), "cuda")
    OPS._matrix_epilogue(z, bias, name, params, workspace, out)
    assert guards_are_intact(memory), "a kernel wrote outside its output"
    assert guards_are_intact(scratch), "a kernel wrote outside its workspace"
    return out.clone()


def run_everywhere(name: str, kernel: str, shapes: tuple, splits: tuple, params: list) -> None:
    """Every shape and split that the kernel takes, judged; and it must take some."""
    ran = 0
    for m, n, k in shapes:
        x, weight, bias = linear_like(m, n, k, "cuda", seed=m * n)
        x = rows_for(kernel, x)
        fitting = params or some_params(name, n)
        if is_pooled(name) and fitting[0] > n:
            continue
        for split in splits:
            plan = plan_for(name, fitting, (m, n, k), kernel, split)
            if plan is None:
                continue
            y = run_plan(name, fitting, plan, x, weight, bias)
            check(y, head_of(name, fitting), Linear(x, weight, bias))
            assert same_bits(y, run_plan(name, fitting, plan, x, weight, bias))
            ran += 1
    only_direct = kernel.startswith("stream_k") and is_pooled(name) and params
    assert ran or (only_direct and 128 % params[0] != 0), f"{kernel} ran nowhere"
