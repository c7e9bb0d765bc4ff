"""Judging gradients: each tensor's relative L2 error against float64 autograd of the exact head."""

from __future__ import annotations

import torch
from fused import Fused
from oracle import UNIT, Head, Linear, full_float32, relative_l2
from torch import Tensor

Gradients = list[Tensor]


def upstream(op: Fused, operands: Linear, seed: int = 0) -> Tensor:
    """A gradient for the output: normal numbers, and zero for rows where the maximum is nearly
    tied.

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
    return g * ((best[:, 0] - best[:, 1]) > 1e-3 * (values.abs().max() + 1e-30))


def _leaves(operands: Linear, dtype: torch.dtype) -> list[Tensor]:
    tensors = [operands.x, operands.weight]
    tensors += [] if operands.bias is None else [operands.bias]
    return [t.detach().to(dtype).clone().requires_grad_() for t in tensors]


def composed_gradients(
    head: Head, operands: Linear, g: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Gradients]:
    """Autograd through the exact head in float64, or through eager PyTorch in float32."""
    leaves = _leaves(operands, dtype)
    y = (head.exact if dtype == torch.float64 else head.eager)(Linear(*leaves).eager())
    return y, list(torch.autograd.grad(y, leaves, g.to(dtype)))


def check_gradients(op: Fused, operands: Linear, *, strict: bool = False) -> Gradients:
    """Assert the design's bound for the gradient of every operand; returns the gradients."""
    g = upstream(op, operands)
    leaves = _leaves(operands, torch.float32)
    y = op.call(*leaves)
    actual = list(torch.autograd.grad(y, leaves, g.view(y.shape)))
    _, truth = composed_gradients(op.head, operands, g, torch.float64)
    with full_float32():
        yardstick = _errors(op, operands, g, truth)
        errors = [_relative(a, t) for a, t in zip(actual, truth, strict=True)]
        generator = torch.Generator(g.device).manual_seed(1)
        for _ in range(0 if strict else 24):
            if all(e <= 2 * y + 4 * UNIT for e, y in zip(errors, yardstick, strict=True)):
                break
            near = operands.nearby(generator)
            near_g = upstream(op, near)
            _, near_truth = composed_gradients(op.head, near, near_g, torch.float64)
            pairs = zip(yardstick, _errors(op, near, near_g, near_truth), strict=True)
            yardstick = [max(pair) for pair in pairs]
    for name, error, eager in zip(("x", "weight", "bias"), errors, yardstick, strict=False):
        assert error <= 2 * eager + 4 * UNIT, f"grad of {name}: {error:.3e}, eager {eager:.3e}"
    return actual


def _relative(actual: Tensor, truth: Tensor) -> float:
    assert actual.shape == truth.shape
    assert actual.isfinite().all()
    return relative_l2(actual.double() - truth, truth, per_row=False)


def _errors(op: Fused, operands: Linear, g: Tensor, truth: Gradients) -> list[float]:
    _, eager = composed_gradients(op.head, operands, g, torch.float32)
    return [_relative(a, t) for a, t in zip(eager, truth, strict=True)]
