"""One run of the benchmarks: measures what was selected and fills the document."""

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from benchmarks import accuracy, environment, plots, providers, report, timing, training
from benchmarks.providers import Call, Part
from benchmarks.report import Json
from benchmarks.selection import Selection
from benchmarks.shapes import OpName, Shape

AnyCall = TypeVar("AnyCall", bound=Call)


class Run:
    """The timers and the document of a selection."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        args, seconds = selection.args, selection.seconds
        self.timer = timing.Timer(selection.device, seconds)
        self.growth_timer = timing.Timer(selection.device, seconds / 4)
        self.notes = selection.notes()
        self.results: Json = {
            "schema": report.SCHEMA,
            "environment": environment.describe(selection.device),
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

    def everything(self) -> Json:
        """Run all that was selected and return the document."""
        selection, document = self.selection, self.results
        document["copy_gbs"] = timing.copy_bandwidth(self.timer)
        if selection.has_forward:
            self._forward()
        for op, shape, dx in _progress(selection.training_cases(), "training"):
            document["training"].append(self.training_case(op, shape, dx))
        return document

    def _forward(self) -> None:
        """All but training."""
        selection, document = self.selection, self.results
        for op, shape, grad in _progress(selection.cases(), "ops"):
            document["cases"].append(self.op_case(op, shape, grad))
        if selection.has_growth:
            for op, dim, shape in _progress(selection.growth_points(), "growth"):
                document["growth"].append(self.growth_case(op, dim, shape))
            self.notes += plots.cliffs(document)
        if selection.has_parts:
            for part in _progress(selection.parts(), "parts"):
                document["parts"].append(self.part_case(part))

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
        problem = self.selection.problem(op, shape, grad)
        names = self.selection.case_providers(shape, grad)
        with torch.set_grad_enabled(grad):
            calls, skipped = self._ready(names, lambda name: providers.make_call(name, problem))
            errors = accuracy.errors(problem, calls, self.selection.args.seed)
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
        problem = self.selection.problem(op, shape, grad=False)
        names = [p for p in self.selection.providers if p in ("eager", "ours")]
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
        problem = self.selection.problem(op, shape, grad=True)
        problem.x.requires_grad_(dx)
        g = training.upstream(problem, self.selection.args.seed)
        names = [p for p in self.selection.providers if training.suits(p, dx)]
        steps, skipped = self._ready(names, lambda name: training.make_step(name, problem, g))
        self._note_failures(op, shape, skipped)
        return {**training.measure(problem, steps, g, self.timer), "skipped": skipped}

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


def _progress(items: Iterable[Any], name: str) -> Iterable[Any]:
    bar: Iterable[Any] = tqdm(items, desc=name, dynamic_ncols=True, mininterval=0.5)
    return bar
