"""CUDA implementations of the registered ops: which kernels run, on what memory.

Each function either hands over to the binary or, where that cannot serve the device or the dtype,
to the plain PyTorch reference. Outputs and workspaces are allocated here and not in C++, so that
running out of memory surfaces as ``torch.OutOfMemoryError``. Nothing here synchronises, so every
path can be captured in a CUDA graph from its first call on. (fold_rows: weights.py.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import plans, reference
from ._torch_private import bare_call
from .epilogues import gelu_name, lookup, pooled_name
from .operands import dense, empty, native, tma_rows, unit_columns
from .precision import check_native
from .schemas import OPS
from .validation import (
    check_columns,
    check_kernel_size,
    check_linear_shapes,
    check_matrix_shapes,
    check_sizes,
)
from .warn import warn_once

_linear_epilogue_native = bare_call(OPS._linear_epilogue.default)
_linear_softmax_native = bare_call(OPS._linear_softmax.default)
_matrix_epilogue_native = bare_call(OPS._matrix_epilogue.default)
_row_softmax_native = bare_call(OPS._row_softmax.default)
_folded_epilogue_native = bare_call(OPS._folded_epilogue.default)


def _gpu(x: Tensor) -> plans.Gpu:
    return plans.gpu(x.get_device())


def linear_epilogue(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    name: str,
    params: Sequence[float],
    precision: str = "ieee",
    op: str = "linear_epilogue",
) -> Tensor:
    """CUDA implementation of ``cutlass_ops::linear_epilogue``; ``op`` is named in errors."""
    row = lookup(name)
    check_native(op, precision, x.device)
    check_linear_shapes(op, x, weight, bias)
    n, k = weight.shape
    row.check(n, params)
    runs = native(op, x, weight, bias) and n > 0
    if runs and not plans.has_epilogue(name):
        warn_once(f"no kernel is built for the epilogue {name!r}; running its reference instead")
        runs = False
    if not runs:
        return row.reference(reference.linear(x, weight, bias), params).contiguous()
    lead = x.shape[:-1]
    x = unit_columns(x)
    m = x.shape[0]
    check_sizes(op, m, n, k)
    out = empty(x, lead if row.columns is None else (*lead, row.columns(n, params)))
    if out.numel() > 0:
        run_epilogue(x, weight, bias, name, tuple(params), precision == "fp16x3", out)
    return out


def run_epilogue(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    name: str,
    params: tuple[float, ...],
    fp16x3: bool,
    out: Tensor,
    folded: int = 1,
) -> None:
    """A linear layer and its epilogue, on operands that the kernels take, into ``out``, which has
    elements. ``folded``: as in :func:`.plans.linear_plan`."""
    (m, k), n = rows.shape, weight.shape[0]
    kernel, splits, elements, _, _ = plans.linear_plan(
        name, params, m, n, k, _gpu(rows), folded, fp16x3, False, not fp16x3 or tma_rows(rows)
    )
    scratch = plans.workspace(rows, elements)
    weight, bias = unit_columns(weight), dense(bias)
    _linear_epilogue_native(rows, weight, bias, name, params, kernel, splits, scratch, out, None)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, precision: str = "ieee") -> Tensor:
    """CUDA implementation of ``cutlass_ops::linear``."""
    return linear_epilogue(x, weight, bias, "identity", (), precision, op="linear")


def linear_gelu_softmax(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    approximate: str,
    precision: str,
    pairs: Tensor | None = None,
) -> Tensor:
    """CUDA implementation of ``cutlass_ops::linear_gelu_softmax``: a GEMM, then bias, GELU and
    softmax in place and in one pass, which waits for memory and has the instructions to spare."""
    op = "linear_gelu_softmax"
    return _softmax_head(op, x, weight, bias, approximate, precision, pairs, False)[0]


def linear_gelu_softmax_training(
    x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, precision: str
) -> tuple[Tensor, Tensor]:
    """CUDA implementation of ``cutlass_ops::linear_gelu_softmax_training``: as above, but the GEMM
    leaves the linear part, which backward needs, in memory of its own."""
    op = "linear_gelu_softmax_training"
    y, z = _softmax_head(op, x, weight, bias, approximate, precision, None, True)
    assert z is not None
    return y, z


def _softmax_head(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    approximate: str,
    precision: str,
    pairs: Tensor | None,
    keep_linear: bool,
) -> tuple[Tensor, Tensor | None]:
    check_native(op, precision, x.device)
    check_linear_shapes(op, x, weight, bias)
    if not native(op, x, weight, bias):
        plain = reference.linear_gelu_softmax_training(x, weight, bias, approximate=approximate)
        return plain[0].contiguous(), plain[1].contiguous()
    fp16x3 = precision == "fp16x3"
    pairs = pairs if fp16x3 else None
    return run_softmax_head(op, x, weight, bias, approximate, fp16x3, pairs, keep_linear)


def run_softmax_head(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    approximate: str,
    fp16x3: bool = False,
    pairs: Tensor | None = None,
    keep_linear: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Op A, and its linear part where that is kept, on operands that the kernels take; below
    autograd, or where nothing requires grad. ``pairs``, in fp16x3 alone: ``split_rows`` of the
    weight."""
    n, k = weight.shape
    rows = unit_columns(x)
    m = rows.shape[0]
    check_sizes(op, m, n, k)
    y = x.new_empty(m, n) if rows is x else empty(x, (*x.shape[:-1], n))
    z = torch.empty_like(y) if keep_linear else None
    if m > 0 and n > 0:
        aligned = not fp16x3 or tma_rows(rows)  # asked in the mode alone: it is host time
        kernel, splits, elements, _, _ = plans.linear_plan(
            "identity", (), m, n, k, _gpu(x), 1, fp16x3, pairs is not None, aligned
        )
        scratch = plans.workspace(x, elements)
        weight, bias, gelu = unit_columns(weight), dense(bias), gelu_name(approximate)
        _linear_softmax_native(rows, weight, bias, kernel, splits, scratch, gelu, z, y, pairs)
    return y, z


def linear_avgpool_gelu_scale_max(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel_size: int,
    scale: float,
    approximate: str,
    precision: str,
    folded: int = 1,
    pairs: Tensor | None = None,
) -> Tensor:
    """CUDA implementation of ``cutlass_ops::linear_avgpool_gelu_scale_max``: the pooling in the
    epilogue, or a GEMM on folded weights, as the cost model of the binary chooses. Weights that the
    caller folded, ``folded`` rows into one, come with ``kernel_size`` 1, and so do ``pairs``."""
    op = "linear_avgpool_gelu_scale_max"
    check_native(op, precision, x.device)
    check_linear_shapes(op, x, weight, bias)
    check_kernel_size(op, kernel_size, weight.shape[0])
    if not native(op, x, weight, bias):
        return reference.linear_avgpool_gelu_scale_max(
            x, weight, bias, kernel_size=kernel_size, scale=scale, approximate=approximate
        ).contiguous()
    fp16x3 = precision == "fp16x3"
    if not fp16x3 or kernel_size != 1:  # the weight that is multiplied is another one
        pairs = None
    return run_pooled_head(
        op, x, weight, bias, kernel_size, scale, approximate, folded, fp16x3, pairs
    )


def run_pooled_head(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel_size: int,
    scale: float,
    approximate: str,
    folded: int,
    fp16x3: bool = False,
    pairs: Tensor | None = None,
) -> Tensor:
    """Op B on operands that the kernels take; below autograd, or where nothing requires grad.
    ``pairs``, in fp16x3 and with ``kernel_size`` 1 alone: ``split_rows`` of the weight."""
    n, k = weight.shape
    rows = unit_columns(x)
    m = rows.shape[0]
    check_sizes(op, m, n, k)
    out = x.new_empty(m) if rows is x else empty(x, x.shape[:-1])
    if m > 0:
        name = pooled_name(approximate)
        aligned = not fp16x3 or tma_rows(rows)
        route = plans.pooled_route(
            name, m, n, k, kernel_size, _gpu(x), folded, fp16x3, pairs is not None, aligned
        )
        weight, bias = unit_columns(weight), dense(bias)
        if route.rows != n:  # the remainder plays no part, so no kernel sees it
            weight = weight.narrow(0, 0, route.rows)
            bias = None if bias is None else bias.narrow(0, 0, route.rows)
        memory = plans.workspace(x, route.memory)
        # An infinite x against a window with weights of both signs is NaN by definition, but may be
        # infinite against their mean: where the op folds, it computes rows that came out infinite
        # again. The caller's packed weights hold the means only, so there that cannot be done.
        kernel, splits, _, _, _ = route.plan
        params = (float(kernel_size), scale)
        if route.fold:
            _folded_epilogue_native(rows, weight, bias, name, params, kernel, splits, memory, out)
        else:
            _linear_epilogue_native(
                rows, weight, bias, name, params, kernel, splits, memory, out, pairs
            )
    return out


def gelu_softmax(z: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    """CUDA implementation of ``cutlass_ops::gelu_softmax``."""
    op = "gelu_softmax"
    check_matrix_shapes(op, z, bias)
    if not native(op, z, bias):
        return reference.gelu_softmax(z, bias, approximate=approximate).contiguous()
    return _row_softmax(op, z, bias, gelu_name(approximate))


def softmax(z: Tensor) -> Tensor:
    """CUDA implementation of ``cutlass_ops::softmax``."""
    op = "softmax"
    check_matrix_shapes(op, z, None)
    if not native(op, z):
        return reference.softmax(z).contiguous()
    return _row_softmax(op, z, None, "identity")


def _row_softmax(op: str, z: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    shape = z.shape
    z = unit_columns(z)
    check_sizes(op, z.shape[0], z.shape[1], 1)
    out = empty(z, shape)
    if out.numel() > 0:
        _row_softmax_native(z, dense(bias), activation, out.view(z.shape))
    return out


def gelu_scale_max(z: Tensor, bias: Tensor | None, scale: float, approximate: str) -> Tensor:
    """CUDA implementation of ``cutlass_ops::gelu_scale_max``."""
    op = "gelu_scale_max"
    check_matrix_shapes(op, z, bias)
    n = z.shape[-1]
    check_columns(op, n)
    if not native(op, z, bias):
        out = reference.gelu_scale_max(z, bias, scale=scale, approximate=approximate)
        return out.contiguous()
    lead = z.shape[:-1]
    z = unit_columns(z)
    m = z.shape[0]
    check_sizes(op, m, n, 1)
    out = empty(z, lead)
    if m > 0:
        name = pooled_name(approximate)
        elements = plans.matrix_workspace(name, (1.0, 1.0), m, n)  # whatever the scale
        scratch = plans.workspace(z, elements)
        _matrix_epilogue_native(z, dense(bias), name, (1.0, scale), scratch, out.view(m))
    return out
