"""Strides, storage offsets and alignments of x, W and b, for both ops."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from fused import Fused, linear_like, pool_max_op, softmax_op
from gradients import check_gradients
from operands import Linear
from strategies import LAYOUTS, at_offset, lay_out

OPS = (softmax_op(), pool_max_op(4, 2.0))
both = pytest.mark.parametrize("op", OPS, ids=repr)


@both
@pytest.mark.parametrize("columns", [60, 64])
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_pointers_that_are_not_16_byte_aligned(
    op: Fused, offset: int, columns: int, device: str
) -> None:
    """Jim137/qkan#26, ztxz16/fastllm#724: a contiguous slice such as flat[1:] was read 128 bits at
    a time."""
    x, weight, bias = (at_offset(t, offset) for t in linear_like(66, 72, columns, device))
    assert x.is_contiguous()
    assert x.data_ptr() % 16 != 0
    op.check(x, weight, bias)


@both
@pytest.mark.parametrize("which", list(itertools.product([0, 1], repeat=3))[1:])
def test_one_operand_misaligned_at_a_time(
    op: Fused, which: tuple[int, int, int], device: str
) -> None:
    operands = linear_like(33, 40, 64, device)
    op.check(*(at_offset(t, 1) if off else t for t, off in zip(operands, which, strict=True)))


@both
def test_views_of_a_larger_matrix(op: Fused, device: str) -> None:
    """vllm-project/vllm#55534: 512x512 views of 1024x1024 gave wrong numbers, packed strides
    rebuilt."""
    generator = torch.Generator(device).manual_seed(0)
    big = torch.randn(2, 1024, 1024, generator=generator, device=device)
    x, weight = big[0, :512, :512], big[1, 256:768, 300:812] / 512**0.5
    weight = lay_out(weight, "padded")
    op.check(x, weight)


@both
@pytest.mark.parametrize("expanded", ["x", "weight", "bias", "all"])
def test_stride_zero(op: Fused, expanded: str, device: str) -> None:
    """NVIDIA/Fuser#806: expanded operands, of stride 0."""
    x, weight, bias = linear_like(70, 68, 36, device)
    if expanded in ("x", "all"):
        x = x[:1].expand(70, 36)
    if expanded in ("weight", "all"):
        weight = weight[:1].expand(68, 36)
    if expanded in ("bias", "all"):
        bias = bias[:1].expand(68)
    op.check(x, weight, bias)


@both
@pytest.mark.parametrize("w_layout", LAYOUTS)
@pytest.mark.parametrize("x_layout", LAYOUTS)
def test_every_pair_of_layouts(op: Fused, x_layout: str, w_layout: str, device: str) -> None:
    x, weight, bias = linear_like(34, 66, 44, device)
    x, weight = lay_out(x, x_layout), lay_out(weight, w_layout)
    op.judge(op.call(x, weight, bias), x, weight, bias)
    check_gradients(op, Linear(x, weight, bias))


@both
@pytest.mark.parametrize("shape", [(1, 5, 1), (5, 1, 1), (5, 5, 1), (1, 1, 5), (1, 1, 1)])
def test_odd_strides_of_size_one_dims(op: Fused, shape: tuple[int, int, int], device: str) -> None:
    """A dim of size 1 may have any stride, and PyTorch calls such a tensor contiguous."""
    m, n, k = shape
    n *= 4
    x, weight, bias = linear_like(m, n, k, device)
    x, weight = lay_out(x, "odd size-1 strides"), lay_out(weight, "odd size-1 strides")
    op.check(x, weight, bias)


@both
def test_leading_dims_that_do_not_flatten(op: Fused, device: str) -> None:
    """x.transpose(0, 1) of [T, B, K]: no view makes a matrix of it."""
    x, weight, bias = linear_like(35, 24, 20, device)
    x = x.view(5, 7, 20).transpose(0, 1)
    y = op.check(x, weight, bias)
    assert y.shape[:2] == (7, 5)


@both
def test_what_lies_outside_a_view_is_neither_read_nor_written(op: Fused, device: str) -> None:
    """Guard words around every operand: NaN on all sides, the same NaN afterwards."""
    guarded = []
    for t in linear_like(37, 44, 19, device):
        wide = t.new_full([s + 8 for s in t.shape], math.nan)
        inner = wide[tuple(slice(4, 4 + s) for s in t.shape)]
        inner.copy_(t)
        guarded.append((wide, inner))
    op.check(*(inner for _, inner in guarded))
    for wide, inner in guarded:
        assert int(wide.isnan().sum()) == wide.numel() - inner.numel()


@both
def test_negative_zero_and_subnormals_are_ordinary_numbers(op: Fused, device: str) -> None:
    x, weight, bias = linear_like(5, 12, 8, device)
    x[0], x[1], weight[3] = -0.0, 1e-40, 1e-42
    op.check(x, weight, bias)
    op.check(x, weight)


@both
def test_conjugate_free_views_of_the_parameters(op: Fused, device: str) -> None:
    """weight.t() of a [K, N] parameter, as a Conv1D of GPT-2 stores it, with a strided bias."""
    x, weight, bias = linear_like(20, 28, 16, device)
    stored = weight.t().contiguous()
    op.check(x, stored.t(), bias.repeat_interleave(2)[::2])
