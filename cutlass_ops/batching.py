"""The vmap rules of the registered ops.

A batched x or z alone folds its batch dimension into the leading dimensions, which the ops have
anyway. Folding rows takes the batch dimension as columns. Every other combination, batched weights
above all, runs the op once per batch element and stacks the results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import schemas

_Rule = Callable[..., tuple[Tensor, int]]


def _select(argument: Any, dim: int | None, index: int) -> Any:
    return argument if dim is None else argument.select(dim, index)


def _rule(name: str) -> _Rule:
    """The rule of an op whose first argument alone has leading dimensions."""
    op = getattr(torch.ops.cutlass_ops, name)

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        if in_dims[0] is not None and all(dim is None for dim in in_dims[1:] if not _plain(dim)):
            return op(args[0].movedim(in_dims[0], 0), *args[1:]), 0
        slices = [
            op(
                *(
                    _select(argument, None if _plain(dim) else dim, index)
                    for argument, dim in zip(args, in_dims, strict=True)
                )
            )
            for index in range(info.batch_size)
        ]
        return torch.stack(slices), 0

    return rule


def _plain(dim: Any) -> bool:
    """Whether an entry of in_dims stands for a list of numbers, which is never batched."""
    return isinstance(dim, (list, tuple))


def _fold_rows(
    info: Any, in_dims: tuple[Any, ...], weight: Tensor, kernel_size: int
) -> tuple[Tensor, int]:
    """Rows are folded alike whatever the columns are, so the batch joins the columns."""
    last = weight.movedim(in_dims[0], -1)
    flat = last.flatten(1) if last.dim() > 2 else last
    folded = torch.ops.cutlass_ops.fold_rows(flat, kernel_size)
    return folded.view(folded.shape[0], *last.shape[1:]), last.dim() - 1


for _name in (
    "linear_epilogue",
    "linear_gelu_softmax",
    "linear_avgpool_gelu_scale_max",
    "gelu_softmax",
    "gelu_scale_max",
    "softmax",
):
    torch.library.register_vmap(f"cutlass_ops::{_name}", _rule(_name), lib=schemas.LIBRARY)
torch.library.register_vmap("cutlass_ops::fold_rows", _fold_rows, lib=schemas.LIBRARY)
