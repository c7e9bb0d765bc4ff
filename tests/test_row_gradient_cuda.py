"""The kernel of op A's backward: every configuration, at and beside its edge, on special values
too."""

from __future__ import annotations

import math

import pytest
import torch
from fused import same_bits
from gradients import check_row_gradients, check_sums_of_rows
from heads import softmax_head
from native import OPS, guarded, guards_are_intact, needs_binary
from operands import Matrix
from oracle import UNIT
from torch import Tensor

from cutlass_ops.gradients import gelu_softmax_gradient

pytestmark = needs_binary

GELU = {"none": "gelu", "tanh": "gelu_tanh"}
forms = pytest.mark.parametrize("approximate", GELU)
# The longest rows of each configuration, then others, then streamed ones.
LONGEST_ROWS = (8, 64, 512, 1024, 2048, 4096, 8192, 16384)
OTHER_ROWS = (1, 2, 3, 5, 9, 127, 516, 1000, 1028, 2047, 5000, 8196, 12_000)
STREAMED_ROWS = (16_385, 16_388, 20_000, 100_003)


def softmax(z: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    y = torch.empty(z.shape, device=z.device)
    OPS._row_softmax(z, bias, GELU[approximate], y)
    return y


def run(
    g: Tensor,
    y: Tensor,
    z: Tensor,
    bias: Tensor | None = None,
    approximate: str = "none",
    sums: Tensor | None = None,
) -> Tensor:
    """The kernel, on poisoned memory with guards around it."""
    memory, dz = guarded(tuple(z.shape), z.device.type)
    OPS._row_gradient(g, y, z, bias, GELU[approximate], dz, sums)
    assert guards_are_intact(memory), "the kernel wrote outside its output"
    return dz.clone()


@pytest.mark.parametrize("n", [*LONGEST_ROWS, *OTHER_ROWS, *STREAMED_ROWS])
@forms
def test_row_gradient(approximate: str, n: int, gpu: str) -> None:
    """g in rows of its own length, in longer ones, aligned and not, and one for all; with a bias,
    aligned and not."""
    head = softmax_head(approximate)
    z, bias = torch.randn(6, n, device=gpu) * 2, torch.randn(n + 1, device=gpu)
    wide = torch.randn(6, n + 8 + -n % 4, device=gpu)
    views = (wide[:, :n].contiguous(), wide[:, :n], wide[:, 1 : n + 1], wide[:1, :n].expand(6, n))
    for b in (None, bias[:n], bias[1:]):
        y = softmax(z, b, approximate)
        for g in views:
            dz = run(g, y, z, b, approximate)
            check_row_gradients([dz], head, Matrix(z if b is None else z + b), g)
            assert same_bits(dz, run(g, y, z, b, approximate))


@pytest.mark.parametrize("n", [2048, 16_384, 100_003])
def test_errors_do_not_add_up(n: int, gpu: str) -> None:
    """Where all of g have one exponent, g - sum(g * y) would be off by the same for all columns."""
    z = torch.randn(64, n, device=gpu) / 4
    g = (1 + torch.rand(64, n, device=gpu)) * torch.randn(64, n, device=gpu).sign()
    y = softmax(z, None, "none")
    check_sums_of_rows(run(g, y, z), g, z, y)


@forms
def test_a_row_of_one_column_has_no_gradient(approximate: str, gpu: str) -> None:
    """To the bit: g is the sum, and both are weighted alike."""
    z, g = torch.randn(5000, 1, device=gpu), torch.randn(5000, 1, device=gpu)
    assert not run(g, torch.ones_like(z), z, None, approximate).any()


@pytest.mark.parametrize("less", [0, 1, 2, 3])
@pytest.mark.parametrize("longest", [*LONGEST_ROWS, STREAMED_ROWS[1]])
def test_row_gradient_beside_boundaries(longest: int, less: int, gpu: str) -> None:
    """Every operand begins at every offset from a 16-byte boundary, alike and not, and every row at
    another one. The bits depend on the offset of the result alone."""
    n, rows = longest - less, 5
    z, g = torch.randn(rows, n, device=gpu) * 2, torch.randn(rows, n, device=gpu)
    y = softmax(z, None, "none")
    for offset in range(4):
        results = []
        for begin in {offset, 0, 3}:
            moved = []
            for source in (g, y, z):
                _, flat = guarded((rows * n + 4,), gpu)
                moved.append(flat[begin : begin + rows * n].view(rows, n).copy_(source))
            memory, flat = guarded((rows * n + 4,), gpu)
            dz = flat[offset : offset + rows * n].view(rows, n)
            OPS._row_gradient(*moved, None, "gelu", dz, None)
            assert guards_are_intact(memory)
            assert flat[:offset].isnan().all()
            assert flat[offset + rows * n :].isnan().all()
            results.append(dz.clone())
        check_row_gradients([results[0]], softmax_head(), Matrix(z), g)
        if n > 8:  # shorter rows have a kernel for what is aligned, and one for what is not
            assert all(same_bits(results[0], other) for other in results)


@pytest.mark.parametrize(
    ("rows", "groups", "n"),
    [
        *((1000, 256, n) for n in (4, 8, 60, 64, 500, 512)),
        *((37, 8, n) for n in (516, 1024, 2048, 3000, 4096, 8192, 12_000, 16_384)),
        (3, 8, 8192),  # some have no row
        (1, 1, 4096),
    ],
)
@forms
def test_sums_of_columns(approximate: str, rows: int, groups: int, n: int, gpu: str) -> None:
    """Of every group of rows, and of a group without rows zero; the gradient is the same as
    without."""
    z, g = torch.randn(rows, n, device=gpu), torch.randn(rows, n, device=gpu)
    bias = torch.randn(n, device=gpu)
    y = softmax(z, bias, approximate)
    memory, sums = guarded((groups, n), gpu)
    dz = run(g, y, z, bias, approximate, sums)
    assert guards_are_intact(memory)
    assert same_bits(dz, run(g, y, z, bias, approximate))
    for group in range(groups):
        taken = dz[group::groups].double()
        error = (sums[group].double() - taken.sum(0)).abs()
        assert (error <= len(taken) * UNIT * taken.abs().sum(0)).all()


@pytest.mark.parametrize("n", [8, 200, 1024, 8192])
def test_op_sums_columns_of_many_rows(n: int, gpu: str) -> None:
    """Enough of them for the kernel to do so; g comes in rows of its own length and as one row."""
    rows = 4 * OPS._row_gradient_groups(2**20, n) + 3
    assert OPS._row_gradient_groups(rows, n) > 0
    z, bias = torch.randn(rows, n, device=gpu), torch.randn(n, device=gpu)
    y = softmax(z, bias, "none")
    for g in (torch.randn(rows, n, device=gpu), torch.ones((), device=gpu).expand(rows, n)):
        found = OPS.gelu_softmax_backward(g, z, bias, y, "none", True)
        again = OPS.gelu_softmax_backward(g, z, bias, y, "none", True)
        assert all(same_bits(*pair) for pair in zip(found, again, strict=True))
        taken = found[0].double()
        error = (found[1].double() - taken.sum(0)).abs()
        assert (error <= 1e-6 * taken.abs().sum(0)).all()
        if g.stride(0) > 0:  # the gradient of a sum is rounding alone
            check_row_gradients([found[0]], softmax_head(), Matrix(z + bias), g)


@pytest.mark.parametrize("rows", [1, 1003, 70_000])
def test_row_gradient_of_many_rows(rows: int, gpu: str) -> None:
    """Several rows a CTA, a last CTA that is not full, and more rows than 2^16."""
    for n in (1, 4, 5, 40, 300):
        z, g = torch.randn(rows, n, device=gpu), torch.randn(rows, n, device=gpu)
        dz = run(g, softmax(z, None, "none"), z)
        check_row_gradients([dz], softmax_head(), Matrix(z), g)


@pytest.mark.parametrize("less", [0, 3])
@pytest.mark.parametrize("longest", [*LONGEST_ROWS, STREAMED_ROWS[1]])
@forms
def test_row_gradient_of_special_rows(approximate: str, longest: int, less: int, gpu: str) -> None:
    """NaN, and infinities of z or of g, take their row and no other; GELU' of large z is 0 or 1."""
    n = longest - less
    z, g = torch.randn(10, n, device=gpu), torch.randn(10, n, device=gpu)
    z[1, n // 3], z[2, -1], z[3, 0] = math.nan, math.inf, -math.inf
    g[4, -1], g[5, n // 2], g[6, 0] = math.inf, math.nan, -math.inf
    z[7, 0], z[7, -1], z[8] = 1e30, -3e38, -50.0
    y = softmax(z, None, approximate)
    dz = run(g, y, z, None, approximate)
    assert dz[1:4].isnan().all()
    assert not dz[4:7].isfinite().any()
    rest = [0, 7, 8, 9]
    expected = gelu_softmax_gradient(g[rest], z[rest], y[rest], approximate)
    torch.testing.assert_close(dz[rest], expected, rtol=1e-4, atol=1e-6)


def test_row_gradient_refuses(gpu: str) -> None:
    z, odd, long = (torch.randn(6, n, device=gpu) for n in (40, 41, 20_000))
    sums = torch.empty(256, 40, device=gpu)
    OPS._row_gradient(z, z, z, None, "gelu", torch.empty_like(z), sums)
    for arguments in (
        (z[:5], z, z, None, "gelu", z, None),
        (z, z[:, :39], z, None, "gelu", z, None),
        (z.t(), z.t(), z.t(), None, "gelu", z, None),
        (z, z, z, z[0, :39], "gelu", z, None),
        (z, z, z, None, "identity", z, None),
        (z, z, z, None, "gelu", z[:5], None),
        (z, z, z.double(), None, "gelu", z, None),
        (z, z, z, None, "gelu", z, sums[:, :39]),
        (z, z, z, None, "gelu", z, sums[:0]),
        (z, z, z, None, "gelu", z, sums[:17]),  # 16 rows a CTA
        (odd, odd, odd, None, "gelu", odd, torch.empty(256, 41, device=gpu)),
        (long, long, long, None, "gelu", long, torch.empty(256, 20_000, device=gpu)),
    ):
        with pytest.raises(RuntimeError):
            OPS._row_gradient(*arguments)
