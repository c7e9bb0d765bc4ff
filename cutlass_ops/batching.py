"""The vmap rules of the registered ops.

A batched x or z alone folds its batch dimension into the leading dimensions, which the ops have
anyway. Folding rows takes the batch dimension as columns. Every other combination, batched weights
above all, runs the op once per batch element and stacks the results. Where there is no element the
op's fake says what to return. The gradient of op A's row part has its own: all its operands are
batched together, and the sums of its columns are those of one element each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .schemas import LIBRARY, OPS

_Rule = Callable[..., tuple[Any, Any]]
_POOLED_TRAINING = "linear_avgpool_gelu_scale_max_training"


def _rule(name: str, has_leading: bool = True) -> _Rule:
    """The rule of an op whose first argument alone has leading dimensions, or none has."""
    op = getattr(OPS, name).default

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        # what is no tensor, a list of params too, is never batched, whatever in_dims says of it
        dims = [
            dim if isinstance(argument, Tensor) else None
            for argument, dim in zip(args, in_dims, strict=True)
        ]
        alone = dims[0] is not None and not any(dim is not None for dim in dims[1:])
        if has_leading and alone:
            return _leading(op(args[0].movedim(dims[0], 0), *args[1:]))
        if info.batch_size == 0:
            return _leading(_empty(op, dims, args))
        results = []
        for index in range(info.batch_size):
            one = (
                argument if dim is None else argument.select(dim, index)
                for argument, dim in zip(args, dims, strict=True)
            )
            results.append(op(*one))
        if isinstance(results[0], tuple):
            return _leading(tuple(map(torch.stack, zip(*results, strict=True))))
        return _leading(torch.stack(results))

    return rule


def _empty(op: Callable[..., Any], dims: list[Any], args: tuple[Any, ...]) -> Any:
    """The stack of no results, from one call on meta tensors of the shapes that an element has."""
    device = args[0].device
    element = (
        _meta(argument, dim) if isinstance(argument, Tensor) else argument
        for argument, dim in zip(args, dims, strict=True)
    )
    result = op(*element)
    if isinstance(result, tuple):
        return tuple(one.new_empty((0, *one.shape), device=device) for one in result)
    return result.new_empty((0, *result.shape), device=device)


def _meta(tensor: Tensor, dim: int | None) -> Tensor:
    """An element's shape and dtype, without memory."""
    shape = list(tensor.shape)
    if dim is not None:
        del shape[dim]
    return tensor.new_empty(shape, device="meta")


def _leading(result: Any) -> tuple[Any, Any]:
    """One result or several, each with its batch dimension first, as vmap wants it told."""
    return result, (0,) * len(result) if isinstance(result, tuple) else 0


def _pooled_training(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    """The folded weight, the last result, is one for all where the weight is."""
    results, dims = _rule(_POOLED_TRAINING)(info, in_dims, *args)
    return results, dims if any(d is not None for d in in_dims[1:3]) else (*dims[:-1], None)


def _fold_rows(
    info: Any, in_dims: tuple[Any, ...], weight: Tensor, kernel_size: int
) -> tuple[Tensor, int]:
    """Rows are folded alike whatever the columns are, so the batch joins the columns."""
    last = weight.movedim(in_dims[0], -1)
    flat = last.flatten(1) if last.dim() > 2 else last
    folded = OPS.fold_rows(flat, kernel_size)
    return folded.view(folded.shape[0], *last.shape[1:]), last.dim() - 1


def _gelu_softmax_backward(
    info: Any,
    in_dims: tuple[Any, ...],
    g: Tensor,
    z: Tensor,
    bias: Tensor | None,
    y: Tensor,
    approximate: str,
    need_bias: bool,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Rows are independent, so the batch joins them, once each has a bias of its own."""

    def batched(tensor: Tensor, dim: int | None) -> Tensor:
        if dim is None:
            return tensor.expand(info.batch_size, *tensor.shape)
        return tensor.movedim(dim, 0)

    g, z, y = (
        batched(t, dim) for t, dim in zip((g, z, y), in_dims[:2] + in_dims[3:4], strict=True)
    )
    if bias is not None and in_dims[2] is not None:
        biases = batched(bias, in_dims[2])
        z = z + biases.view(len(biases), *(1,) * (z.dim() - 2), -1)
        bias = None
    dz, _ = OPS.gelu_softmax_backward(g, z, bias, y, approximate, False)
    if not need_bias:
        return (dz, dz.new_empty(info.batch_size, 0)), (0, 0)
    rows = dz.shape[1:-1].numel()
    return (dz, dz.view(info.batch_size, rows, dz.shape[-1]).sum(1)), (0, 0)


for _name in (
    "linear",
    "linear_epilogue",
    "linear_gelu_softmax",
    "linear_gelu_softmax_training",
    "linear_avgpool_gelu_scale_max",
    "gelu_softmax",
    "gelu_scale_max",
    "softmax",
):
    torch.library.register_vmap(f"cutlass_ops::{_name}", _rule(_name), lib=LIBRARY)
torch.library.register_vmap("cutlass_ops::fold_rows", _fold_rows, lib=LIBRARY)
torch.library.register_vmap(f"cutlass_ops::{_POOLED_TRAINING}", _pooled_training, lib=LIBRARY)
for _name in ("winner_gradients", "product"):
    _one_by_one = _rule(_name, has_leading=False)
    torch.library.register_vmap(f"cutlass_ops::{_name}", _one_by_one, lib=LIBRARY)
torch.library.register_vmap(
    "cutlass_ops::gelu_softmax_backward", _gelu_softmax_backward, lib=LIBRARY
)
