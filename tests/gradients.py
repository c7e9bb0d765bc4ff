"""Judging gradients: each tensor's relative L2 error against float64 autograd of the exact head."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from fused import Fused
from heads import Head, gelu_exact
from operands import Linear, Matrix
from oracle import UNIT, eager_forms, full_float32, inputs_nearby, relative_l2
from torch import Tensor

Gradients = list[Tensor]


def upstream(op: Fused, operands: Linear, seed: int = 0) -> Tensor:
    """A gradient for the output: normal numbers, and zero for rows where the maximum is tied within
    what float32 tells apart, which is judged by eager's error.

    Which of two nearly equal columns wins is a matter of rounding, and moves the whole gradient of
    its row; float32 has no right answer there.
    """
    z = operands.exact()
    shape = op.head.exact(z).shape
    generator = torch.Generator(z.device).manual_seed(seed)
    g = torch.randn(shape, generator=generator, device=z.device)
    if op.head.candidates is None:
        return g
    values = op.head.candidates(z)
    if values.numel() == 0 or values.shape[-1] == 1:
        return g
    best = values.topk(2, dim=-1).values
    with full_float32(), torch.no_grad():
        errors = (op.head.candidates(operands.eager().double()) - values).abs().amax(-1)
    return g * ((best[:, 0] - best[:, 1]) > 1e-4 * best[:, 0].abs() + 16 * errors + 1e-30)


def _leaves(operands: Linear, dtype: torch.dtype) -> list[Tensor]:
    tensors = [operands.x, operands.weight]
    tensors += [] if operands.bias is None else [operands.bias]
    return [t.detach().to(dtype).requires_grad_() for t in tensors]  # with their strides


def gradients_of(
    form: Callable[[Linear], Tensor], operands: Linear, g: Tensor, dtype: torch.dtype
) -> Gradients:
    """Autograd through a composition of PyTorch ops."""
    leaves = _leaves(operands, dtype)
    return list(torch.autograd.grad(form(Linear(*leaves)), leaves, g.to(dtype)))


def exact_gradients(head: Head, operands: Linear, g: Tensor) -> Gradients:
    return gradients_of(lambda o: head.exact(o.eager()), operands, g, torch.float64)


def check_gradients(op: Fused, operands: Linear, *, strict: bool = False) -> Gradients:
    """Assert the design's bound for the gradient of every operand; returns the gradients."""
    g = upstream(op, operands)
    leaves = _leaves(operands, torch.float32)
    y = op.call(*leaves)
    actual = list(torch.autograd.grad(y, leaves, g.view(y.shape)))
    truth = exact_gradients(op.head, operands, g)
    forms = eager_forms(op.head, operands)
    with full_float32():
        errors = [_relative(a, t, t) for a, t in zip(actual, truth, strict=True)]
        yardstick = _eager_errors(forms[:1], operands, g, truth, truth)
        generator = torch.Generator(g.device).manual_seed(1)
        for near in () if strict else inputs_nearby(operands, op.head, generator):
            if all(e <= 2 * y + 4 * UNIT for e, y in zip(errors, yardstick, strict=True)):
                break
            near_g = g if near is operands else upstream(op, near)
            near_truth = truth if near is operands else exact_gradients(op.head, near, near_g)
            more = _eager_errors(forms, near, near_g, near_truth, truth)
            yardstick = [max(pair) for pair in zip(yardstick, more, strict=True)]
    for name, error, eager in zip(("x", "weight", "bias"), errors, yardstick, strict=False):
        assert error <= 2 * eager + 4 * UNIT, f"grad of {name}: {error:.3e}, eager {eager:.3e}"
    return actual


def row_gradients_of(
    form: Callable[[Matrix], Tensor], operands: Matrix, g: Tensor, dtype: torch.dtype
) -> Gradients:
    """Autograd through a composition of PyTorch ops, to z and, where there is one, to the bias."""
    tensors = [operands.z] + ([] if operands.bias is None else [operands.bias])
    leaves = [t.detach().to(dtype).clone().requires_grad_() for t in tensors]
    return list(torch.autograd.grad(form(Matrix(*leaves)), leaves, g.to(dtype)))


def check_row_gradients(actual: Gradients, head: Head, operands: Matrix, g: Tensor) -> None:
    """The bound of check_gradients, and an allowance like it, for the gradients of a softmax head
    on a matrix."""
    exact: Callable[[Matrix], Tensor] = lambda o: head.exact(o.eager())  # noqa: E731
    truth = row_gradients_of(exact, operands, g, torch.float64)
    errors = [_relative(a, t, t) for a, t in zip(actual, truth, strict=True)]
    generator = torch.Generator(g.device).manual_seed(1)
    yardstick = [0.0] * len(truth)
    for run, near in enumerate(chain((operands,), inputs_nearby(operands, head, generator))):
        near_truth = truth if near is operands else row_gradients_of(exact, near, g, torch.float64)
        for form in eager_forms(head, operands)[: 2 if run else 1]:
            eager = row_gradients_of(form, near, g, torch.float32)
            found = [_relative(*ts) for ts in zip(eager, near_truth, truth, strict=True)]
            yardstick = [max(pair) for pair in zip(yardstick, found, strict=True)]
        if all(e <= 2 * y + 4 * UNIT for e, y in zip(errors, yardstick, strict=True)):
            return
    raise AssertionError(f"errors {errors} of z and bias, eager {yardstick}")


def check_sums_of_rows(dz: Tensor, g: Tensor, z: Tensor, y: Tensor) -> None:
    """dz = gelu'(z) * y * (g - sum(g * y)) with errors that average out over a row, as dx needs it.
    Independent roundings, four for an element, leave 1 rms of the bound's 8."""
    h = z.double().requires_grad_()
    (slope,) = torch.autograd.grad(gelu_exact(h).sum(), h)
    weight, terms = slope * y, g.double() * y
    exact = weight * (g - terms.sum(-1, keepdim=True))
    error = (dz.double() - exact).sum(-1).abs()
    roundings = exact.norm(dim=-1) + weight.sum(-1).abs() * terms.norm(dim=-1)
    assert bool((error <= 8 * UNIT * roundings).all()), (error / UNIT / roundings).tolist()


def _relative(actual: Tensor, truth: Tensor, norm_of: Tensor) -> float:
    assert actual.shape == truth.shape
    assert actual.isfinite().all()
    return relative_l2(actual.double() - truth, norm_of, per_row=False)


def _eager_errors(
    forms: list[Callable[[Linear], Tensor]],
    operands: Linear,
    g: Tensor,
    truth: Gradients,
    norms_of: Gradients,
) -> list[float]:
    """The largest error of any form, for each gradient."""
    errors = []
    for form in forms:
        eager = gradients_of(form, operands, g, torch.float32)
        errors.append([_relative(*tensors) for tensors in zip(eager, truth, norms_of, strict=True)])
    return [max(of_one) for of_one in zip(*errors, strict=True)]
