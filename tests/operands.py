"""What a head is applied to: the product of a linear layer, or a matrix that is already there, each
in float64, in eager float32, and as inputs nearby."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Linear:
    """Operands of x @ weight.T + bias, x seen as a matrix."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None

    def _matrix(self) -> Tensor:
        return self.x.reshape(math.prod(self.x.shape[:-1]), self.x.shape[-1])

    def exact(self) -> Tensor:
        bias = None if self.bias is None else self.bias.double()
        return F.linear(self._matrix().double(), self.weight.double(), bias)

    def eager(self, chunks: int = 1) -> Tensor:
        """F.linear in float32, K cut into chunks whose products are added one after another.

        On x as it is: with more dims or other strides PyTorch takes another kernel.
        """
        x, weight = self.x.chunk(chunks, -1), self.weight.chunk(chunks, 1)
        z = F.linear(x[0], weight[0], self.bias)
        for a, b in zip(x[1:], weight[1:], strict=True):
            z = z + F.linear(a, b)
        return z.reshape(math.prod(z.shape[:-1]), z.shape[-1])

    def eager_transposed(self) -> Tensor:
        """On dense copies and as weight @ x.T: another kernel of the BLAS, in backward too."""
        z = (self.weight.contiguous() @ self._matrix().contiguous().t()).t()
        return z if self.bias is None else z + self.bias

    def fold(self, kernel_size: int) -> Linear:
        """The layer whose outputs are the averages of windows, pooling being linear."""
        weight = _window_means(self.weight, kernel_size)
        return Linear(
            self.x, weight, None if self.bias is None else _window_means(self.bias, kernel_size)
        )

    def at_risk(self, limit: float) -> Tensor:
        """Rows in which the finite terms of some sum are large enough to overflow float32."""
        x, weight = _finite_magnitude(self._matrix()), _finite_magnitude(self.weight)
        bias = None if self.bias is None else _finite_magnitude(self.bias)
        worst = _largest(x) * _largest(weight) * max(x.shape[1], 1) + _largest(bias)
        if worst <= limit:
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return (F.linear(x, weight, bias) > limit).any(dim=-1)

    def nearby(self, generator: torch.Generator, window: int) -> Linear:
        """The same kind of input: terms in another order, those of a window's mean among them, x
        and bias moved by a thousandth."""
        order = torch.randperm(self.x.shape[-1], generator=generator, device=self.x.device)
        columns = _shuffled_windows(len(self.weight), window, generator)
        bias = None if self.bias is None else _jitter(self.bias[columns], generator)
        x = _jitter(self._matrix()[:, order], generator)
        return Linear(x, self.weight[columns[:, None], order], bias)


@dataclass(frozen=True)
class Matrix:
    """Operands of the parts that start from a matrix which is already there: z + bias."""

    z: Tensor
    bias: Tensor | None = None

    def _sum(self, z: Tensor, bias: Tensor | None) -> Tensor:
        z = z.reshape(math.prod(z.shape[:-1]), z.shape[-1])
        return z if bias is None else z + bias

    def exact(self) -> Tensor:
        return self._sum(self.z.double(), None if self.bias is None else self.bias.double())

    def eager(self) -> Tensor:
        return self._sum(self.z, self.bias)

    def at_risk(self, limit: float) -> Tensor:
        bias = None if self.bias is None else _finite_magnitude(self.bias)
        return (self._sum(_finite_magnitude(self.z), bias) > limit).any(dim=-1)

    def nearby(self, generator: torch.Generator, window: int) -> Matrix:
        columns = _shuffled_windows(self.z.shape[-1], window, generator)
        z, bias = self.z[..., columns], None if self.bias is None else self.bias[columns]
        return Matrix(_jitter(z, generator), bias)


def _shuffled_windows(columns: int, window: int, generator: torch.Generator) -> Tensor:
    """All columns, those of every window in another order, the same for all."""
    order = torch.arange(columns, device=generator.device)
    whole = columns // window * window
    within = torch.randperm(window, generator=generator, device=generator.device)
    return torch.cat([order[:whole].view(-1, window)[:, within].flatten(), order[whole:]])


def _window_means(rows: Tensor, kernel_size: int) -> Tensor:
    windows = len(rows) // kernel_size
    return rows[: windows * kernel_size].unflatten(0, (windows, kernel_size)).mean(1)


def _finite_magnitude(t: Tensor) -> Tensor:
    return t.double().abs().nan_to_num(nan=0.0, posinf=0.0)


def _largest(t: Tensor | None) -> float:
    return 0.0 if t is None or t.numel() == 0 else float(t.max())


def _jitter(t: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.rand(t.shape, generator=generator, device=t.device, dtype=t.dtype) - 0.5
    return t * (1 + noise * 2.0**-9)
