"""What a run measures, of all that was asked for and suits the device."""

import argparse
from collections.abc import Iterable, Sequence

import torch

from benchmarks import environment, providers, shapes, training
from benchmarks.providers import PROVIDERS, Part
from benchmarks.shapes import OPS, SHORT_NAMES, OpName, Shape


class Selection:
    """The cases of each section, and the options that they share."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        default = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(args.device or default)
        self.small = self.device.type != "cuda"
        self.seconds = args.seconds or (0.1 if self.small else 0.4 if args.quick else 0.6)
        self.ops: list[OpName] = [op for op in OPS if SHORT_NAMES[op] in args.ops.split(",")]
        self.providers = self._chosen_providers()
        if not self.ops or not self.providers:
            raise ValueError(f"nothing to do for --ops {args.ops} --providers {args.providers}")
        whole = not (args.quick or args.shapes)
        both = {"eager", "ours"} <= set(self.providers)
        self.has_forward = args.training != "only"
        self.has_growth = whole and not args.no_growth and both
        self.has_parts = whole and not args.no_parts
        self.has_training = args.training == "only" or (args.training == "auto" and whole)

    def _lacks_fp16x3(self) -> bool:
        """Whether the device is a GPU that has no kernels of it."""
        return not self.small and not environment.has_fp16x3(self.device)

    def _chosen_providers(self) -> list[str]:
        """Those asked for, or all that have kernels for the device."""
        if self.args.providers is not None:
            return [p for p in PROVIDERS if p in self.args.providers.split(",")]
        without = providers.FP16X3 if self._lacks_fp16x3() else ()
        return [p for p in PROVIDERS if p not in without]

    def notes(self) -> list[str]:
        """What is left out, and why."""
        notes = []
        if self.small:
            notes.append("on the CPU, where `ours` is the plain-PyTorch reference; small shapes")
        elif self.args.providers is None and self._lacks_fp16x3():
            notes.append("without fp16x3, for which this GPU has no kernel")
        compiled = self.has_forward and not self.args.shapes and "compile" in self.providers
        if compiled and not self.small:
            measured = ", ".join(map(str, shapes.COMPILE_SHAPES))
            where = "nowhere (--quick)" if self.args.quick else measured
            notes.append(f"torch.compile, at seconds per shape, was measured at: {where}")
        return notes

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

    def case_providers(self, shape: Shape, grad: bool) -> list[str]:
        """Those of one op case."""
        names = [p for p in self.providers if not (grad and p in providers.FORWARD_ONLY)]
        if self.args.shapes is not None:
            return names
        return [p for p in names if providers.suits(p, shape, quick=self.args.quick)]

    def growth_points(self) -> list[tuple[OpName, str, Shape]]:
        """(op, dim, shape) of every point of the sweeps."""
        sweeps = shapes.growth_sweeps(small=self.small)
        return [(op, dim, shape) for op in self.ops for dim in sweeps for shape in sweeps[dim]]

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

    def training_cases(self) -> list[tuple[OpName, Shape, bool]]:
        """(op, shape, dx) of every training case."""
        if not self.has_training:
            return []
        given = training.CPU_SHAPES if self.small else training.GPU_SHAPES
        return training.cases(self.ops, self.shapes() if self.args.shapes else given)

    def problem(self, op: OpName, shape: Shape, grad: bool) -> providers.Problem:
        """The operands of one case."""
        return providers.make_problem(
            op,
            shape,
            device=self.device,
            grad=grad,
            kernel_size=self.args.kernel_size,
            scale=self.args.scale,
            seed=self.args.seed,
        )
