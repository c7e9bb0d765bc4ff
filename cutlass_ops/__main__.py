"""The demo, ``python -m cutlass_ops``: both ops on random input, against PyTorch eager.

Errors are relative L2 against float64 (over each row for op A, the worst row counts; over the
whole output for op B). An op passes if its error is at most twice that of eager PyTorch float32 on
the same input, plus 4 * 2^-24. Exit code 1 if an op fails.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import cutlass_ops

KERNEL_SIZE = 16
SCALE = 2.0
SLACK = 4 * 2.0**-24
# (M, N, K). On a CPU the headline size would take minutes and say nothing about the kernels.
GPU_SHAPE = (1024, 8192, 8192)
CPU_SHAPE = (128, 1024, 1024)

_Head = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Measured:
    """One implementation of one op on the demo's input."""

    name: str
    error: float
    milliseconds: float


def eager_softmax(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Op A as PyTorch says it."""
    return torch.softmax(F.gelu(F.linear(x, weight, bias)), dim=-1)


def eager_max(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Op B as PyTorch says it."""
    pooled = F.avg_pool1d(F.linear(x, weight, bias).unsqueeze(1), KERNEL_SIZE).squeeze(1)
    largest: Tensor = torch.max(SCALE * F.gelu(pooled), dim=-1).values
    return largest


def relative_error(result: Tensor, exact: Tensor) -> float:
    """Relative L2 error: the worst row of a matrix, or that of a vector."""
    difference = torch.linalg.vector_norm(result.double() - exact, dim=-1)
    ratio: Tensor = difference / torch.linalg.vector_norm(exact, dim=-1)
    return float(ratio.max())


def median_milliseconds(run: Callable[[], Tensor], device: torch.device) -> float:
    """Median time of one call after warming up; CUDA events on a GPU."""
    for _ in range(3):
        run()
    if device.type != "cuda":
        times = []
        for _ in range(15):
            begin = time.perf_counter()
            run()
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)
    pairs = []
    for _ in range(25):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize(device)
    return statistics.median(float(start.elapsed_time(end)) for start, end in pairs)


def measure(
    name: str, head: _Head, exact: Tensor, operands: tuple[Tensor, Tensor, Tensor]
) -> Measured:
    """Error and time of one implementation."""
    error = relative_error(head(*operands), exact)
    return Measured(name, error, median_milliseconds(lambda: head(*operands), exact.device))


def compare(
    title: str, eager: _Head, ours: dict[str, _Head], operands: tuple[Tensor, Tensor, Tensor]
) -> list[Measured]:
    """Run eager and ours, print one line each, and return what was measured, eager first."""
    exact = eager(*(operand.double() for operand in operands))
    rows = [measure("PyTorch eager", eager, exact, operands)]
    rows += [measure(name, head, exact, operands) for name, head in ours.items()]
    print(f"\n{title}")
    print(f"  {'':<24}{'error':>12}{'time':>14}{'speedup':>10}")
    for row in rows:
        speedup = rows[0].milliseconds / row.milliseconds
        print(f"  {row.name:<24}{row.error:>12.2e}{row.milliseconds:>11.3f} ms{speedup:>9.2f}x")
    return rows


def verdict(op: str, rows: list[Measured]) -> bool:
    """Print the worst of our errors beside the bound, and whether it holds."""
    bound = 2.0 * rows[0].error + SLACK
    error = max(row.error for row in rows[1:])
    passed = error <= bound
    print(f"{op}: error {error:.2e}, bound {bound:.2e}: {'PASS' if passed else 'FAIL'}")
    return passed


def choose_device(wanted: str) -> torch.device:
    """The device the demo runs on, with a line about why."""
    if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()):
        device = torch.device("cuda", torch.cuda.current_device())
        print(f"running on {device}, {torch.cuda.get_device_name(device)}")
        return device
    why = "as asked for" if wanted == "cpu" else "no CUDA device is visible"
    print(
        f"running on the CPU ({why}): a smaller size, on the plain PyTorch reference;\n"
        f"the errors are real, the times say nothing about the CUDA kernels"
    )
    return torch.device("cpu")


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 if both ops pass, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m cutlass_ops", description=__doc__)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no CUDA device")

    print(cutlass_ops.show_config(), end="\n\n")
    device = choose_device(options.device)
    m, n, k = GPU_SHAPE if device.type == "cuda" else CPU_SHAPE
    print(f"x [{m}, {k}], weight [{n}, {k}], bias [{n}], float32, seed {options.seed}")
    torch.manual_seed(options.seed)
    linear = torch.nn.Linear(k, n)
    operands = (
        torch.randn(m, k).to(device),
        linear.weight.detach().to(device),
        linear.bias.detach().to(device),
    )
    packed = cutlass_ops.pack_linear(operands[1], operands[2], kernel_size=KERNEL_SIZE)
    with torch.no_grad():
        rows_a = compare(
            "linear_gelu_softmax: softmax(gelu(linear(x)))",
            eager_softmax,
            {"cutlass_ops": cutlass_ops.linear_gelu_softmax},
            operands,
        )
        rows_b = compare(
            f"linear_avgpool_gelu_scale_max: max({SCALE} * gelu(avg_pool(linear(x), "
            f"{KERNEL_SIZE})))",
            eager_max,
            {
                "cutlass_ops": lambda x, w, b: cutlass_ops.linear_avgpool_gelu_scale_max(
                    x, w, b, kernel_size=KERNEL_SIZE, scale=SCALE
                ),
                "cutlass_ops, packed": lambda x, w, b: cutlass_ops.linear_avgpool_gelu_scale_max(
                    x, packed, scale=SCALE
                ),
            },
            operands,
        )
    print("\nrelative L2 error against float64; bound: twice that of eager, plus 4 * 2^-24")
    passed_a = verdict("linear_gelu_softmax", rows_a)
    passed_b = verdict("linear_avgpool_gelu_scale_max", rows_b)
    return 0 if passed_a and passed_b else 1


if __name__ == "__main__":
    sys.exit(main())
