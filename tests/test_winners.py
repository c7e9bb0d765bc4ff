"""What trains op B: the winner of each row in forward, and the gradient that reaches it alone."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from exact_winners import definition, dense_gradients
from fake_kernels import LEADS, Kernels, agree, operands
from fused import linear_like, mode_on, pool_max_op, run_opcheck, same_bits
from native import OPS
from strategies import at_offset
from torch.testing import assert_close

from cutlass_ops import winner_gradients, winners

TRAINING = OPS.linear_avgpool_gelu_scale_max_training


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("kernel_size", [1, 4, 7])
@pytest.mark.parametrize("scale", [1.0, -2.5, 0.0])
def test_training_returns_the_winner_and_its_slope(
    scale: float, kernel_size: int, approximate: str, device: str
) -> None:
    x, weight, bias = linear_like(50, 30, 12, device)
    args = (x, weight, bias, kernel_size, scale, approximate, mode_on(device))
    y, index, slopes, folded = TRAINING(*args)
    z = x.double() @ weight.double().t() + bias.double()
    expected = definition(z, kernel_size, scale, approximate)
    assert_close(y.double(), expected[0], rtol=1e-5, atol=1e-6)
    assert index.dtype == torch.int32
    assert torch.equal(index.long(), expected[1])
    assert_close(slopes.double(), expected[2], rtol=1e-4, atol=1e-6)
    assert folded.shape == ((0 if kernel_size == 1 else 30 // kernel_size), 12)
    if kernel_size > 1:
        assert same_bits(folded, OPS.fold_rows(weight, kernel_size))


# A warp has a row of the first, a CTA one of the second.
@pytest.mark.parametrize("windows", [24, 1100])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_training_repairs_infinite_rows(approximate: str, windows: int, device: str) -> None:
    """Column 5 has weights of both signs in every window, of which the folded ones hide the lesser;
    the first row, neighbours, and the last of a number that fills no CTA."""
    x, weight, bias = linear_like(19, 4 * windows, 16, device)
    weight[:, [3, 5]] = weight[:, [3, 5]].abs()
    weight[::4, 5] *= -1e-3
    for row in (0, 7, 8, 18):
        x[row, 3 if row % 2 == 0 else 5] = -math.inf if row == 8 else math.inf
    x[12, 3] = math.nan
    op = pool_max_op(4, 2.0, approximate)
    args = (x, weight, bias, 4, 2.0, approximate, mode_on(device))
    y = TRAINING(*args)[0]
    op.judge(y, x, weight, bias)
    assert y[7].isnan()


@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("rows", [0, 5])
def test_opcheck_of_the_gradients(rows: int, needed: tuple[bool, ...], device: str) -> None:
    grad, slopes = torch.randn(2, rows, device=device)
    index = torch.randint(0, 3, (rows,), device=device, dtype=torch.int32)
    x, weight = torch.randn(rows, 6, device=device), torch.randn(3, 6, device=device)
    args = (grad, index, slopes, x, weight, 11, 3, *needed)
    run_opcheck(OPS.winner_gradients.default, args)
    shapes = ((rows, 6), (11, 6), (11,))
    every = OPS.winner_gradients(*args[:-3], True, True, True)
    for result, one, shape, need in zip(
        OPS.winner_gradients(*args), every, shapes, needed, strict=True
    ):
        assert one.shape == shape
        assert_close(result, one if need else one.new_empty(0))


# Rows, windows, K, kernel_size, rows of the weight beyond: one element; no multiple of four; more
# windows than rows; few windows; one; more columns than a CTA has; no rows; no columns; the rows at
# which slices grow, and a rest beyond them; few windows of many rows of the weight; windows that
# have places in blocks; the most that have one each, the remainder among them, and one more.
SHAPES = (
    (1, 1, 1, 1, 0),
    (7, 3, 5, 2, 1),
    (40, 100, 132, 4, 3),
    (3000, 2, 36, 3, 2),
    (2600, 1, 1030, 1, 0),
    (70, 5, 4100, 2, 0),
    (0, 4, 8, 2, 1),
    (6, 4, 0, 2, 1),
    (2049, 40, 36, 2, 1),
    (8193, 1, 4, 1, 0),
    (9000, 40, 4, 2, 1),
    (90, 1, 8, 1000, 7),
    (300, 2500, 36, 1, 0),
    (300, 1023, 8, 2, 1),
    (300, 1024, 8, 2, 1),
)
# Every window wins some rows, one wins all, and they win in blocks: of what it takes for a run, of
# one row less, and long ones.
WINS = ("any", "one", "fours", "threes", "blocks")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("wins", WINS)
def test_gradients_of_the_winners(wins: str, shape: tuple[int, ...], device: str) -> None:
    """Against the dense products; rows that no window of won are zero to the bit, and a run is like
    the next."""
    m, windows, k, kernel_size, rest = shape
    weight_rows = windows * kernel_size + rest
    index = {
        "any": torch.randint(0, windows, (m,)),
        "one": torch.full((m,), windows - 1),
        "fours": torch.arange(m) // 4 % windows,
        "threes": torch.arange(m) // 3 % windows,
        "blocks": torch.arange(m) * windows // max(m, 1),
    }[wins].to(device, torch.int32)
    grad, slopes = torch.randn(2, m, device=device)
    x, weight = torch.randn(m, k, device=device), torch.randn(windows, k, device=device)
    args = (grad, index, slopes, x, weight, weight_rows, kernel_size, True, True, True)
    found = OPS.winner_gradients(*args)
    expected = dense_gradients((grad * slopes).double(), index, x, weight, weight_rows, kernel_size)
    for result, truth in zip(found, expected, strict=True):
        assert_close(result.double(), truth, rtol=1e-4, atol=2e-6 * max(m, 1) ** 0.5)
    won = torch.zeros(windows, dtype=torch.bool, device=device)
    won[index.long()] = True
    idle = torch.cat((~won.repeat_interleave(kernel_size), won.new_ones(rest)))
    assert not found[1][idle].any()
    assert not found[2][idle].any()
    again = OPS.winner_gradients(*args)
    assert all(same_bits(a, b) for a, b in zip(found, again, strict=True))


def test_gradients_of_operands_of_any_strides(device: str) -> None:
    """Scalar accesses and 128-bit ones, and a gradient that one number stands for."""
    index = torch.randint(0, 9, (33,), device=device, dtype=torch.int32)
    slopes = torch.randn(33, device=device)
    x, weight = torch.randn(33, 64, device=device), torch.randn(9, 64, device=device)
    grad = torch.ones((), device=device).expand(33)
    plain = OPS.winner_gradients(grad, index, slopes, x, weight, 18, 2, True, True, True)
    variants = (
        (at_offset(x, 1), at_offset(weight, 3)),
        (x.t().contiguous().t(), weight.repeat_interleave(2, 1)[:, ::2]),
        (torch.cat((x, x), 1)[:, 64:], torch.cat((weight, weight), 1)[:, :64]),
    )
    for moved in variants:
        args = (grad, index, slopes, *moved, 18, 2, True, True, True)
        for a, b in zip(OPS.winner_gradients(*args), plain, strict=True):
            assert_close(a, b)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_spoils_its_window_alone(value: float, device: str) -> None:
    """Dense products make NaN of every row of the weight, out of zero times infinity."""
    x, weight, bias = linear_like(20, 24, 8, device)
    x[3, 2] = value
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    pool_max_op(4).call(*leaves).sum().backward()
    grads = [leaf.grad for leaf in leaves]
    assert all(g is not None for g in grads)
    dx, dweight, dbias = (g for g in grads if g is not None)
    assert dx[3].isnan().all()
    assert dx[:3].isfinite().all()
    assert dx[4:].isfinite().all()
    spoilt = dbias.isnan()
    assert spoilt.sum() == 4
    assert dweight[spoilt].isnan().all()
    assert dweight[~spoilt].isfinite().all()


def test_operands_that_do_not_belong_together(device: str) -> None:
    grad, slopes = torch.ones(2, 5, device=device)
    index = torch.zeros(5, dtype=torch.int32, device=device)
    x, weight = torch.ones(5, 4, device=device), torch.ones(2, 4, device=device)
    right = {"grad": grad, "winners": index, "slopes": slopes, "x": x, "weight": weight}
    wrong = {
        "grad": grad[:1],
        "winners": index[:4],
        "slopes": slopes[None],
        "weight": weight[:, 1:],
    }
    sizes = {"weight_rows": 7, "kernel_size": 3}
    needed = {"need_x": True, "need_weight": True, "need_bias": True}
    OPS.winner_gradients(**right, **sizes, **needed)
    for name, value in wrong.items():
        with pytest.raises(ValueError, match="winner_gradients: grad, winners and slopes"):
            OPS.winner_gradients(**(right | {name: value}), **sizes, **needed)
    for other in ({"weight_rows": 5}, {"kernel_size": 0}, {"kernel_size": 4}):
        with pytest.raises(ValueError, match="winner_gradients"):
            OPS.winner_gradients(**right, **(sizes | other), **needed)


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)], ids=str)
def test_the_result_is_no_view(lead: tuple[int, ...], device: str) -> None:
    """Which could not be written to: y *= 2, or relu in place."""
    _, weight, bias = linear_like(1, 12, 7, device, requires_grad=True)
    x = torch.randn(*lead, 7, device=device)
    for dtype in (torch.float32, torch.float64):
        leaves = [t.detach().to(dtype).requires_grad_() for t in (x, weight, bias)]
        y = pool_max_op(3).call(*leaves)
        assert not (len(lead) == 1 and y._is_view())
        y.mul_(2).sum().backward()
        twice = leaves[1].grad
        leaves[1].grad = None
        pool_max_op(3).call(*leaves).sum().backward()
        assert twice is not None
        assert leaves[1].grad is not None
        assert_close(twice, 2 * leaves[1].grad)


def test_a_graph_of_backward_follows_the_same_windows(device: str) -> None:
    """Between windows whose sums have the same terms in another order rounding decides, and it
    decides once."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        half = torch.randn(8, 32, generator=generator)
        weight = torch.cat((half, half.flip(0))).to(device).requires_grad_()
        x = torch.randn(1, 32, generator=generator).to(device)
        y = pool_max_op(4).call(x, weight)
        (plain,) = torch.autograd.grad(y.sum(), weight, retain_graph=True)
        (graph,) = torch.autograd.grad(y.sum(), weight, create_graph=True)
        assert torch.equal(plain != 0, graph != 0)


def test_float64_has_the_reference_arithmetic(device: str) -> None:
    x, weight, bias = (t.double() for t in linear_like(20, 13, 8, device))
    y, index, slopes, folded = TRAINING(x, weight, bias, 4, -1.0, "none", "ieee")
    expected = definition(x @ weight.t() + bias, 4, -1.0, "none")
    for result, truth in zip((y, index.long(), slopes), expected, strict=True):
        assert_close(result, truth)
    grads = OPS.winner_gradients(y, index, slopes, x, folded, 13, 4, True, True, True)
    for result, truth in zip(
        grads, dense_gradients(y * slopes, index, x, folded, 13, 4), strict=True
    ):
        assert_close(result, truth)


@pytest.mark.parametrize("lead", LEADS, ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("layout", ["dense", "transposed"])
@pytest.mark.parametrize("kernel_size", [1, 2, 9])
def test_training_on_stand_ins(
    kernel_size: int, layout: str, approximate: str, lead: tuple[int, ...], kernels: Kernels
) -> None:
    """The way to the kernels, where there are none."""
    args = (*operands(lead, layout), kernel_size, -1.5, approximate, "ieee")
    found, expected = winners.cuda_training(*args), winners.training(*args)
    for a, b in zip(found, expected, strict=True):
        agree(a, b)
    fold = ["fold_rows"] if kernel_size > 1 else []
    assert kernels.ran == (["linear_winners"] if found[0].numel() > 0 else fold)


@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize(("m", "windows"), [(5, 3), (5000, 2)])
def test_gradients_on_stand_ins(
    m: int, windows: int, needed: tuple[bool, bool, bool], kernels: Kernels
) -> None:
    grad, slopes = torch.randn(2, m)
    index = torch.randint(0, windows, (m,), dtype=torch.int32)
    args = (grad[:1].expand(m), index, slopes, torch.randn(m, 4), torch.randn(windows, 4))
    args += (4 * windows + 1, 4, *needed)
    found, expected = winner_gradients.cuda_gradients(*args), winner_gradients.gradients(*args)
    for a, b in zip(found, expected, strict=True):
        agree(a, b)
    assert kernels.ran == ["winner_gradients"]
