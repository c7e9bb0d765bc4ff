"""The heads that results are judged by, each in float64 and as a PyTorch user writes it in float32;
and what each name of the table of epilogues means, written down a second time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def gelu_exact(z: Tensor, approximate: str = "none") -> Tensor:
    """GELU without cancellation: z * Phi(z) by erfc, or 0.5 (1 + tanh u) written as sigmoid(2u)."""
    if approximate == "tanh":
        return z * torch.sigmoid(math.sqrt(8 / math.pi) * (z + 0.044715 * z**3))
    return 0.5 * z * torch.erfc(-z * math.sqrt(0.5))


def gelu_eager(z: Tensor, approximate: str = "none") -> Tensor:
    """PyTorch's GELU; its vectorised CPU kernel makes NaN of +inf, which would leave no yardstick
    where such a value loses the maximum."""
    return torch.where(z == math.inf, z, F.gelu(z, approximate=approximate))


@dataclass(frozen=True)
class Head:
    """What follows the linear layer: in float64, and as a PyTorch user writes it in float32.

    `candidates` is set where the output is the maximum of a row: the values it is the maximum of.
    `kernel_size` and `folded` (the head of the folded layer) are set where it starts by pooling.
    """

    exact: Callable[[Tensor], Tensor]
    eager: Callable[[Tensor], Tensor]
    per_row: bool = True
    is_softmax: bool = False
    candidates: Callable[[Tensor], Tensor] | None = None
    kernel_size: int = 1
    folded: Head | None = None


def softmax_head(approximate: str = "none", activation: bool = True) -> Head:
    def exact(z: Tensor) -> Tensor:
        return F.softmax(gelu_exact(z, approximate) if activation else z, dim=-1)

    def eager(z: Tensor) -> Tensor:
        return F.softmax(gelu_eager(z, approximate) if activation else z, dim=-1)

    return Head(exact, eager, is_softmax=True)


def pool(z: Tensor, kernel_size: int) -> Tensor:
    """Average windows of kernel_size neighbours along the last dim of a matrix; the rest is
    dropped."""
    return (
        F.avg_pool1d(z.unsqueeze(1), kernel_size).squeeze(1) if z.numel() else z[:, ::kernel_size]
    )


def pool_max_head(kernel_size: int, scale: float = 1.0, approximate: str = "none") -> Head:
    def candidates(z: Tensor) -> Tensor:
        return scale * gelu_exact(pool(z, kernel_size), approximate)

    def exact(z: Tensor) -> Tensor:
        return torch.max(candidates(z), dim=-1).values

    def eager(z: Tensor) -> Tensor:
        return torch.max(scale * gelu_eager(pool(z, kernel_size), approximate), dim=-1).values

    folded = pool_max_head(1, scale, approximate) if kernel_size > 1 else None
    return Head(
        exact, eager, per_row=False, candidates=candidates, kernel_size=kernel_size, folded=folded
    )


def plain_head(function: Callable[[Tensor], Tensor], per_row: bool = True) -> Head:
    """A head that PyTorch computes without a trap, so that truth is the same function in
    float64."""
    return Head(function, function, per_row=per_row)


def _gelu_head(approximate: str) -> Head:
    return Head(lambda z: gelu_exact(z, approximate), lambda z: gelu_eager(z, approximate))


_PLAIN = {
    "identity": plain_head(lambda z: z),
    "gelu": _gelu_head("none"),
    "gelu_tanh": _gelu_head("tanh"),
    "relu": plain_head(torch.relu),
    "row_sum": plain_head(lambda z: z.sum(-1), per_row=False),
}


def is_pooled(name: str) -> bool:
    return name.endswith("scale_max")


def head_of(name: str, params: list[float]) -> Head:
    if is_pooled(name):
        return pool_max_head(int(params[0]), params[1], "tanh" if "tanh" in name else "none")
    return _PLAIN[name]


def some_params(name: str, n: int) -> list[float]:
    """Parameters that fit n columns: windows of four, a negative scale."""
    return [4.0 if n >= 4 else 1.0, -2.0] if is_pooled(name) else []
