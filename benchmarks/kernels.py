"""Every kernel and number of splits beside the estimate of the cost model.

    python -m benchmarks.kernels
    python -m benchmarks.kernels --shapes 512x4096x4096 --output kernels.json

The model (`csrc/cost_model.cpp`) chooses by these estimates; its constants, and the rates in
`csrc/kernel_table.h`, are fitted to what this prints. `GELU(x Wᵀ + b)` with a cold L2, and cuBLAS's
linear, alone, in the same rounds.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from tqdm import tqdm

from benchmarks import shapes, timing
from benchmarks.providers import Call
from benchmarks.shapes import Shape
from cutlass_ops import _library, plans
from cutlass_ops.schemas import OPS

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
# Plans that are estimated to be so much slower than the best one are not timed.
SLOWEST = 1.5


def best_plan(shape: Shape, gpu: plans.Gpu) -> plans.Plan:
    """The plan of the mode "fp16x3", which has the kernels of "ieee" too, for dense rows."""
    aligned = shape.k % 4 == 0
    return plans.linear_plan("gelu", (), shape.m, shape.n, shape.k, gpu, 1, True, x_aligned=aligned)


def candidates(shape: Shape, gpu: plans.Gpu) -> Iterator[tuple[str, plans.Plan]]:
    """Kernel names and plans that can run `shape`, in either mode, and are not hopeless."""
    best = best_plan(shape, gpu)
    for kernel in _library.build_info()["kernels"]:
        for splits in SPLITS:
            try:
                found = OPS._plan_for("gelu", [], shape.m, shape.n, shape.k, gpu, kernel, splits)
            except RuntimeError:  # it cannot run this shape
                continue
            plan = plans.Plan(*found)
            if plan.nanoseconds <= SLOWEST * best.nanoseconds:
                yield kernel, plan


def measure(shape: Shape, timer: timing.Timer, gpu: plans.Gpu) -> list[dict[str, Any]]:
    """One entry for each candidate, the fastest first, and one for cuBLAS."""
    x = torch.randn(shape.m, shape.k, device=timer.device)
    weight = torch.randn(shape.n, shape.k, device=timer.device)
    bias = torch.randn(shape.n, device=timer.device)
    out = torch.empty(shape.m, shape.n, device=timer.device)
    found = {f"{kernel} / {plan.splits}": plan for kernel, plan in candidates(shape, gpu)}
    most = max(plan.workspace for plan in found.values())
    workspace = torch.empty(most, device=timer.device)

    def run(plan: plans.Plan) -> torch.Tensor:
        OPS._linear_epilogue(x, weight, bias, "gelu", [], *plan[:2], workspace, out)
        return out

    calls: dict[str, Call] = {"cublas linear": partial(F.linear, x, weight, bias)}
    for name, candidate in found.items():
        try:
            run(candidate)
        except RuntimeError as error:
            if "16-byte aligned" not in str(error):  # rows of x that this kernel cannot load
                raise
        else:
            calls[name] = partial(run, candidate)
    chosen = best_plan(shape, gpu)
    entries = []
    for name, samples in timer.compare(calls, "cold").items():
        plan = found.get(name)
        entries.append(
            {
                "kernel": name,
                "us": samples.median,
                "estimate_us": None if plan is None else plan.nanoseconds / 1e3,
                "chosen": plan == chosen,
            }
        )
    return sorted(entries, key=lambda entry: float(entry["us"]))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shapes", metavar="MxNxK,...", help="these shapes in place of the table")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each shape")
    parser.add_argument("--output", type=Path, metavar="JSON")
    arguments = parser.parse_args(argv)
    chosen = (
        [shapes.parse_shape(text) for text in arguments.shapes.split(",")]
        if arguments.shapes
        else shapes.GPU_SHAPES
    )
    device = torch.device("cuda", torch.cuda.current_device())
    timer = timing.Timer(device, arguments.seconds)
    gpu = plans.gpu(device.index)
    document = {}
    for shape in tqdm(chosen, unit="shape"):
        document[str(shape)] = measure(shape, timer, gpu)
        tqdm.write(f"{shape}")
        for entry in document[str(shape)]:
            estimate = entry["estimate_us"]
            told = "" if estimate is None else f"estimated {estimate:9.1f}"
            mark = "  <- chosen" if entry["chosen"] else ""
            tqdm.write(f"  {entry['kernel']:28} {entry['us']:9.1f} us  {told}{mark}")
    if arguments.output:
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
