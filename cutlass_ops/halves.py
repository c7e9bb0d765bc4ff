"""The fp16 halves of a packed weight: when they can be made, and how a pack makes them."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from . import precision as _precision
from ._torch_private import dispatch_modes, tracing_state, transforms_active
from .weights import split_rows


def references(weight: Tensor, pairs: Tensor) -> tuple[weakref.ref[Tensor], weakref.ref[Tensor]]:
    return weakref.ref(weight), weakref.ref(pairs)


def can_split(weight: Tensor, precision: str) -> bool:
    """Whether something would read the halves of a packed weight, and something can make them: not
    in a trace or a transform, where they would be a value of its own and a pack may live for one
    call, nor of subclasses of Tensor. Not while a CUDA graph is captured either: they would not be
    there before it is replayed."""
    return not (
        precision == "ieee"
        or torch.compiler.is_compiling()
        or transforms_active()
        or dispatch_modes() > 0
        or tracing_state() is not None
        or type(weight) is not Tensor
        or weight.dtype != torch.float32
        or weight.numel() == 0
        or _precision.reason_not_native(precision, weight.device) is not None
        or (weight.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def split(weight: Tensor, precision: str, memory: Tensor | None) -> Tensor | None:
    """The halves of a packed weight, in ``memory`` if they fit in: a CUDA graph may read it. None
    where they cannot be made."""
    if not can_split(weight, precision):
        return None
    # an inference tensor could not be written to when a state_dict is loaded
    with torch.inference_mode(False), torch.no_grad():
        pairs = split_rows(weight, memory)
    if pairs.is_cuda:  # the next call may come on another stream, which would not wait for them
        torch.cuda.current_stream(pairs.device).synchronize()
    return pairs
