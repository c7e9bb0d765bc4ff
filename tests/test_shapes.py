"""Tile edges, alignment and odd sizes, for both ops: each shape is from a public bug report."""

from __future__ import annotations

import pytest
from fused import Fused, linear_like, poison, pool_max_op, softmax_op
from strategies import Case

OPS = (softmax_op(), pool_max_op(1, 2.0))
POOLED = (pool_max_op(2, -1.0), pool_max_op(8), pool_max_op(16, 2.0))
both = pytest.mark.parametrize("op", OPS, ids=repr)
TILES = (64, 128, 256)


def judge(op: Fused, m: int, n: int, k: int, device: str, *, strict: bool = False) -> None:
    x, weight, bias = linear_like(m, n, k, device, seed=m + n + k)
    poison(device, m, n)
    op.judge(op.call(x, weight, bias), x, weight, bias, strict=strict)


@both
def test_misaligned_operand_is_computed_not_refused(op: Fused, device: str) -> None:
    """NVIDIA/cutlass#506: m=1, n=105, k=107 was a status error with no slower kernel to fall back
    to."""
    judge(op, 1, 105, 107, device)


@both
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 7, 63, 65])
def test_odd_depth(op: Fused, k: int, m: int, device: str) -> None:
    """NVIDIA/cutlass#459: failed as soon as K was odd; the last k-block is partial and
    unaligned."""
    judge(op, m, 64, k, device)


@both
def test_aligned_rows_of_an_unaligned_length(op: Fused, device: str) -> None:
    """NVIDIA/cutlass#1058: rejected although the memory is aligned; what lies between rows is not
    read."""
    padded, weight, bias = linear_like(64, 48, 108, device)
    padded[:, 107:] = float("nan")
    x, weight = padded[:, :107], weight[:, :107]
    assert x.stride() == (108, 1)
    op.check(x, weight, bias)


@both
@pytest.mark.parametrize("n", [9, 15, 17, 127])
@pytest.mark.parametrize("m", [1, 5, 130])
def test_every_element_is_stored(op: Fused, m: int, n: int, device: str) -> None:
    """NVIDIA/cutlass PR#2283: with N % 8 != 0 part of the output was left as it was, silently.

    The allocator has just been fed NaN of the same size, so an element that is left out shows.
    """
    x, weight, bias = linear_like(m, n, 24, device)
    for _ in range(3):
        poison(device, m, n)
        poison(device, m)
        y = op.call(x, weight, bias)
        assert y.isfinite().all()
    op.judge(y, x, weight, bias)


@both
@pytest.mark.parametrize("tile", TILES)
def test_around_one_and_two_tiles(op: Fused, tile: int, device: str) -> None:
    """NVIDIA/cutlass#3191: right inside one tile, wrong once M or N exceeds it."""
    for m in (tile - 1, tile, tile + 1, 2 * tile + 1):
        for n in (tile - 1, tile, tile + 1, 2 * tile + 1):
            judge(op, m, n, 33, device)


@pytest.mark.parametrize("op", OPS + POOLED, ids=repr)
@pytest.mark.parametrize(("m", "n"), [(129, 130), (577, 576), (257, 576), (1, 577)])
def test_last_blocks_are_masked(op: Fused, m: int, n: int, device: str) -> None:
    """tile-ai/TileOPs PR#898 and #428, ROCm/iris#21: rows or columns of the last block unmasked."""
    judge(op, m, n, 40, device)


@pytest.mark.parametrize("op", OPS + POOLED, ids=repr)
def test_batch_sweep(op: Fused, device: str) -> None:
    """Small batches choose other kernels and splits than large ones; none may be a gap."""
    for m in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 100):
        judge(op, m, 260, 515, device)


@pytest.mark.parametrize(
    "kernel_size", [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 100, 128, 130, 256, 259]
)
@pytest.mark.parametrize("m", [2, 130])
def test_every_kind_of_window(kernel_size: int, m: int, device: str) -> None:
    """Windows that divide a tile, that do not, that are wider than one, and one over all of N."""
    judge(pool_max_op(kernel_size, -1.5), m, 259, 70, device)


@both
@pytest.mark.parametrize(("m", "n", "k"), [(3, 5, 20011), (20011, 3, 5), (3, 20011, 5), (1, 1, 1)])
def test_huge_and_thin(op: Fused, m: int, n: int, k: int, device: str) -> None:
    judge(op, m, n, k, device)


@pytest.mark.parametrize("op", [softmax_op(), pool_max_op(1), pool_max_op(16)], ids=repr)
def test_shared_memory_heavy_shape(op: Fused, cuda: str) -> None:
    """vllm PR#5560: internal error for m=4, n=6400, k=6144, the chosen tile needing more shared
    memory than the card allows; numba-cuda-mlir#143, TensorRT-LLM PR#12141 are of the same kind."""
    judge(op, 4, 6400, 6144, cuda)


@pytest.mark.parametrize("op", [softmax_op(), pool_max_op(16, 2.0)], ids=repr)
@pytest.mark.parametrize(("m", "n", "k"), [(1024, 8192, 8192), (1, 8192, 8192), (16, 8192, 8192)])
def test_headline_sizes_on_the_gpu(op: Fused, m: int, n: int, k: int, cuda: str) -> None:
    judge(op, m, n, k, cuda, strict=m > 16)


@pytest.mark.parametrize("kernel_size", [4, 16, 64, 1024])
def test_strict_bound_of_folded_weights(kernel_size: int, cuda: str) -> None:
    """Eager PyTorch averages k rounding errors, and they shrink by the root of k; the product with
    folded weights has one. Terms of one sign let it grow with the length of a chain of sums."""
    case = Case((4096,), 8192, 8192, values="positive", kernel_size=kernel_size, seed=2)
    pool_max_op(kernel_size).judge(
        pool_max_op(kernel_size).call(*case.tensors(cuda)), *case.tensors(cuda), strict=True
    )
