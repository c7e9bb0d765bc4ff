"""Winners of rows, and the gradients that reach them, in float64."""

from __future__ import annotations

import torch
from heads import gelu_exact
from torch import Tensor


def definition(z: Tensor, kernel_size: int, scale: float, approximate: str) -> list[Tensor]:
    """Maximum, first index and slope of each row, in float64."""
    h = z.double()[:, : z.shape[1] // kernel_size * kernel_size]
    h = h.unflatten(1, (-1, kernel_size)).mean(2).requires_grad_()
    best = (scale * gelu_exact(h, approximate)).max(1)
    (slope,) = torch.autograd.grad(best.values.sum(), h)
    return [best.values.detach(), best.indices, slope.gather(1, best.indices[:, None]).squeeze(1)]


def dense_gradients(
    c: Tensor, index: Tensor, x: Tensor, weight: Tensor, weight_rows: int, kernel_size: int
) -> list[Tensor]:
    """The products with the matrix that is zero but for one column a row, in float64."""
    matrix = torch.zeros(len(x), len(weight), dtype=torch.float64, device=x.device)
    matrix[torch.arange(len(x), device=x.device), index.long()] = c
    sums = [matrix.t() @ x.double(), matrix.sum(0)]
    spread = [(s / kernel_size).repeat_interleave(kernel_size, 0) for s in sums]
    rest = weight_rows - kernel_size * len(weight)
    return [
        matrix @ weight.double(),
        *(torch.cat((s, s.new_zeros(rest, *s.shape[1:]))) for s in spread),
    ]
