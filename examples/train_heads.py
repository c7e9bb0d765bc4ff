"""Trains a small model with either head in plain PyTorch and with cutlass_ops, and compares.

Run it: `python examples/train_heads.py --head softmax` or `--head max`. The model is a linear
layer, a ReLU and the head; both runs start from the same weights and see the same batches in the
same order, which the program makes up itself:

* `softmax`: up to 256 classes, points around a centre for each; the head gives probabilities, and
  the loss is their negative log-likelihood.
* `max`: the largest of 16 fixed linear functions of a point; the head gives that maximum, and the
  loss is the mean squared error.

Prints steps per second and losses, and plots both loss curves. It needs matplotlib and tqdm.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from compare import pick_device
from torch import Tensor, nn
from tqdm import tqdm

import cutlass_ops

KERNEL_SIZE, SCALE = 16, 2.0
# How far apart the curves may be, as a share of the first loss. Two float32 runs of one model
# differ by rounding, and each step builds on the one before; where a maximum goes to another
# column, its whole gradient does. Plain PyTorch is up to 3e-3 from itself after 150 steps if its
# first weights change by one part in a million. A wrong gradient is off by tenths.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Sizes:
    batch: int
    features: int
    hidden: int
    outputs: int


GPU_SIZES = Sizes(1024, 256, 4096, 4096)
CPU_SIZES = Sizes(128, 64, 256, 128)


class PlainSoftmax(nn.Linear):
    """softmax(gelu(linear(x)))"""

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(F.gelu(super().forward(input)), dim=-1)


class PlainMax(nn.Linear):
    """max(scale * gelu(avg_pool(linear(x))))"""

    def forward(self, input: Tensor) -> Tensor:
        z = super().forward(input).unsqueeze(1)
        pooled = F.avg_pool1d(z, KERNEL_SIZE).squeeze(1)
        return (SCALE * F.gelu(pooled)).max(dim=-1).values


def make_models(
    head: str, sizes: Sizes, precision: str | None, device: torch.device
) -> dict[str, nn.Module]:
    """Both models, with the same weights."""
    shape = (sizes.hidden, sizes.outputs)
    plain: nn.Module
    fused: nn.Module
    if head == "softmax":
        plain = PlainSoftmax(*shape)
        fused = cutlass_ops.nn.LinearGELUSoftmax(*shape, precision=precision)
    else:
        plain = PlainMax(*shape)
        fused = cutlass_ops.nn.LinearAvgPoolGELUScaleMax(
            *shape, KERNEL_SIZE, SCALE, precision=precision
        )
    models: dict[str, nn.Module] = {
        name: nn.Sequential(nn.Linear(sizes.features, sizes.hidden), nn.ReLU(), last).to(device)
        for name, last in (("PyTorch", plain), ("cutlass_ops", fused))
    }
    models["cutlass_ops"].load_state_dict(models["PyTorch"].state_dict())
    return models


class Data:
    """Batches, each a function of its number."""

    def __init__(self, head: str, sizes: Sizes, device: torch.device) -> None:
        self.head, self.sizes, self.device = head, sizes, device
        generator = torch.Generator(device).manual_seed(0)
        rows = min(256, sizes.outputs) if head == "softmax" else 16
        self.centres = torch.randn(rows, sizes.features, generator=generator, device=device)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Points [batch, features], and their classes or values [batch]."""
        generator = torch.Generator(self.device).manual_seed(1 + step)
        size = (self.sizes.batch, self.sizes.features)
        x = torch.randn(size, generator=generator, device=self.device)
        if self.head == "softmax":
            label = torch.randint(len(self.centres), size[:1], generator=generator, device=x.device)
            return x + self.centres[label], label
        return x, (x @ self.centres.t()).amax(-1) / self.sizes.features**0.5


def loss_of(head: str) -> Callable[[Tensor, Tensor], Tensor]:
    if head == "softmax":
        return lambda y, label: F.nll_loss(y.clamp_min(1e-30).log(), label)
    return F.mse_loss


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train(
    name: str, model: nn.Module, data: Data, loss: Callable[[Tensor, Tensor], Tensor], steps: int
) -> tuple[list[float], float]:
    """The loss before each step, and steps per second; the first, which sets things up, apart."""
    # A step of Adam moves an output by the learning rate for each hidden unit.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 / data.sizes.hidden)
    losses: list[Tensor] = []
    start = 0.0
    for step in tqdm(range(steps), desc=f"{name:11}", unit="step", dynamic_ncols=True):
        if step == 1:
            wait_for(data.device)
            start = time.perf_counter()
        x, target = data.batch(step)
        value = loss(model(x), target)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.detach())  # read at the end: to read one is to wait for the GPU
    wait_for(data.device)
    rate = (steps - 1) / (time.perf_counter() - start)
    return torch.stack(losses).tolist(), rate


def plot(curves: dict[str, list[float]], title: str, path: Path) -> None:
    """The loss curves, one drawn through the other, and their difference."""
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(7, 6), layout="constrained")
    (first, plain), (second, fused) = curves.items()
    above.plot(plain, color="#7f7f7f", linewidth=4, alpha=0.5, label=first)
    above.plot(fused, color="#2b7bba", linewidth=1, label=second)
    above.set_ylabel("loss")
    above.set_title(title, fontsize=10)
    above.legend()
    below.plot([abs(a - b) for a, b in zip(plain, fused, strict=True)], color="#d1495b")
    below.set_yscale("log")
    below.set_ylabel("difference of the losses")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    """Train both models and compare them; SystemExit where the curves do not agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--head", choices=("softmax", "max"), default="softmax")
    parser.add_argument("--steps", type=int, default=300, help="at least 2")
    parser.add_argument("--device", type=torch.device, default=pick_device())
    parser.add_argument("--precision", choices=cutlass_ops.precision.MODES, help="of cutlass_ops")
    parser.add_argument("--output", type=Path, default=Path("loss.png"), metavar="PNG")
    args = parser.parse_args(argv)
    if args.steps < 2:
        parser.error("--steps must be at least 2")
    device: torch.device = args.device
    sizes = CPU_SIZES if device.type == "cpu" else GPU_SIZES
    torch.manual_seed(0)
    models = make_models(args.head, sizes, args.precision, device)
    data, loss = Data(args.head, sizes, device), loss_of(args.head)
    results = {name: train(name, m, data, loss, args.steps) for name, m in models.items()}
    curves = {name: losses for name, (losses, _) in results.items()}
    title = f"{args.head}: {sizes.batch} x {sizes.features} -> {sizes.hidden} -> {sizes.outputs}"
    plot(curves, f"{title}, {device}", args.output)

    print(f"{title} on {device}, {args.steps} steps")
    print(f"{'':12}{'steps/s':>10}{'first loss':>12}{'last loss':>12}")
    for name, (losses, rate) in results.items():
        print(f"{name:12}{rate:10.1f}{losses[0]:12.5f}{losses[-1]:12.5f}")
    plain, fused = curves.values()
    apart = max(abs(a - b) for a, b in zip(plain, fused, strict=True)) / plain[0]
    print(f"The curves differ by at most {apart:.1e} of the first loss (allowed: {TOLERANCE}).")
    print(f"wrote {args.output}")
    if not apart <= TOLERANCE:
        raise SystemExit("the two models do not train alike")


if __name__ == "__main__":
    main()
