"""The products of backward, ``a @ b`` and ``a.T @ b``, in the precision of the forward.

With g ``[M, N]`` the gradient of x Wᵀ: ``dx = g @ W`` and ``dW = g.T @ x``. Neither is a product
with a transposed right operand, which is what the linear layers are: the kernels here read the
operands the other way round, as does what makes halves of them for the tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import plans
from ._torch_private import bare_call
from .operands import native, unit_columns
from .precision import check_native
from .schemas import OPS
from .validation import check_operand_dtypes, check_sizes
from .weights import split_rows

_OP = "product"

_product_memory = bare_call(OPS._product_memory.default)
_product_native = bare_call(OPS._product.default)
_linear_epilogue_native = bare_call(OPS._linear_epilogue.default)

# Where our own mainloop was faster than cuBLAS on the H200 (docs/performance.md): below so many
# multiplications and additions, with so short a k or with so few tiles for so many SMs it was not.
_LEAST_WORK = 9 * 10**8
_LEAST_K = 512
_LEAST_TILES = 32

# Halves of a transposed left operand are made for so many rows at a time: 16 MiB, or more where
# that would be fewer rows than fill the GPU with tiles for long.
_MOST_HALVES = 2**22  # elements
_LEAST_SLICE = 2048  # rows
_MOST_MEMORY = 2**30  # elements of halves and workspace together: as csrc/plan.cpp bounds a plan


def _fit(a: Tensor, a_transposed: bool, b: Tensor) -> bool:
    return a.dim() == b.dim() == 2 and a.shape[0 if a_transposed else 1] == b.shape[0]


def _check(a: Tensor, a_transposed: bool, b: Tensor, precision: str) -> None:
    check_native(_OP, precision, a.device)
    check_operand_dtypes(_OP, a, b)
    if not _fit(a, a_transposed, b):
        transposed = ", transposed," if a_transposed else ""
        raise ValueError(f"{_OP}: a {list(a.shape)}{transposed} does not fit b {list(b.shape)}")


def product(a: Tensor, a_transposed: bool, b: Tensor, precision: str) -> Tensor:
    """``cutlass_ops::product``: a ``[M, K]``, or ``[K, M]`` transposed, times b ``[K, N]``."""
    _check(a, a_transposed, b, precision)
    return _multiply(a, a_transposed, b)


def _multiply(a: Tensor, a_transposed: bool, b: Tensor) -> Tensor:
    return ((a.t() if a_transposed else a) @ b).contiguous()


def cuda_product(a: Tensor, a_transposed: bool, b: Tensor, precision: str) -> Tensor:
    """The same on tensor cores where the mode is fp16x3 and they are estimated faster, else by our
    own mainloop where it is faster than cuBLAS, else by cuBLAS, which follows PyTorch's TF32
    flag."""
    _check(a, a_transposed, b, precision)
    if not native(_OP, a, b):
        return _multiply(a, a_transposed, b)
    a, b = unit_columns(a), unit_columns(b)
    k, n = b.shape
    m = a.shape[1] if a_transposed else a.shape[0]
    check_sizes(_OP, m, n, k)
    gpu = plans.gpu(a.get_device())
    if gpu.capability != 90 or m * n * k == 0:
        return _multiply(a, a_transposed, b)
    if precision == "fp16x3":
        out = _on_tensor_cores(a.t() if a_transposed else a, b.t(), gpu)
        if out is not None:
            return out
    large = m * n * k >= _LEAST_WORK and k >= _LEAST_K and m * n >= _LEAST_TILES * 128 * 128
    elements = _product_memory(a, a_transposed, b) if large else 0
    if elements == 0:
        return _multiply(a, a_transposed, b)
    out = a.new_empty(m, n)
    _product_native(a, a_transposed, b, plans.workspace(a, elements), out)
    return out


def _on_tensor_cores(x: Tensor, weight: Tensor, gpu: plans.Gpu) -> Tensor | None:
    """``x @ weight.T`` with halves, where that is estimated faster than without; else None. A
    transposed x goes slice by slice of its rows, so that its halves take little memory beside
    those of the weight, which are made once."""
    (m, k), n = x.shape, weight.shape[0]
    transposed = x.stride(1) != 1
    rows = max(_LEAST_SLICE, _MOST_HALVES // k) if transposed else m
    slices = -(-m // rows)
    rows = -(-m // slices // 128) * 128 if slices > 1 else m
    plan = plans.transposed_plan(rows, n, k, gpu, k * (n + transposed * rows), slices > 1)
    if plan is None:
        return None
    if slices > 1 and OPS._fp16_pairs_elements(n, k) + plan.workspace > _MOST_MEMORY:
        return None  # a plan for one slice knows nothing of the weight's
    out = x.new_empty(m, n)
    pairs = split_rows(weight) if slices > 1 else None
    scratch = plans.workspace(x, plan.workspace)
    for begin in range(0, m, rows):
        part = slice(begin, begin + rows)
        _linear_epilogue_native(
            x[part], weight, None, "identity", (), plan.kernel, plan.splits, scratch, out[part],
            pairs,
        )  # fmt: skip
    return out


def _fake_product(a: Tensor, a_transposed: bool, b: Tensor, precision: str) -> Tensor:
    check_operand_dtypes(_OP, a, b)
    torch._check(_fit(a, a_transposed, b), lambda: "a is [M, K], or [K, M] transposed, b [K, N]")
    return a.new_empty((a.shape[1] if a_transposed else a.shape[0], b.shape[1]))


# name: as in ops.py
PRODUCTS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    _OP: (product, cuda_product, _fake_product),
}
