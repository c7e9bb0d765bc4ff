"""Packs with halves, and whether they are their own."""

from __future__ import annotations

from fake_kernels import takes_pairs
from fused import linear_like
from torch import Tensor

import cutlass_ops


def split_pack(kernel_size: int = 3) -> tuple[Tensor, cutlass_ops.PackedLinear]:
    """x, and a pack with halves: the stand-ins make every device one that has the mode."""
    x, weight, bias = linear_like(5, 12, 8, "cpu")
    return x, cutlass_ops.pack_linear(weight, bias, kernel_size=kernel_size, precision="fp16x3")


def has_its_halves(pack: cutlass_ops.PackedLinear) -> bool:
    """As a call would find them, which makes them if they are not there."""
    pairs = pack.halves(pack.weight)
    assert pairs is not None
    assert pairs is pack.pairs
    takes_pairs(pairs, pack.weight)
    return True
