"""The registered op of op A's backward: gelu_softmax_backward, in plain PyTorch and on CUDA.

As in dispatch.py, memory is allocated here, and nothing synchronises.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import plans
from ._torch_private import bare_call
from .epilogues import gelu_name
from .fakes import check_fake_bias
from .gradients import gelu_softmax_gradient
from .operands import dense, empty, native, unit_columns
from .schemas import OPS
from .validation import check_matrix_shapes, check_operand_dtypes, check_sizes

_OP = "gelu_softmax_backward"
_row_gradient_native = bare_call(OPS._row_gradient.default)


def _check_shapes(g: Tensor, z: Tensor, bias: Tensor | None, y: Tensor) -> None:
    check_matrix_shapes(_OP, z, bias)
    if g.shape != z.shape or y.shape != z.shape:
        raise ValueError(
            f"{_OP}: g, z and y must have one shape, "
            f"got g {list(g.shape)}, z {list(z.shape)} and y {list(y.shape)}"
        )


def _columns(dz: Tensor, wanted: bool) -> Tensor:
    """The sums of the columns, ``[N]``; where they are not wanted an empty vector."""
    if not wanted:
        return dz.new_empty(0)
    return dz.reshape(dz.shape[:-1].numel(), dz.shape[-1]).sum(0)


def gelu_softmax_plain(
    g: Tensor, z: Tensor, bias: Tensor | None, y: Tensor, approximate: str, need_bias: bool
) -> tuple[Tensor, Tensor]:
    """``dz = gelu'(h) * y * (g - sum(g * y, -1))`` for h = z + bias and y = softmax(gelu(h), -1),
    all ``[..., N]``, and the sums of its columns, the gradient of the bias."""
    check_operand_dtypes(_OP, g, z, bias, y)
    _check_shapes(g, z, bias, y)
    dz = gelu_softmax_gradient(g, z if bias is None else z + bias, y, approximate).contiguous()
    return dz, _columns(dz, need_bias)


def gelu_softmax(
    g: Tensor, z: Tensor, bias: Tensor | None, y: Tensor, approximate: str, need_bias: bool
) -> tuple[Tensor, Tensor]:
    """CUDA implementation of ``cutlass_ops::gelu_softmax_backward``."""
    _check_shapes(g, z, bias, y)
    if not native(_OP, g, z, bias, y):
        return gelu_softmax_plain(g, z, bias, y, approximate, need_bias)
    dz = empty(z, z.shape)
    g, z, y = _rows(g), unit_columns(z), unit_columns(y)
    m, n = z.shape
    check_sizes(_OP, m, n, 1)
    sums = None
    if dz.numel() > 0:
        groups = plans.gradient_groups(m, n) if need_bias else 0
        sums = empty(z, (groups, n)) if groups > 0 else None
        gelu = gelu_name(approximate)
        _row_gradient_native(g, y, z, dense(bias), gelu, dz.view(m, n), sums)
    return dz, _columns(dz if sums is None else sums, need_bias)


def _rows(g: Tensor) -> Tensor:
    """unit_columns, but for one number, or one row, for all: such a gradient, as a sum has it, is
    not written out."""
    if g.dim() == 2 and g.stride(0) == 0 and g.shape[0] > 0:
        return unit_columns(g[:1]).expand(g.shape)
    return unit_columns(g)


def fake_gelu_softmax(
    g: Tensor, z: Tensor, bias: Tensor | None, y: Tensor, approximate: str, need_bias: bool
) -> tuple[Tensor, Tensor]:
    """Shapes and strides of both."""
    check_operand_dtypes(_OP, g, z, bias, y)
    torch._check(z.dim() >= 1, lambda: "z must be [..., N]")
    torch._check(g.shape == z.shape and y.shape == z.shape, lambda: "g, z and y have one shape")
    if bias is not None:
        check_fake_bias(bias, z.shape[-1])
    return z.new_empty(z.shape), z.new_empty(z.shape[-1] if need_bias else 0)
