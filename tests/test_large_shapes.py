"""Sizes past 2^31 elements and past the limits of a launch grid."""

from __future__ import annotations

import pytest
import torch
from fused import Fused, linear_like, pool_max_op, softmax_op
from native import guarded, guards_are_intact, require_kernels
from operands import Linear
from oracle import check
from torch import Tensor

from cutlass_ops.validation import SIZE_LIMIT

OPS = (softmax_op(), pool_max_op(2, -1.0))
both = pytest.mark.parametrize("op", OPS, ids=repr)


def judge_rows(op: Fused, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Judge the first rows, some in between, and above all the last."""
    rows = torch.tensor([0, 1, len(x) // 3, len(x) // 2, len(x) - 2, len(x) - 1], device=x.device)
    rows = torch.cat([rows, torch.arange(max(len(x) - 1000, 0), len(x), device=x.device)])
    check(y[rows].contiguous(), op.head, Linear(x[rows], weight, bias))


@both
@pytest.mark.parametrize("m", [65535, 65536, 65537])
def test_rows_around_the_limit_of_grid_y(op: Fused, m: int, device: str) -> None:
    """PaddlePaddle/Paddle PR#31144, ml-explore/mlx#3858, triton-lang/triton#580: 65535 passes and
    65536 is an invalid configuration."""
    x, weight, bias = linear_like(m, 6, 3, device)
    op.judge(op.call(x, weight, bias), x, weight, bias)


@both
def test_eight_million_rows(op: Fused, cuda: str) -> None:
    """fla-org/flash-linear-attention#172: blocks of 128 rows in grid.y end at 8 388 480."""
    x, weight, bias = linear_like(8_388_608, 4, 2, cuda)
    op.judge(op.call(x, weight, bias), x, weight, bias)


@pytest.mark.large(4)
@pytest.mark.parametrize("op", [pool_max_op(1), pool_max_op(16, -1.0), softmax_op()], ids=repr)
def test_more_column_tiles_than_grid_y_holds(op: Fused, cuda: str) -> None:
    """ml-explore/mlx#2267: N / tile above 65 535, for tiles up to 256 columns wide."""
    n = 65_536 * 256 + 3
    x, weight, bias = linear_like(1, n, 1, cuda)
    weight[-20] = 1e3 * x.sign().item()  # the winner, or the loser, stands near the end
    op.judge(op.call(x, weight, bias), x, weight, bias)


@pytest.mark.large(4)
def test_matrix_of_more_than_two_to_the_31_that_is_never_stored(cuda: str) -> None:
    """NVIDIA/cutlass PR#3307, #3269: 49152 x 65536 overflowed a packed int32 stride.

    The product has 3.2e9 elements (12.9 GB); the pooled op returns 49152 floats and must not need
    it.
    """
    op = pool_max_op(16, 2.0)
    x, weight, bias = linear_like(49152, 65536, 4, cuda)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = op.call(x, weight, bias)
    assert torch.cuda.max_memory_allocated() - before < 2**30
    judge_rows(op, y, x, weight, bias)


@pytest.mark.large(4)
def test_pooled_epilogue_past_two_to_the_31(cuda: str) -> None:
    """As above with no pooling, so that nothing can be folded away."""
    op = pool_max_op(1)
    x, weight, bias = linear_like(49152, 65536, 4, cuda)
    judge_rows(op, op.call(x, weight, bias), x, weight, bias)


@pytest.mark.large(20)
def test_softmax_of_more_than_two_to_the_31_elements(cuda: str) -> None:
    """pytorch#84144: 669 x 128 x 50259 is past 4 * 1024^3 elements; here 3.2e9, and wide rows."""
    op = softmax_op()
    x, weight, bias = linear_like(49152, 65536, 4, cuda)
    y = op.call(x, weight, bias)
    judge_rows(op, y, x, weight, bias)
    sums = torch.cat([rows.sum(-1) for rows in y.split(4096)])
    assert (sums - 1).abs().max() <= 1e-5


@pytest.mark.large(64)  # in fp16x3, whose halves take eight columns at least; else 24
def test_a_billion_short_rows(cuda: str) -> None:
    """pytorch#52715: 1.1e9 x 2. Every row sums to 1, and the last thousand are right."""
    op = softmax_op()
    x, weight, bias = linear_like(1_100_000_000, 2, 1, cuda)
    y = op.call(x, weight, bias)
    judge_rows(op, y, x, weight, bias)
    for rows in y.split(2**28):
        assert (rows[:, 0] + rows[:, 1] - 1).abs().max() <= 1e-5


@pytest.mark.large(24)
def test_weight_of_more_than_two_to_the_31_elements(cuda: str) -> None:
    """Row n of W starts at n * K, past 2^31: the offset needs 64 bits."""
    n, k = 4_000_037, 600
    weight = torch.zeros(n, k, device=cuda)
    x = torch.ones(3, k, device=cuda)
    weight[n - 37] = 0.5
    weight[7] = 0.25
    y = pool_max_op(1).call(x, weight)
    torch.testing.assert_close(y, torch.full_like(y, 300.0))
    y = pool_max_op(4).call(x, weight)  # windows [n - 37, n - 33), and [4, 8) behind it
    torch.testing.assert_close(y, torch.full_like(y, 75.0))


@pytest.mark.large(16)
def test_repair_of_as_many_rows_as_there_may_be(cuda: str) -> None:
    """The step of a grid of 2^20 CTAs passes 2^31 behind the last row, where 32 bits turn negative.

    One row, expanded, with an infinity and a window of both signs: what it gives is NaN by
    definition, and the kernel looks at it where the result so far is infinite.
    """
    require_kernels(cuda)
    memory, out = guarded((SIZE_LIMIT,), cuda)
    out.zero_()
    out[-1] = torch.inf
    x = torch.tensor([[torch.inf, 1.0]], device=cuda).expand(SIZE_LIMIT, 2)
    weight = torch.tensor([[1.0, 1.0], [-0.5, 1.0]], device=cuda)
    name = "avgpool_gelu_scale_max"
    torch.ops.cutlass_ops._refine_nonfinite(x, weight, None, name, [2.0, 1.0], out)
    assert out[-1].isnan()
    assert not out[:-1].any()
    assert guards_are_intact(memory)
