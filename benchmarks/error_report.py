"""Errors of the linear part, x Wᵀ, against float64: by method, family of inputs, and K.

    python -m benchmarks.error_report                         every family, K from 64 to 65536
    python -m benchmarks.error_report --families normal --sizes 64,4096
    python -m benchmarks.error_report --table bench_out/nvidia-h200_errors.json
    python -m benchmarks.error_report --table JSON --into docs/accuracy.md

Writes OUTPUT/<device>_errors.json and a plot beside it. The document (schema 1):

    schema, environment, settings    as in `benchmarks.report`; settings are argv, seed, m, n, notes
    errors    list of {family, k, method, whole, worst_row}: the relative L2 error of the whole
              [m, n] result, and the largest one of a row
    skipped   {method: why it could not run}

| method | what it is |
|---|---|
| `ieee` | cutlass_ops, precision "ieee" |
| `fp16x3` | cutlass_ops, precision "fp16x3" |
| `cublas` | F.linear, TF32 off |
| `cublas-fp16x3` | the same scheme on cuBLAS (`benchmarks.peers`), K in one accumulator |
| `tf32` | F.linear, TF32 allowed |
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks import accuracy, environment, peers, plots, report
from benchmarks.families import FAMILIES
from cutlass_ops.schemas import OPS

Json = dict[str, Any]
Method = Callable[[Tensor, Tensor], Tensor]
SIZES = (64, 256, 1024, 4096, 16384, 65536)
BEGIN, END = "<!-- begin figures", "<!-- end figures -->"


def _ours(precision: str) -> Method:
    # The op's own default is "ieee".
    mode = () if precision == "ieee" else (precision,)

    def linear(x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = OPS.linear_epilogue(x, weight, None, "identity", [], *mode)
        return result

    return linear


METHODS: dict[str, Method] = {
    "ieee": _ours("ieee"),
    "fp16x3": _ours("fp16x3"),
    "cublas": peers.float32_linear,
    "cublas-fp16x3": lambda x, weight: peers.ComposedLinear.of(x, weight)(),
    "tf32": peers.tf32_linear,
}
OURS = ("ieee", "fp16x3")


def errors(result: Tensor, expected: Tensor) -> dict[str, float]:
    """The relative L2 error of the whole and the largest of a row."""
    return {
        "whole": accuracy.relative_error(result.flatten(), expected.flatten()),
        "worst_row": accuracy.relative_error(result, expected),
    }


class Report:
    """One report: what is asked for, and the document it fills."""

    def __init__(self, args: argparse.Namespace) -> None:
        default = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(args.device or default)
        self.m, self.n, self.seed = args.m, args.n, args.seed
        self.families = _chosen(args.families, FAMILIES, "family")
        self.methods = _chosen(args.methods, METHODS, "method")
        self.sizes = [int(size) for size in args.sizes.split(",")]
        self.skipped: dict[str, str] = {}
        notes = [] if self.device.type == "cuda" else ["on the CPU, by plain PyTorch"]
        self.document: Json = {
            "schema": report.SCHEMA,
            "environment": environment.describe(self.device),
            "settings": {
                "argv": ["DIR" if a == str(args.output) else a for a in sys.argv[1:]],
                "seed": args.seed,
                "m": args.m,
                "n": args.n,
                "notes": notes,
            },
            "errors": [],
            "skipped": self.skipped,
        }

    def measure(self, family: str, k: int) -> Iterable[Json]:
        """An entry for each method that runs, all on the same operands."""
        generator = torch.Generator(self.device).manual_seed(self.seed)
        x, weight = FAMILIES[family](self.m, self.n, k, generator)
        expected = accuracy.float64_linear(x, weight)
        for name in self.methods:
            if name in self.skipped:
                continue
            try:
                found = errors(METHODS[name](x, weight), expected)
            except Exception as error:
                # As in the benchmark: a method that fails is a result to show.
                self.skipped[name] = report.failure(error)
            else:
                yield {"family": family, "k": k, "method": name, **found}

    def everything(self) -> Json:
        """Measure all that was asked for and return the document."""
        points = [(family, k) for family in self.families for k in self.sizes]
        with torch.no_grad():
            for family, k in tqdm(points, desc="errors", dynamic_ncols=True, mininterval=0.5):
                self.document["errors"] += self.measure(family, k)
        return self.document


def _chosen(text: str | None, known: Iterable[str], what: str) -> list[str]:
    """The names in `text`, all of them by default; ValueError for one that is not known."""
    names = list(known)
    wanted = names if text is None else text.split(",")
    for name in wanted:
        if name not in names:
            raise ValueError(f"no {what} is called {name!r}; known: {', '.join(names)}")
    return wanted


def load(path: Path) -> Json:
    """Read a document back; ValueError naming the file if it is no error report."""
    document = report.load(path)
    if "errors" not in document:
        raise ValueError(f"{path} is no error report")
    return document


def table(document: Json, k: int) -> str:
    """Markdown: a row per family and a column per method, the errors of `k` columns."""
    found = {(e["family"], e["method"]): e for e in document["errors"] if e["k"] == k}
    methods = [name for name in METHODS if any(name == method for _, method in found)]
    lines = [
        f"| K = {k} | " + " | ".join(plots.ERROR_LABELS[name] for name in methods) + " |",
        "|---" * (len(methods) + 1) + "|",
    ]
    for family in dict.fromkeys(family for family, _ in found):
        cells = [_cell(found.get((family, name))) for name in methods]
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(entry: Json | None) -> str:
    return "-" if entry is None else f"{entry['whole']:.1e} ({entry['worst_row']:.1e})"


def markdown(document: Json) -> str:
    """Where it was measured, and the tables of a middle and of the largest K."""
    name = environment.device_name(document["environment"])
    versions, git = document["environment"]["versions"], document["environment"]["git"]
    settings = document["settings"]
    sizes = sorted({entry["k"] for entry in document["errors"]})
    lines = [
        f"{name}, torch {versions['torch']}, cutlass_ops {versions['cutlass_ops']} at commit "
        f"{(git['commit'] or 'unknown')[:12]}{' (with changes)' if git['dirty'] else ''}, "
        f"M = {settings['m']}, N = {settings['n']}. Error of the whole result (of its worst row):"
    ]
    for k in dict.fromkeys([*sizes[len(sizes) // 2 : len(sizes) // 2 + 1], *sizes[-1:]]):
        lines += ["", table(document, k)]
    remarks = [f"`{method}` did not run: {why}" for method, why in document["skipped"].items()]
    for remark in [*settings["notes"], *remarks]:
        lines += ["", f"Note: {remark}"]
    return "\n".join(lines)


def filled(text: str, figures: str) -> str:
    """`text` with `figures` between its two marks; ValueError where it has none."""
    before, begin, rest = text.partition(BEGIN)
    mark, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no place for figures: {BEGIN} ... --> and {END}")
    return f"{before}{begin}{mark.splitlines()[0]}\n{figures}\n{end}{after}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.error_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=Path("bench_out"), metavar="DIR")
    parser.add_argument("--table", type=Path, metavar="JSON", help="print a saved one as markdown")
    parser.add_argument("--into", type=Path, metavar="MD", help="with --table: fill it in there")
    parser.add_argument("--families", metavar="NAME,...", help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--methods", metavar="NAME,...", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--sizes", metavar="K,...", default=",".join(map(str, SIZES)))
    parser.add_argument("--m", type=int, default=256, help="rows of x")
    parser.add_argument("--n", type=int, default=512, help="rows of the weight")
    parser.add_argument("--device", help="default: cuda if there is one, else cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if one of ours did not run on a GPU."""
    args = _arguments(argv)
    if args.table:
        figures = markdown(load(args.table))
        if args.into:
            args.into.write_text(filled(args.into.read_text(), figures))
        else:
            print(figures)
        return 0
    wanted = Report(args)
    document = wanted.everything()
    args.output.mkdir(parents=True, exist_ok=True)
    stem = environment.file_stem(document["environment"])
    path = args.output / f"{stem}_errors.json"
    report.save(document, path)
    print(markdown(document))
    for written in (path, plots.plot_errors(document, path.with_suffix(".png"))):
        print(f"wrote {written}")
    return 1 if wanted.device.type == "cuda" and set(OURS) & set(wanted.skipped) else 0


if __name__ == "__main__":
    sys.exit(main())
