"""The op of op A's backward: values, what it is registered with, and where autograd calls it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fused import linear_like, poison, run_opcheck, same_bits, softmax_op
from gradients import check_row_gradients
from heads import gelu_exact, softmax_head
from operands import Matrix
from torch import Tensor
from torch.func import vmap

import cutlass_ops
from cutlass_ops import calls

OP = torch.ops.cutlass_ops.gelu_softmax_backward
forms = pytest.mark.parametrize("approximate", ["none", "tanh"])
COLUMNS = (1, 2, 3, 5, 7, 8, 31, 64, 130, 1000, 1025, 5000, 9001, 16_388)


def operands(
    *shape: int, device: str, approximate: str = "none", dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """g, z, bias and y."""
    generator = torch.Generator(device).manual_seed(sum(shape))

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=dtype)

    g, z, bias = normal(*shape), normal(*shape) * 2, normal(shape[-1])
    return g, z, bias, cutlass_ops.gelu_softmax(z, bias, approximate=approximate)


@forms
@pytest.mark.parametrize("n", COLUMNS)
def test_gradients_within_the_bound(n: int, approximate: str, device: str) -> None:
    """Every configuration of the kernel; g in rows of its own length, in longer ones, one for all,
    transposed."""
    _, z, bias, y = operands(40, n, device=device, approximate=approximate)
    head = softmax_head(approximate)
    wide = torch.randn(40, n + 3, device=device)
    views = (
        wide[:, :n].contiguous(),
        wide[:, 1 : n + 1],
        wide[:1, :n].expand(40, n),
        torch.randn(n, 40, device=device).t(),
    )
    for g in views:
        poison(device, 40, n)
        dz, dbias = OP(g, z, bias, y, approximate, True)
        check_row_gradients([dz, dbias], head, Matrix(z, bias), g)
    run_opcheck(OP.default, (views[0], z, bias, y, approximate, True))


@forms
def test_float64_is_that_of_autograd(approximate: str, device: str) -> None:
    g, z, bias, y = operands(6, 9, device=device, approximate=approximate, dtype=torch.float64)
    leaves = [t.clone().requires_grad_() for t in (z, bias)]
    exact = torch.softmax(gelu_exact(leaves[0] + leaves[1], approximate), -1)
    expected = torch.autograd.grad(exact, leaves, g)
    torch.testing.assert_close(OP(g, z, bias, y, approximate, True), expected)


def test_what_is_not_needed_is_empty(device: str) -> None:
    g, z, _, y = operands(6, 9, device=device)
    dz, none = OP(g, z, None, y, "none", False)
    assert none.shape == (0,)
    assert same_bits(dz, OP(g, z, None, y, "none", True)[0])


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 0, 5), (7,)], ids=str)
def test_shapes_without_elements_and_of_one_row(shape: tuple[int, ...], device: str) -> None:
    g, z, bias, y = operands(*shape, device=device)
    dz, dbias = OP(g, z, bias, y, "none", True)
    assert dz.shape == shape
    assert dbias.shape == shape[-1:]
    assert torch.equal(dbias, dz if len(shape) == 1 else torch.zeros(shape[-1], device=device))


def test_shapes_that_do_not_fit(device: str) -> None:
    g, z, bias, y = operands(6, 9, device=device)
    for wrong in ((g[:, :8], z, bias, y), (g, z, bias, y[:5]), (g, z, bias[:8], y)):
        with pytest.raises(ValueError, match="gelu_softmax_backward"):
            OP(*wrong, "none", True)
    with pytest.raises(ValueError, match="approximate"):
        OP(g, z, bias, y, "erf", True)


@forms
@pytest.mark.parametrize("n", [5, 300, 20_000])
def test_rows_that_are_not_finite(n: int, approximate: str, device: str) -> None:
    """A NaN, an infinite z or an infinite g takes its row alone; large z are 0 or 1 to GELU'."""
    g, z, _, _ = operands(9, n, device=device)
    z[1, n // 2], z[2, 0], z[3, -1] = math.nan, math.inf, -math.inf
    g[4, 1], g[5, 2] = math.inf, math.nan
    z[6, 1], z[6, 2], z[7] = 1e30, -3e38, -50.0
    y = cutlass_ops.gelu_softmax(z, approximate=approximate)
    dz, _ = OP(g, z, None, y, approximate, False)
    assert dz.isnan().all(-1).tolist()[1:4] == [True] * 3
    assert not dz[4:6].isfinite().any()
    assert dz[[0, 6, 7, 8]].isfinite().all()
    clean = OP(g[[0, 8]], z[[0, 8]], None, y[[0, 8]], approximate, False)[0]
    torch.testing.assert_close(dz[[0, 8]], clean, rtol=1e-5, atol=1e-9)


def test_runs_are_bit_identical(device: str) -> None:
    args = operands(300, 130, device=device)
    first = OP(*args, "none", True)
    for _ in range(5):
        assert all(same_bits(*pair) for pair in zip(first, OP(*args, "none", True), strict=True))


@pytest.mark.parametrize("which", [(1, 1, 1, 1), (1, 0, 0, 0), (0, 1, 0, 1), (0, 0, 1, 1)])
@pytest.mark.parametrize("need_bias", [False, True])
@pytest.mark.parametrize("lead", [(5,), (), (2, 3)])
def test_vmap(which: tuple[int, ...], need_bias: bool, lead: tuple[int, ...], device: str) -> None:
    shapes = ((*lead, 6), (*lead, 6), (6,), (*lead, 6))
    tensors = [
        torch.rand((4, *shape) if on else shape, device=device)
        for shape, on in zip(shapes, which, strict=True)
    ]
    in_dims = tuple(0 if on else None for on in which)
    found = vmap(lambda *t: OP(*t, "none", need_bias), in_dims)(*tensors)
    for i in range(4):
        alone = OP(
            *(t[i] if on else t for t, on in zip(tensors, which, strict=True)), "none", need_bias
        )
        for a, b in zip(found, alone, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("create_graph", [False, True])
def test_backward_is_one_op_where_no_graph_of_it_is_wanted(
    create_graph: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this the composition could do all the work, and nothing would fail."""
    called: list[bool] = []
    op = calls.gelu_softmax_backward

    def spy(*args: Any) -> Any:
        called.append(args[-1])
        return op(*args)

    monkeypatch.setattr(calls, "gelu_softmax_backward", spy)
    x, weight, bias = linear_like(5, 9, 6, device, requires_grad=True)
    leaves = (x, weight, bias)
    for wanted in (leaves, leaves[:2]):
        some = [t if any(t is w for w in wanted) else t.detach() for t in leaves]
        y = softmax_op().call(*some)
        torch.autograd.grad(y.square().sum(), wanted, create_graph=create_graph)
    z, shift = x @ weight.t(), bias.detach()
    torch.autograd.grad(
        cutlass_ops.gelu_softmax(z, bias).square().sum(), z, create_graph=create_graph
    )
    torch.autograd.grad(
        cutlass_ops.gelu_softmax(z, shift).square().sum(), z, create_graph=create_graph
    )
    assert called == ([] if create_graph else [True, False, True, False])


def test_gradient_of_the_linear_part_joins(device: str) -> None:
    """z is an output of op A's function: its own gradient, which a graph of backward has, is added
    before the columns are summed."""
    from cutlass_ops import autograd_heads

    leaves = [t.double().requires_grad_() for t in linear_like(5, 9, 6, device)]
    y, z = autograd_heads.linear_gelu_softmax(*leaves, "none", "ieee")
    gy, gz = torch.randn_like(y), torch.randn_like(z)
    plain = torch.nn.functional.linear(*leaves)
    exact = torch.softmax(gelu_exact(plain), -1)
    for need_y, need_z in ((True, True), (True, False), (False, True)):
        outputs, exact_outputs = (
            [o for o, need in zip(pair, (need_y, need_z), strict=True) if need]
            for pair in ((y, z), (exact, plain))
        )
        upstream = [g for g, need in zip((gy, gz), (need_y, need_z), strict=True) if need]
        found = torch.autograd.grad(outputs, leaves, upstream, retain_graph=True)
        expected = torch.autograd.grad(exact_outputs, leaves, upstream, retain_graph=True)
        torch.testing.assert_close(found, expected)
