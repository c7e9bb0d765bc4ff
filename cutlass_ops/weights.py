"""What is made of a weight by itself: the means of its rows, and the fp16 halves of a pack.

As dispatch.py, of which this is a part: memory is allocated here, and nothing synchronises.
"""

from __future__ import annotations

from torch import Tensor

from . import reference
from ._torch_private import bare_call
from .operands import dense, empty, native, unit_columns
from .schemas import OPS
from .validation import check_fold_rows, check_sizes

_fold_rows_native = bare_call(OPS._fold_rows.default)
_split_rows_native = bare_call(OPS._split_rows.default)


def _fold(weight: Tensor, bias: Tensor | None, kernel_size: int) -> tuple[Tensor, Tensor | None]:
    """fold_rows of a matrix with unit column stride, and of its dense bias in the same launch."""
    windows, columns = weight.shape[0] // kernel_size, weight.shape[1]
    out = empty(weight, (windows, columns))
    bias_out = None if bias is None else empty(weight, (windows,))
    if windows > 0 and (columns > 0 or bias is not None):
        _fold_rows_native(weight, bias, kernel_size, out, bias_out)
    return out, bias_out


def fold_rows(weight: Tensor, kernel_size: int) -> Tensor:
    """CUDA implementation of ``cutlass_ops::fold_rows``."""
    op = "fold_rows"
    check_fold_rows(op, weight, kernel_size)
    if not native(op, weight):
        return reference.fold_rows(weight, kernel_size)
    check_sizes(op, weight.shape[0], weight.shape[-1], 1)
    if weight.dim() > 1:
        return _fold(unit_columns(weight), None, kernel_size)[0]
    no_columns = weight.new_empty((weight.shape[0], 0))
    folded = _fold(no_columns, dense(weight), kernel_size)[1]
    assert folded is not None
    return folded


def split_rows(weight: Tensor, pairs: Tensor | None = None) -> Tensor:
    """The fp16 halves and scales of the rows of ``weight [N, K]``, not empty, of float32, the
    factors of its columns and whether there are any, as one float32 vector: for the ``pairs`` of an
    op on this weight, where fp16x3 is native. Written to ``pairs`` where that fits. A transposed
    weight is read as it is."""
    n, k = weight.shape
    check_sizes("split_rows", 1, n, k)
    elements: int = OPS._fp16_pairs_elements(n, k)
    if pairs is None or pairs.numel() != elements or pairs.device != weight.device:
        pairs = weight.new_empty(elements)
    transposed = weight.stride(0) == 1 and k > 1
    _split_rows_native(weight if transposed else unit_columns(weight), 1, pairs)
    return pairs
