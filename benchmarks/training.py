"""Training: forward and backward of either head, its time, its memory, its gradients' errors.

A step is what a training loop does around the head: it sets the gradients of weight, bias and (with
dx) x to None, calls the head, and sends a fixed gradient g backward. Setting them to None is timed
with the rest, in the same way for every provider: it gives memory back to PyTorch's allocator and
no work to the GPU, and backward then keeps the gradients it makes without adding them to any. There
is no loss and no optimizer.

* **dx**: with a body in front of the head x requires grad, which is a third product of matrices.
* **flops**: 2 M N K for the forward and for each gradient of an operand of the product, by the
  definition, whatever an implementation really executes.
* **extra_bytes**: the most GPU memory allocated at any time in the step, less what was allocated
  before it (x, weight, bias, g, and workspaces that libraries keep), less what the step leaves (the
  result and the gradients). That is what is kept for backward beyond the operands, and temporaries.
  The result y counts as left, since the step holds it to the end.
* **host_us**: the host's time for a step, which launches it; a loop of steps and nothing else goes
  no faster. `times` are the GPU's: it is kept busy while the host gets AHEAD steps ahead.
* **errors**: relative L2 against float64 autograd of each gradient. In rows of the pooled maximum
  where the two best windows are nearly tied, g is zero: which one wins is a matter of rounding
  there, and moves the whole gradient of the row. Measured where the weight has at most
  MAX_EXACT_ELEMENTS.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import providers, report
from benchmarks.accuracy import SLACK, gelu
from benchmarks.providers import BASELINE, Call, Problem
from benchmarks.report import Json
from benchmarks.shapes import HEADLINE, OpName, Shape
from benchmarks.timing import Timer

GPU_SHAPES: tuple[Shape, ...] = (HEADLINE,)
CPU_SHAPES: tuple[Shape, ...] = (Shape(64, 512, 256),)
PROVIDERS = (BASELINE, "compile", "ours", "fp16x3")
MAX_EXACT_ELEMENTS = 1 << 27
NEARLY_TIED = 1e-3
AHEAD = 4  # steps, by the slowest provider's host time: the first is up to three times as slow


def suits(provider: str, dx: bool) -> bool:
    """Whether `provider` trains, and its compilation is worth the seconds: with dx alone."""
    return provider in PROVIDERS and (dx or provider != "compile")


def _head(problem: Problem, z: Tensor) -> Tensor:
    """What follows the linear part: [m, n] for A; for B the values of the windows, [m, n // k]."""
    if problem.op == "linear_gelu_softmax":
        return torch.softmax(gelu(z), dim=-1)
    pooled = F.avg_pool1d(z.unsqueeze(1), problem.kernel_size).squeeze(1)
    return problem.scale * gelu(pooled)


def _is_maximum(problem: Problem) -> bool:
    return problem.op == "linear_avgpool_gelu_scale_max"


@torch.no_grad()
def upstream(problem: Problem, seed: int) -> Tensor:
    """The gradient that the result receives: normal numbers, zero in rows that are nearly tied."""
    z = F.linear(problem.x, problem.weight, problem.bias)
    values = _head(problem, z)
    generator = torch.Generator(z.device).manual_seed(seed)
    shape = values.shape[:1] if _is_maximum(problem) else values.shape
    g = torch.randn(shape, generator=generator, device=z.device)
    if _is_maximum(problem) and values.shape[1] > 1:
        best = values.topk(2, dim=-1).values
        g *= (best[:, 0] - best[:, 1]) > NEARLY_TIED * values.abs().max()
    return g


@dataclass(frozen=True)
class Step:
    """Forward and backward of one provider; a call does both and returns the result."""

    forward: Call
    operands: Mapping[str, Tensor]  # those that require grad
    g: Tensor

    def __call__(self) -> Tensor:
        self.reset()
        y = self.forward()
        y.backward(self.g)
        return y

    def reset(self) -> None:
        """Without gradients, as before the first step."""
        for operand in self.operands.values():
            operand.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """Those of one step, which does not keep them."""
        self()
        found = {name: t.grad for name, t in self.operands.items() if t.grad is not None}
        self.reset()
        return found

    def left_bytes(self) -> int:
        """Bytes of the result and of the gradients."""
        return 4 * (self.g.numel() + sum(t.numel() for t in self.operands.values()))


def make_step(provider: str, problem: Problem, g: Tensor) -> Step:
    operands = {"x": problem.x, "weight": problem.weight, "bias": problem.bias}
    needed = {name: t for name, t in operands.items() if t.requires_grad}
    return Step(providers.make_call(provider, problem), needed, g)


def exact_gradients(problem: Problem, g: Tensor) -> dict[str, Tensor]:
    """Float64 autograd, of each operand that requires grad."""
    operands = {"x": problem.x, "weight": problem.weight, "bias": problem.bias}
    wide = {n: t.detach().double().requires_grad_(t.requires_grad) for n, t in operands.items()}
    y = _head(problem, F.linear(wide["x"], wide["weight"], wide["bias"]))
    if _is_maximum(problem):
        y = y.max(dim=-1).values
    needed = [name for name, t in wide.items() if t.requires_grad]
    found = torch.autograd.grad(y, [wide[name] for name in needed], g.double())
    return dict(zip(needed, found, strict=True))


def errors(problem: Problem, steps: Mapping[str, Step], g: Tensor) -> dict[str, dict[str, float]]:
    """{provider: {operand: relative L2 error of its gradient}}, empty for a weight too large."""
    if problem.weight.numel() > MAX_EXACT_ELEMENTS:
        return {}
    exact = exact_gradients(problem, g)
    return {
        provider: {
            name: float((grad.double() - exact[name]).norm() / exact[name].norm())
            for name, grad in step.gradients().items()
        }
        for provider, step in steps.items()
    }


def bounds(measured: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """{operand: the largest error allowed for ours}, from PyTorch's own."""
    return {name: 2 * error + SLACK for name, error in measured.get(BASELINE, {}).items()}


def extra_bytes(step: Step, timer: Timer) -> int | None:
    """See the head of this file; None on a CPU."""
    step.reset()
    peak = timer.peak_bytes(step)
    step.reset()
    return None if peak is None else peak - step.left_bytes()


def cases(ops: Iterable[OpName], shapes: Sequence[Shape]) -> list[tuple[OpName, Shape, bool]]:
    """(op, shape, dx) of every case."""
    return [(op, shape, dx) for op in ops for shape in shapes for dx in (True, False)]


def measure(problem: Problem, steps: Mapping[str, Step], g: Tensor, timer: Timer) -> Json:
    """One case without `skipped`, as `benchmarks.report` describes it; each step has run once."""
    m, k = problem.x.shape
    n, dx = problem.weight.shape[0], problem.x.requires_grad
    measured = errors(problem, steps, g)
    host = {name: timer.host_us(step) for name, step in steps.items()}
    ahead = AHEAD * max(host.values(), default=0.0)
    times = {
        cache: report.samples_json(timer.compare(steps, cache, ahead))
        for cache in timer.cache_states()
        if steps
    }
    return {
        "op": problem.op,
        "m": m,
        "n": n,
        "k": k,
        "dx": dx,
        "flops": (3 if dx else 2) * Shape(m, n, k).flops,
        "errors": measured,
        "error_bounds": bounds(measured),
        "host_us": {name: round(us, 2) for name, us in host.items()},
        "extra_bytes": {name: extra_bytes(step, timer) for name, step in steps.items()},
        "times": times,
    }
