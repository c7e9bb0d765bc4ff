"""torch.func: vmap over every combination of operands, grad, and both together."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from fused import BOTH, Fused, linear_like, pool_max_op, softmax_op
from operands import Linear
from torch import Tensor
from torch.func import grad, jacrev, vmap

import cutlass_ops

OPS = (softmax_op(), pool_max_op(3, -1.5))
every_op = pytest.mark.parametrize("op", OPS, ids=repr)


def batched(device: str, b: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, bias = linear_like(b * 5, b * 9, 6, device)
    return x.view(b, 5, 6), weight.view(b, 9, 6), bias.view(b, 9)


@every_op
@pytest.mark.parametrize("which", list(itertools.product([True, False], repeat=3))[:-1])
def test_vmap_over_any_operands(op: Fused, which: tuple[bool, ...], device: str) -> None:
    """Against a loop; without the warning that vmap falls back to one."""
    tensors = batched(device)
    operands = [t if on else t[0] for t, on in zip(tensors, which, strict=True)]
    in_dims = tuple(0 if on else None for on in which)
    op.call(*(t[0] for t in tensors))  # which may warn, once, that it falls back to ieee
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = vmap(op.call, in_dims=in_dims)(*operands)
    picked = [
        op.call(*(t[i] if on else t for t, on in zip(operands, which, strict=True)))
        for i in range(4)
    ]
    torch.testing.assert_close(y, torch.stack(picked), rtol=1e-5, atol=1e-7)


EMPTY: dict[str, tuple[Any, ...]] = {
    "linear": (),
    "linear_epilogue": ("gelu", ()),
    "linear_gelu_softmax": ("none", "ieee"),
    "linear_gelu_softmax_training": ("none", "ieee"),
    "linear_avgpool_gelu_scale_max": (3, -1.5, "none", "ieee"),
}


@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("which", list(itertools.product([True, False], repeat=3))[:-1])
@pytest.mark.parametrize("name", ["linear_gelu_softmax", "linear_avgpool_gelu_scale_max"])
def test_vmap_with_the_halves_of_packs(
    name: str, which: tuple[bool, ...], size: int, device: str
) -> None:
    """Of one pack, or of as many as there are weights: they go where the weight goes."""
    op = getattr(torch.ops.cutlass_ops, name).default
    options = EMPTY[name] if len(EMPTY[name]) == 2 else (*EMPTY[name], 1)
    tensors = [t[:size] for t in batched(device)]
    operands = [t if on else t.new_ones(t.shape[1:]) for t, on in zip(tensors, which, strict=True)]
    halves = torch.ones(size, 3, device=device) if which[1] else torch.ones(3, device=device)
    in_dims = tuple(0 if on else None for on in (*which, which[1]))
    y = vmap(lambda *t: op(*t[:3], *options, t[3]), in_dims)(*operands, halves)
    plain = vmap(lambda *t: op(*t, *options), in_dims[:3])(*operands)
    assert torch.equal(y, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("which", list(itertools.product([True, False], repeat=3))[:-1])
@pytest.mark.parametrize("name", EMPTY)
def test_vmap_over_no_elements(
    name: str, which: tuple[bool, ...], dtype: torch.dtype, device: str
) -> None:
    """As F.linear under vmap: an empty result of the shape and dtype that elements would have."""
    op = getattr(torch.ops.cutlass_ops, name).default
    tensors = [t.to(dtype) for t in batched(device)]
    operands = [t[:0].movedim(0, 1) if on else t[0] for t, on in zip(tensors, which, strict=True)]
    in_dims = tuple(1 if on else None for on in which)
    found = vmap(lambda *t: op(*t, *EMPTY[name]), in_dims)(*operands)
    single = op(*(t[0] for t in tensors), *EMPTY[name])
    for y, one in zip(
        *((t,) if isinstance(t, Tensor) else t for t in (found, single)), strict=True
    ):
        assert y.shape == (0, *one.shape)
        assert (y.dtype, y.device) == (one.dtype, one.device)


def test_vmap_of_the_parts_over_no_elements(device: str) -> None:
    z, bias = torch.randn(0, 5, 6, device=device), torch.randn(0, 6, device=device)
    assert vmap(cutlass_ops.softmax)(z).shape == (0, 5, 6)
    assert vmap(cutlass_ops.gelu_softmax)(z, bias).shape == (0, 5, 6)
    assert vmap(cutlass_ops.gelu_softmax, (None, 0))(
        torch.ones(5, 6, device=device), bias
    ).shape == (0, 5, 6)
    assert vmap(cutlass_ops.gelu_scale_max)(z, bias).shape == (0, 5)
    weight, vector = vmap(lambda w, b: cutlass_ops.fold_linear(w, b, 2))(z, z[..., 0])
    assert (weight.shape, vector.shape) == ((0, 2, 6), (0, 2))


@every_op
def test_gradients_and_nested_vmap_over_no_elements(op: Fused, device: str) -> None:
    x, weight, bias = batched(device)
    none = weight[:0].requires_grad_()
    shared = x[0].requires_grad_()
    y = vmap(op.call, (None, 0, None))(shared, none, bias[0])
    grads = torch.autograd.grad(y.sum(), (shared, none))
    assert grads[1].shape == none.shape
    assert not grads[0].any()
    nested = vmap(vmap(op.call, (None, 0, 0)), (0, None, None))(x, weight[:0], bias[:0])
    assert nested.shape == (4, *y.shape)


@every_op
def test_vmap_over_other_dims_and_nested(op: Fused, device: str) -> None:
    x, weight, bias = linear_like(24, 9, 6, device)
    x = x.view(2, 3, 4, 6)
    y = vmap(vmap(op.call, (1, None, None)), (0, None, None))(x, weight, bias)
    expected = op.call(x, weight, bias).transpose(1, 2)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-7)


@every_op
def test_vmap_of_single_vectors(op: Fused, device: str) -> None:
    x, weight, bias = linear_like(7, 9, 6, device)
    y = vmap(lambda row: op.call(row, weight, bias))(x)
    torch.testing.assert_close(y, op.call(x, weight, bias), rtol=1e-5, atol=1e-7)


@every_op
@pytest.mark.parametrize("argument", [0, 1, 2])
def test_grad(op: Fused, argument: int, device: str) -> None:
    operands = linear_like(5, 9, 6, device)

    def loss(*t: Tensor) -> Tensor:
        return op.call(*t).square().sum()

    def exact_loss(*t: Tensor) -> Tensor:
        return op.head.exact(Linear(*t).eager()).square().sum()

    actual = grad(loss, argnums=argument)(*operands)
    truth = grad(exact_loss, argnums=argument)(*(t.double() for t in operands))
    assert (actual - truth).norm() <= 2e-5 * truth.norm()


@every_op
def test_per_sample_gradients(op: Fused, device: str) -> None:
    """vmap of grad, as in differential privacy: autograd functions need a vmap rule for it."""
    x, weight, bias = linear_like(6, 9, 5, device)

    def loss(weight: Tensor, bias: Tensor, row: Tensor) -> Tensor:
        return op.call(row, weight, bias).square().sum()

    per_sample = vmap(grad(loss, argnums=(0, 1)), in_dims=(None, None, 0))(weight, bias, x)
    for i in range(6):
        single = grad(loss, argnums=(0, 1))(weight, bias, x[i])
        for a, b in zip(per_sample, single, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-4, atol=1e-7)


@every_op
def test_grad_of_vmap(op: Fused, device: str) -> None:
    x, weight, bias = batched(device)

    def loss(weight: Tensor) -> Tensor:
        return vmap(op.call)(x, weight, bias).square().sum()

    expected = torch.stack(
        [grad(lambda w, i=i: op.call(x[i], w, bias[i]).square().sum())(weight[i]) for i in range(4)]
    )
    torch.testing.assert_close(grad(loss)(weight), expected, rtol=1e-4, atol=1e-7)


@every_op
def test_ensembles_of_weights_with_gradients(op: Fused, device: str) -> None:
    """torch.func.stack_module_state and its like: a batch of weights against one x."""
    x, weight, bias = batched(device)

    def losses(weight: Tensor, bias: Tensor) -> Tensor:
        return op.call(x[0], weight, bias).square().sum()

    together = vmap(grad(losses, argnums=(0, 1)))(weight, bias)
    for i in range(4):
        alone = grad(losses, argnums=(0, 1))(weight[i], bias[i])
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-4, atol=1e-7)


@every_op
def test_batched_gradients_of_one_graph(op: Fused, device: str) -> None:
    """is_grads_batched has a vmap of its own, which is no transform: no kernel could read the
    gradient."""
    leaves = linear_like(5, 9, 6, device, requires_grad=True)
    y = op.call(*leaves)
    many = torch.randn(3, *y.shape, device=device)
    found = torch.autograd.grad(y, leaves, many, is_grads_batched=True, retain_graph=True)
    for i, g in enumerate(many):
        expected = torch.autograd.grad(y, leaves, g, retain_graph=True)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-4, atol=1e-6)


@every_op
def test_jacobian(op: Fused, device: str) -> None:
    operands = [t.double() for t in linear_like(2, 7, 3, device)]
    actual = jacrev(op.call)(*operands)
    exact = jacrev(lambda *t: op.head.exact(Linear(*t).eager()))(*operands)
    torch.testing.assert_close(actual, exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_vmap_of_the_parts(dim: int, device: str) -> None:
    """Folding under vmap too, over each dim of a batch of weights and of biases."""
    z = torch.randn(3, 6, 4, device=device)
    moved = z.movedim(0, dim)
    parts = (
        cutlass_ops.softmax,
        cutlass_ops.gelu_softmax,
        lambda t: cutlass_ops.gelu_scale_max(t, scale=-2.0),
        lambda t: cutlass_ops.fold_linear(t, None, 4)[0],
        lambda t: cutlass_ops.fold_linear(t, t[:, 0], 2)[1],
    )
    for part in parts:
        expected = torch.stack([part(t) for t in z])
        torch.testing.assert_close(vmap(part, in_dims=dim)(moved), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("op", BOTH, ids=repr)
def test_functional_call_of_the_module(op: Fused, device: str) -> None:
    """Parameters handed in from outside, and the same result as with its own."""
    if "softmax" in op.label:
        module = cutlass_ops.nn.LinearGELUSoftmax(6, 9)
    else:
        module = cutlass_ops.nn.LinearAvgPoolGELUScaleMax(6, 9, 2)
    module = module.to(device)
    x = torch.randn(5, 6, device=device)
    own = {name: p.detach().clone() for name, p in module.named_parameters()}
    # with gradients to come, as the module's own: op B takes another way without
    doubled = {name: (2 * p).requires_grad_() for name, p in own.items()}
    y = torch.func.functional_call(module, doubled, (x,))
    plain = module(x)
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(2)
    assert torch.equal(y, module(x))
    assert not torch.equal(y, plain)
