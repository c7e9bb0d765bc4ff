"""What the native kernels take: float32 operands of one CUDA device, rows with unit column stride.

Whatever else comes either goes to the plain PyTorch reference (:func:`native`) or is brought into
that form, without a copy where a view will do.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from . import _library
from .routing import matrix

_warned: set[str] = set()


def native(op: str, x: Tensor, *others: Tensor | None) -> bool:
    """Whether the binary serves these operands; one warning per reason where it should but cannot.

    Float64 and anything else that is not float32 goes to the reference without a word. Operands
    on another device raise, because a kernel would read them as addresses of this one.
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
        return False
    reason = _library.unsupported_reason(device)
    if reason is None:
        return True
    warn_once(f"{reason}; running the plain PyTorch reference instead")
    return False


def warn_once(text: str) -> None:
    """Warn, once per text and process."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(f"cutlass_ops: {text}", UserWarning, stacklevel=2)


def unit_columns(tensor: Tensor) -> Tensor:
    """The tensor as ``[M, K]`` with unit column stride; a copy only where no view has that.

    Any row stride is left alone, zero included, and so is the column stride of a single column.
    """
    tensor = matrix(tensor)
    if tensor.stride(1) != 1 and tensor.shape[1] > 1:
        return tensor.contiguous()
    return tensor


def dense(bias: Tensor | None) -> Tensor | None:
    """The vector with unit stride."""
    return None if bias is None else bias.contiguous()
