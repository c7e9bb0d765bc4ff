"""What the native kernels take: float32 operands of one CUDA device, rows with unit column stride.

Whatever else comes either goes to the plain PyTorch reference (:func:`native`) or is brought into
that form, without a copy where a view will do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import _library
from .routing import matrix
from .validation import check_operand_dtypes
from .warn import warn_once


def native(op: str, x: Tensor, *others: Tensor | None) -> bool:
    """Whether the binary serves these operands; one warning per reason where it should but cannot.

    Float64 goes to the reference without a word, other dtypes raise TypeError. Operands on another
    device raise ValueError, because a kernel would read them as addresses of this one.
    """
    device = x.device
    is_float32 = x.dtype == torch.float32
    for other in others:
        if other is not None:
            if other.device != device:
                raise ValueError(
                    f"{op}: all inputs must be on one device, got {device} and {other.device}"
                )
            if other.dtype != torch.float32:
                is_float32 = False
    if not is_float32:
        check_operand_dtypes(op, x, *others)
        return False
    reason = _library.unsupported_reason(device)
    if reason is None:
        return True
    warn_once(f"{reason}; running the plain PyTorch reference instead")
    return False


def unit_columns(tensor: Tensor) -> Tensor:
    """The tensor as ``[M, K]`` with unit column stride; a copy only where no view has that.

    Any row stride is left alone, zero included, and so is the column stride of a single column.
    """
    if tensor.dim() != 2:
        tensor = matrix(tensor)
    if tensor.is_contiguous():  # the usual one, and half the price of asking for its strides
        return tensor
    if tensor.stride(1) != 1 and tensor.shape[1] > 1:
        return tensor.contiguous()
    return tensor


def tma_rows(x: Tensor) -> bool:
    """Whether TMA can read the matrix as it is, which has unit column stride: an address that is a
    multiple of 16 bytes, and, of several rows, a stride that is positive, a multiple of 4 floats,
    and below 2^38.

    A bulk copy has no other form, so the kernel that reads x by TMA is no candidate elsewhere.
    """
    stride = x.stride(0)
    fits = 0 < stride < 2**38 and stride % 4 == 0
    return (fits or x.shape[0] == 1) and x.data_ptr() % 16 == 0


def dense(bias: Tensor | None) -> Tensor | None:
    """The vector with unit stride."""
    return None if bias is None else bias.contiguous()


def empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Fresh memory of float32 on the device of ``like``, of float32 itself. Sizes one by one: as a
    tuple, or with a dtype and a device, they cost the host half as much again."""
    return like.new_empty(*shape) if shape else like.new_empty(())
