"""Errors against float64, ours beside PyTorch's own.

The error is the relative L2 distance from a float64 evaluation: the largest over rows for op A,
over the whole output for op B. The bound for ours is twice what eager PyTorch float32 makes on the
same input, plus 4 * 2^-24. For large shapes the rows are a random sample, which bounds the time
that float64 takes; within a row nothing is left out.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.providers import BASELINE, Call, Problem

MAX_ROWS = 64
# Rows of float64 products are evaluated in chunks of weight rows of at most this many elements.
CHUNK_ELEMENTS = 1 << 27
SLACK = 4 * 2.0**-24


def gelu(z: Tensor) -> Tensor:
    """GELU as z/2 * erfc(-z / sqrt 2), which does not cancel for negative z."""
    result: Tensor = 0.5 * z * torch.special.erfc(z * -math.sqrt(0.5))
    return result


def float64_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ in float64."""
    x = x.double()
    step = max(1, CHUNK_ELEMENTS // max(1, x.shape[1]))
    pieces = [F.linear(x, rows.double()) for rows in weight.detach().split(step)]
    return torch.cat(pieces, dim=1)


def float64_result(problem: Problem, rows: Tensor) -> Tensor:
    """`problem` evaluated in float64 at the row indices `rows`: [len(rows), n] or [len(rows)]."""
    z = float64_linear(problem.x[rows], problem.weight) + problem.bias.detach().double()
    if problem.op == "linear_gelu_softmax":
        return torch.softmax(gelu(z), dim=-1)
    windows = z.shape[1] // problem.kernel_size
    pooled = z[:, : windows * problem.kernel_size].view(len(rows), windows, -1).mean(-1)
    return (problem.scale * gelu(pooled)).amax(-1)


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Largest relative L2 error over rows of a matrix, or that of a whole vector."""
    difference = result.double() - expected
    if expected.dim() == 2:
        ratio = difference.norm(dim=-1) / expected.norm(dim=-1)
        return float(ratio.max())
    return float(difference.norm() / expected.norm())


def sample_rows(problem: Problem, seed: int) -> Tensor:
    """Indices of at most MAX_ROWS different rows of x, in rising order, on x's device."""
    m = problem.x.shape[0]
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(m, generator=generator)[:MAX_ROWS].sort().values.to(problem.x.device)


def errors(problem: Problem, calls: Mapping[str, Call], seed: int) -> dict[str, float]:
    """Relative error of every provider that computes the whole op (not `linear`)."""
    rows = sample_rows(problem, seed)
    expected = float64_result(problem, rows)
    return {
        name: relative_error(call().detach()[rows], expected)
        for name, call in calls.items()
        if name != "linear"
    }


def bound(measured: Mapping[str, float]) -> float | None:
    """The largest error allowed for ours, from PyTorch's own; None where eager was not run."""
    return 2 * measured[BASELINE] + SLACK if BASELINE in measured else None
