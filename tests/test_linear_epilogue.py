"""The table of epilogues: every row against float64, through the one generic op."""

from __future__ import annotations

import math

import pytest
import torch
from fused import linear_like, mode_on, poison, run_opcheck
from heads import Head, head_of, is_pooled, some_params
from hypothesis import given
from hypothesis import strategies as st
from operands import Linear
from oracle import check
from strategies import Case, cases
from torch import Tensor

from cutlass_ops.epilogues import EPILOGUES

linear_epilogue = torch.ops.cutlass_ops.linear_epilogue


def params_of(name: str, case: Case) -> list[float]:
    return [float(case.kernel_size), case.scale] if is_pooled(name) else []


def run(
    name: str, params: list[float], x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    return linear_epilogue(x, weight, bias, name, params, mode_on(x.device))


def test_every_row_of_the_table_is_known_here() -> None:
    """A new epilogue needs a line in head_of, so that nothing in the table goes unjudged."""
    for name in EPILOGUES:
        assert isinstance(head_of(name, [1.0, 1.0]), Head)
    assert {"identity", "gelu", "gelu_tanh", "relu", "row_sum"} <= set(EPILOGUES)


@pytest.mark.parametrize("name", EPILOGUES)
@given(case=cases(pooled=True))
def test_matches_float64(name: str, case: Case, device: str) -> None:
    x, weight, bias = case.tensors(device)
    params = params_of(name, case)
    poison(device, case.m, case.n)
    y = run(name, params, x, weight, bias)
    check(y, head_of(name, params), Linear(x, weight, bias))
    run_opcheck(linear_epilogue.default, (x, weight, bias, name, params, mode_on(device)))


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("n", [1, 127, 129, 300])
def test_rows_that_are_all_negative_and_all_equal(name: str, n: int, device: str) -> None:
    """The identity of each reduction and what stands beyond column N show here."""
    x, weight = torch.ones(33, 4, device=device), torch.full((n, 4), -0.25, device=device)
    params = [1.0, -2.0] if is_pooled(name) else []
    check(run(name, params, x, weight), head_of(name, params), Linear(x, weight))


@pytest.mark.parametrize("name", EPILOGUES)
@given(case=cases(pooled=True, planted=True, empty=False))
def test_non_finite_values(name: str, case: Case, device: str) -> None:
    x, weight, bias = case.tensors(device)
    params = params_of(name, case)
    check(run(name, params, x, weight, bias), head_of(name, params), Linear(x, weight, bias))


def test_relu_keeps_nan(device: str) -> None:
    """fmaxf(z, 0) is 0 for NaN; torch.relu is NaN."""
    x, weight, _ = linear_like(3, 40, 8, device)
    x[1, 3] = math.nan
    y = run("relu", [], x, weight)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()
    assert (y[[0, 2]] >= 0).all()


@pytest.mark.parametrize("n", [1, 128, 1000, 70_000])
def test_row_sum_of_many_columns(n: int, device: str) -> None:
    """Partial sums of tiles are combined in a fixed order; a column that is left out shows at
    once."""
    x, weight = torch.ones(5, 1, device=device), torch.ones(n, 1, device=device)
    bias = torch.ones(n, device=device)
    y = run("row_sum", [], x, weight, bias)
    assert y.tolist() == [2.0 * n] * 5


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("leading", [(), (0,), (2, 3), (2, 0, 3)])
def test_shape_rule(name: str, leading: tuple[int, ...], device: str) -> None:
    """Columns stay or the row is reduced; leading dims stay; the fake says the same."""
    _, weight, bias = linear_like(1, 12, 5, device)
    x = torch.randn(*leading, 5, device=device)
    params = some_params(name, 12)
    y = run(name, params, x, weight, bias)
    reduced = name == "row_sum" or is_pooled(name)
    assert y.shape == (leading if reduced else (*leading, 12))
    run_opcheck(linear_epilogue.default, (x, weight, bias, name, params, mode_on(device)))


def test_unknown_name(device: str) -> None:
    x, weight, bias = linear_like(2, 3, 4, device)
    with pytest.raises(ValueError, match=r"linear_epilogue.*swish"):
        linear_epilogue(x, weight, bias, "swish", [])


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("identity", [1.0]),
        ("gelu", [1.0]),
        ("row_sum", [0.0, 0.0]),
        ("avgpool_gelu_scale_max", []),
        ("avgpool_gelu_scale_max", [2.0]),
        ("avgpool_gelu_scale_max", [2.0, 1.0, 1.0]),
        ("avgpool_gelu_scale_max", [0.0, 1.0]),
        ("avgpool_gelu_scale_max", [-1.0, 1.0]),
        ("avgpool_gelu_scale_max", [2.5, 1.0]),
        ("avgpool_gelu_tanh_scale_max", [4.0, 1.0]),
        ("avgpool_gelu_scale_max", [math.nan, 1.0]),
    ],
)
def test_params_are_checked(name: str, params: list[float], device: str) -> None:
    """Too many, too few, no whole number, k = 4 for N = 3: an error that names the epilogue."""
    x, weight, bias = linear_like(2, 3, 4, device)
    with pytest.raises(ValueError, match=name):
        linear_epilogue(x, weight, bias, name, params)


@given(case=cases(empty=False), seed=st.integers(0, 1000))
def test_scaling_weight_and_bias_scales_the_linear_part(case: Case, seed: int, device: str) -> None:
    """By a power of two exactly, sums and products being rounded alike."""
    x, weight, bias = case.tensors(device)
    # Dense and aligned as their products with the factor are, so that the same loop runs.
    weight = weight.clone(memory_format=torch.contiguous_format)
    bias = None if bias is None else bias.clone(memory_format=torch.contiguous_format)
    factor = 2.0 ** (seed % 7 - 3)
    y = run("identity", [], x, weight, bias)
    scaled = run("identity", [], x, weight * factor, None if bias is None else bias * factor)
    assert torch.equal(scaled, y * factor)


def leaves(device: str, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [t.detach().to(dtype).requires_grad_() for t in linear_like(5, 12, 6, device)]


@pytest.mark.parametrize("name", EPILOGUES)
def test_gradients(name: str, device: str) -> None:
    """The op had no autograd rule: x.grad stayed None, with a warning of PyTorch's, and custom
    epilogues are reachable in no other way."""
    params = some_params(name, 12)

    def call(*operands: Tensor) -> Tensor:
        return linear_epilogue(*operands, name, params, mode_on(device))

    assert torch.autograd.gradcheck(call, leaves(device))
    assert torch.autograd.gradgradcheck(call, leaves(device))
    for wanted in range(3):  # one input alone
        operands = [t.requires_grad_(i == wanted) for i, t in enumerate(leaves(device))]
        assert torch.autograd.gradcheck(call, operands)
    operands = leaves(device, torch.float32)
    run_opcheck(linear_epilogue.default, (*operands, name, params, mode_on(device)))
    exact = [t.detach().double().requires_grad_() for t in operands]
    truth = head_of(name, params).exact(Linear(*exact).eager())
    grads = torch.autograd.grad(call(*operands).sum(), operands)
    for actual, expected in zip(grads, torch.autograd.grad(truth.sum(), exact), strict=True):
        assert (actual - expected).norm() <= 2e-5 * expected.norm()


def test_gradients_in_a_graph(device: str) -> None:
    operands = leaves(device, torch.float32)

    mode = mode_on(device)

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_epilogue(x.sin(), weight, bias, "relu", [], mode).square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    grads = torch.autograd.grad(compiled(*operands), operands)
    for a, b in zip(grads, torch.autograd.grad(call(*operands), operands), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_gradient_of_one_tensor_as_both_operands(device: str) -> None:
    """Differentiated by the tensor itself, either operand would get the gradient of both."""
    (x, *_), (y, *_) = leaves(device), leaves(device)
    linear_epilogue(x, x, None, "gelu_tanh", [], mode_on(device)).sum().backward()
    torch.nn.functional.gelu(y @ y.t(), approximate="tanh").sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_backward_under_autocast(device: str) -> None:
    """Recomputed in bfloat16, gradients would be off by 4e-3."""
    operands = leaves(device, torch.float32)
    y = linear_epilogue(*operands, "gelu", [], mode_on(device))
    grads = torch.autograd.grad(y.sum(), operands, retain_graph=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        again = torch.autograd.grad(y.sum(), operands)
    for a, b in zip(again, grads, strict=True):
        assert torch.equal(a, b)


def test_gradient_transforms_do_not_lose_the_gradient(device: str) -> None:
    """torch.func.grad of the op raises; through the fallback of PyTorch it would be zero."""
    x, weight, bias = linear_like(3, 4, 5, device)
    with pytest.raises(RuntimeError, match="functorch"):
        torch.func.grad(lambda x: linear_epilogue(x, weight, bias, "relu", []).sum())(x)
