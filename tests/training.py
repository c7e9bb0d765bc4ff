"""Models in training: a body of two layers and either head, fused and as PyTorch has it, with data
and a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from heads import Head, pool_max_head, softmax_head
from oracle import relative_l2
from torch import Tensor, nn

from cutlass_ops.nn import LinearAvgPoolGELUScaleMax, LinearGELUSoftmax

IN, HIDDEN, OUT = 24, 40, 66
KERNEL_SIZE, SCALE = 8, 1.5  # OUT % KERNEL_SIZE is not zero


class PlainHead(nn.Linear):
    """A head of PyTorch's own ops, in float32 where autocast would have it otherwise."""

    def __init__(self, head: Head) -> None:
        super().__init__(HIDDEN, OUT)
        self.head = head

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            return self.head.eager(F.linear(input.float(), self.weight, self.bias))


@dataclass(frozen=True)
class Task:
    """A head, and what it is trained for."""

    label: str
    fused: Callable[[], nn.Linear]
    head: Head
    target: Callable[[int, torch.Generator], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]  # the mean over rows

    def __repr__(self) -> str:
        return self.label

    def model(self, device: str = "cpu", *, fused: bool = True) -> nn.Sequential:
        """The same parameters on every call."""
        state = torch.get_rng_state()
        torch.manual_seed(3)
        head = self.fused() if fused else PlainHead(self.head)
        model = nn.Sequential(nn.Linear(IN, HIDDEN), nn.ReLU(), head).to(device)
        torch.set_rng_state(state)
        return model

    def batch(self, rows: int, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, IN, generator=generator)
        return x.to(device), self.target(rows, generator).to(device)

    def gradients(
        self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], rows: int
    ) -> list[Tensor]:
        """Those of the mean loss of `rows` rows that come in batches; the model's are cleared."""
        for x, target in batches:
            (self.loss(model(x), target) * (len(x) / rows)).backward()
        return take_gradients(model)


def take_gradients(model: nn.Module) -> list[Tensor]:
    """The gradients of all parameters, which lose them."""
    grads = [p.grad for p in model.parameters()]
    model.zero_grad()
    assert all(g is not None for g in grads)
    return grads  # type: ignore[return-value]


def _nll(y: Tensor, target: Tensor) -> Tensor:
    return F.nll_loss(y.log(), target)


SOFTMAX = Task(
    "softmax",
    lambda: LinearGELUSoftmax(HIDDEN, OUT),
    softmax_head(),
    lambda rows, generator: torch.randint(OUT, (rows,), generator=generator),
    _nll,
)
POOL_MAX = Task(
    "pool_max",
    lambda: LinearAvgPoolGELUScaleMax(HIDDEN, OUT, KERNEL_SIZE, SCALE),
    pool_max_head(KERNEL_SIZE, SCALE),
    lambda rows, generator: torch.randn(rows, generator=generator),
    F.mse_loss,
)
TASKS = (SOFTMAX, POOL_MAX)


def check_near(
    actual: Iterable[Tensor], expected: Iterable[Tensor], limit: float | list[float] = 1e-5
) -> None:
    """Relative L2 distances below `limit`: another order of summation, and nothing else."""
    pairs = list(zip(actual, expected, strict=True))
    limits = limit if isinstance(limit, list) else [limit] * len(pairs)
    for index, ((a, e), most) in enumerate(zip(pairs, limits, strict=True)):
        assert a.shape == e.shape
        assert e.norm() > 0
        error = relative_l2(a.detach().double() - e.detach().double(), e.detach().double(), False)
        assert error <= most, f"tensor {index}: {error:.1e}"
