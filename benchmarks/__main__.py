"""Command line of the benchmarks.

    python -m benchmarks                     everything, about 6 minutes on an H200
    python -m benchmarks --quick             the headline shape and 1 and 16 rows
    python -m benchmarks --shapes 512x4096x4096 --ops A --providers eager,ours
    python -m benchmarks --training only     forward and backward alone, about a minute
    python -m benchmarks --plot bench_out/nvidia-h200.json

Writes OUTPUT/<device>.json (schema in `benchmarks.report`) and PNG plots beside it. Without a GPU
it runs small shapes on the CPU, where `ours` is the plain-PyTorch reference implementation.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm import tqdm

import cutlass_ops
from benchmarks import (
    accuracy,
    environment,
    plots,
    providers,
    report,
    shapes,
    timing,
    training,
    training_report,
)
from benchmarks.providers import PROVIDERS, Call, Part
from benchmarks.shapes import OPS, SHORT_NAMES, OpName, Shape

Json = dict[str, Any]
AnyCall = TypeVar("AnyCall", bound=Call)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=Path("bench_out"), metavar="DIR")
    parser.add_argument("--plot", type=Path, metavar="JSON", help="plot a saved run and stop")
    parser.add_argument("--quick", action="store_true", help="few shapes, under 90 s")
    parser.add_argument("--shapes", metavar="MxNxK,...", help="these shapes in place of the table")
    parser.add_argument("--ops", default="A,B", help="of A,B (default: both)")
    parser.add_argument("--providers", metavar="NAME,...", help=f"of {', '.join(PROVIDERS)}")
    parser.add_argument(
        "--grad",
        choices=("some", "on", "off", "both"),
        default="some",
        help="parameters that require grad: at the headline shape and 1 and 16 rows as well as off "
        "(some, the default), at every shape (both), or only one of the modes",
    )
    parser.add_argument("--kernel-size", type=int, default=16, help="pooling of op B")
    parser.add_argument("--scale", type=float, default=2.0, help="scale of op B")
    parser.add_argument("--device", help="default: cuda if there is one, else cpu")
    parser.add_argument("--seconds", type=float, help="time for each comparison (default 0.6)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-parts", action="store_true", help="without softmax and folding alone")
    parser.add_argument("--no-growth", action="store_true", help="without the sweeps of M, N and K")
    parser.add_argument(
        "--training",
        choices=("auto", "only", "no"),
        default="auto",
        help="forward and backward: with the whole benchmark (auto, the default), nothing else "
        "(only; at the headline shape or --shapes), or not at all",
    )
    return parser.parse_args(argv)


class Run:
    """One run of the benchmarks: its options, the timer, and the document it fills."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        default = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(args.device or default)
        self.small = self.device.type != "cuda"
        seconds = args.seconds or (0.1 if self.small else 0.4 if args.quick else 0.6)
        self.timer = timing.Timer(self.device, seconds)
        self.growth_timer = timing.Timer(self.device, seconds / 4)
        self.ops: list[OpName] = [op for op in OPS if SHORT_NAMES[op] in args.ops.split(",")]
        self.notes: list[str] = []
        self.providers = self._chosen_providers()
        if not self.ops or not self.providers:
            raise ValueError(f"nothing to do for --ops {args.ops} --providers {args.providers}")
        self.results: Json = {
            "schema": report.SCHEMA,
            "environment": environment.describe(self.device),
            "settings": {
                "argv": ["DIR" if a == str(args.output) else a for a in sys.argv[1:]],
                "seconds": seconds,
                "seed": args.seed,
                "kernel_size": args.kernel_size,
                "scale": args.scale,
                "notes": self.notes,
            },
            "copy_gbs": None,
            "cases": [],
            "growth": [],
            "parts": [],
            "training": [],
        }

    def _chosen_providers(self) -> list[str]:
        """Those asked for, or all that have kernels for the device."""
        if self.args.providers is not None:
            return [p for p in PROVIDERS if p in self.args.providers.split(",")]
        if self.small or environment.has_fp16x3(self.device):
            return list(PROVIDERS)
        self.notes.append("without fp16x3, for which this GPU has no kernel")
        return [p for p in PROVIDERS if p not in providers.FP16X3]

    def shapes(self) -> Sequence[Shape]:
        """The shapes asked for, or those that suit the device."""
        if self.args.shapes:
            return [shapes.parse_shape(text) for text in self.args.shapes.split(",")]
        if self.small:
            return shapes.CPU_SHAPES
        return shapes.QUICK_SHAPES if self.args.quick else shapes.GPU_SHAPES

    def cases(self) -> list[tuple[OpName, Shape, bool]]:
        """(op, shape, grad) of every op case, op by op."""
        return [
            (op, shape, grad)
            for op in self.ops
            for grad in (False, True)
            for shape in self.shapes()
            if self._wanted(shape, grad)
        ]

    def _wanted(self, shape: Shape, grad: bool) -> bool:
        mode: str = self.args.grad
        if mode == "some":
            return not grad or self.small or shape in shapes.GRAD_SHAPES
        return mode == "both" or (mode == "on") == grad

    def _case_providers(self, shape: Shape, grad: bool) -> list[str]:
        names = [p for p in self.providers if not (grad and p in providers.FORWARD_ONLY)]
        if self.args.shapes is not None:
            return names
        return [p for p in names if providers.suits(p, shape, quick=self.args.quick)]

    def _ready(
        self, names: Iterable[str], make: Callable[[str], AnyCall]
    ) -> tuple[dict[str, AnyCall], Json]:
        """The calls that work, each run once, and {provider: why} of those that do not."""
        calls: dict[str, AnyCall] = {}
        skipped: Json = {}
        for name in names:
            try:
                call = make(name)
                call()
            except Exception as error:
                # A provider that fails is a result to show, not a reason to lose the others'.
                skipped[name] = report.failure(error)
            else:
                calls[name] = call
        return calls, skipped

    def op_case(self, op: OpName, shape: Shape, grad: bool) -> Json:
        """Measure one op at one shape in one grad mode."""
        torch.compiler.reset()
        problem = self._problem(op, shape, grad)
        with torch.set_grad_enabled(grad):
            calls, skipped = self._ready(
                self._case_providers(shape, grad), lambda name: providers.make_call(name, problem)
            )
            errors = accuracy.errors(problem, calls, self.args.seed)
            times = {
                cache: report.samples_json(self.timer.compare(calls, cache))
                for cache in self.timer.cache_states()
                if calls
            }
            peak = {name: self.timer.peak_bytes(call) for name, call in calls.items()}
            host = {name: round(self.timer.host_us(call), 2) for name, call in calls.items()}
        self._note_failures(op, shape, skipped)
        return {
            "op": op,
            "m": shape.m,
            "n": shape.n,
            "k": shape.k,
            "grad": grad,
            "flops": shape.flops,
            "least_bytes": shape.least_bytes(op),
            "errors": errors,
            "error_bound": accuracy.bound(errors),
            "host_us": host,
            "peak_bytes": peak,
            "skipped": skipped,
            "times": times,
        }

    def growth_case(self, op: OpName, dim: str, shape: Shape) -> Json:
        """Measure one point of a sweep: eager and ours, with fewer rounds. On a GPU with a cold L2,
        so that the host's pace, which varies more than a cliff is high, plays no part."""
        problem = self._problem(op, shape, grad=False)
        names = [p for p in self.providers if p in ("eager", "ours")]
        with torch.no_grad():
            calls, skipped = self._ready(names, lambda name: providers.make_call(name, problem))
            cache = self.growth_timer.cache_states()[-1]
            times = {cache: report.samples_json(self.growth_timer.compare(calls, cache))}
        self._note_failures(op, shape, skipped)
        return {
            "dim": dim,
            "op": op,
            "m": shape.m,
            "n": shape.n,
            "k": shape.k,
            "skipped": skipped,
            "times": times,
        }

    def training_case(self, op: OpName, shape: Shape, dx: bool) -> Json:
        """Measure forward and backward of one op at one shape."""
        torch.compiler.reset()
        problem = self._problem(op, shape, grad=True)
        problem.x.requires_grad_(dx)
        g = training.upstream(problem, self.args.seed)
        names = [p for p in self.providers if training.suits(p, dx)]
        steps, skipped = self._ready(names, lambda name: training.make_step(name, problem, g))
        self._note_failures(op, shape, skipped)
        return {**training.measure(problem, steps, g, self.timer), "skipped": skipped}

    def training_cases(self) -> list[tuple[OpName, Shape, bool]]:
        """(op, shape, dx) of every training case that was asked for."""
        args = self.args
        if args.training == "no" or (args.training == "auto" and (args.quick or args.shapes)):
            return []
        given = training.CPU_SHAPES if self.small else training.GPU_SHAPES
        return training.cases(self.ops, self.shapes() if args.shapes else given)

    def _note_failures(self, op: OpName, shape: Shape, skipped: Json) -> None:
        self.notes += [f"{op} at {shape}: {name} failed: {why}" for name, why in skipped.items()]

    def part_case(self, part: Part) -> Json:
        """Measure one memory-bound part."""
        with torch.no_grad():
            for call in part.calls.values():
                call()
            times = {
                cache: report.samples_json(self.timer.compare(part.calls, cache))
                for cache in self.timer.cache_states()
            }
        return {
            "name": part.name,
            "size": part.size,
            "moved_bytes": part.moved_bytes,
            "times": times,
        }

    def parts(self) -> Iterable[Part]:
        """The parts, made one at a time since the larger ones take a gigabyte."""
        if self.small:
            yield providers.softmax_part(64, 1024, self.device)
            yield providers.gelu_softmax_part(64, 1024, self.device)
            yield providers.fold_part(512, 512, 16, self.device)
            return
        for length in shapes.SOFTMAX_LENGTHS:
            yield providers.softmax_part(shapes.SOFTMAX_ELEMENTS // length, length, self.device)
        yield providers.softmax_part(1024, 8192, self.device)
        yield providers.gelu_softmax_part(1024, 8192, self.device)
        yield providers.gelu_softmax_part(16384, 8192, self.device)
        yield providers.fold_part(8192, 8192, 16, self.device)

    def _problem(self, op: OpName, shape: Shape, grad: bool) -> providers.Problem:
        return providers.make_problem(
            op,
            shape,
            device=self.device,
            grad=grad,
            kernel_size=self.args.kernel_size,
            scale=self.args.scale,
            seed=self.args.seed,
        )

    def everything(self) -> Json:
        """Run all that was asked for and return the document."""
        if self.small:
            self.notes.append(
                "on the CPU, where `ours` is the plain-PyTorch reference; small shapes"
            )
        self.results["copy_gbs"] = timing.copy_bandwidth(self.timer)
        if self.args.training != "only":
            self._forward()
        for op, shape, dx in _progress(self.training_cases(), "training"):
            self.results["training"].append(self.training_case(op, shape, dx))
        return self.results

    def _forward(self) -> None:
        """All but training."""
        args, document = self.args, self.results
        if not args.shapes and "compile" in self.providers:
            where = (
                "nowhere (--quick)" if args.quick else ", ".join(map(str, shapes.COMPILE_SHAPES))
            )
            if not self.small:
                self.notes.append(f"torch.compile, at seconds per shape, was measured at: {where}")
        for op, shape, grad in _progress(self.cases(), "ops"):
            document["cases"].append(self.op_case(op, shape, grad))
        both = {"eager", "ours"} <= set(self.providers)
        if not (args.no_growth or args.quick or args.shapes) and both:
            sweeps = shapes.growth_sweeps(small=self.small)
            points = [(op, dim, s) for op in self.ops for dim in sweeps for s in sweeps[dim]]
            for op, dim, shape in _progress(points, "growth"):
                document["growth"].append(self.growth_case(op, dim, shape))
            self.notes += plots.cliffs(document)
        if not (args.no_parts or args.quick or args.shapes):
            for part in _progress(self.parts(), "parts"):
                document["parts"].append(self.part_case(part))


def _progress(items: Iterable[Any], name: str) -> Iterable[Any]:
    bar: Iterable[Any] = tqdm(items, desc=name, dynamic_ncols=True, mininterval=0.5)
    return bar


def _plot(document: Json, stem: Path) -> list[Path]:
    paths = plots.plot_all(document, stem)
    if document.get("training"):
        path = stem.with_name(f"{stem.name}_training.png")
        paths.append(training_report.plot_training(document, path))
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a call of ours raised or its error is above the bound."""
    args = _arguments(argv)
    if args.plot:
        for path in _plot(report.load(args.plot), args.plot.with_suffix("")):
            print(path)
        return 0
    run = Run(args)
    # Strict: fp16x3 must not be timed, or judged, where "ieee" stands in for it. On a CPU all of
    # ours is the reference anyway, and a note says so.
    with cutlass_ops.float32_precision("ieee", strict=not run.small):
        document = run.everything()
    args.output.mkdir(parents=True, exist_ok=True)
    stem = args.output / environment.file_stem(document["environment"])
    report.save(document, stem.with_suffix(".json"))
    print(report.summary(document))
    if document["training"]:
        print(training_report.training_table(document))
    for path in [stem.with_suffix(".json"), *_plot(document, stem)]:
        print(f"wrote {path}")
    return 1 if report.failed(document) or training_report.failed(document) else 0


if __name__ == "__main__":
    sys.exit(main())
