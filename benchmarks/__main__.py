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
from collections.abc import Sequence
from pathlib import Path

import cutlass_ops
from benchmarks import environment, plots, report, training_report
from benchmarks.providers import PROVIDERS
from benchmarks.report import Json
from benchmarks.run import Run
from benchmarks.selection import Selection


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
    selection = Selection(args)
    run = Run(selection)
    # Strict: fp16x3 must not be timed, or judged, where "ieee" stands in for it. On a CPU all of
    # ours is the reference anyway, and a note says so.
    with cutlass_ops.float32_precision("ieee", strict=not selection.small):
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
