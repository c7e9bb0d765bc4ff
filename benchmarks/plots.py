"""The results as pictures: speedup per shape, and time against size."""

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.environment import device_name
from benchmarks.providers import FP16X3, IEEE, PEERS
from benchmarks.report import device_medians, speedup
from benchmarks.shapes import OPS, SHORT_NAMES

Json = dict[str, Any]
COLORS = {
    "eager": "#7f7f7f",
    "compile": "#d9a441",
    "linear": "#8c6bb1",
    "ours": "#2b7bba",
    "packed": "#1b9e77",
    "fp16x3": "#d1495b",
    "fp16x3-packed": "#e8871e",
    "cublas-fp16x3": "#d9a441",
    "tf32": "#8c6bb1",
}
LABELS = {
    "eager": "PyTorch eager",
    "compile": "torch.compile",
    "linear": "F.linear alone",
    "ours": "cutlass_ops",
    "packed": "cutlass_ops, packed weight",
    "fp16x3": "cutlass_ops fp16x3",
    "fp16x3-packed": "cutlass_ops fp16x3, packed weight",
    "cublas-fp16x3": "fp16x3 on cuBLAS, split beforehand",
    "tf32": "PyTorch eager, TF32",
}

# The methods of the error report.
ERROR_COLORS = {
    "ieee": "#2b7bba",
    "fp16x3": "#d1495b",
    "cublas": "#7f7f7f",
    "cublas-fp16x3": "#d9a441",
    "tf32": "#8c6bb1",
}
ERROR_LABELS = {
    "ieee": "cutlass_ops ieee",
    "fp16x3": "cutlass_ops fp16x3",
    "cublas": "cuBLAS fp32",
    "cublas-fp16x3": "fp16x3 on cuBLAS",
    "tf32": "cuBLAS TF32",
}


def subtitle(results: Json) -> str:
    """Device, versions and commit of a document, for the head of a plot."""
    environment = results["environment"]
    versions, commit = environment["versions"], environment["git"]["commit"]
    return (
        f"{device_name(environment)}, fp32, torch {versions['torch']}, "
        f"cutlass_ops {versions['cutlass_ops']} {(commit or '')[:10]}"
    ).strip()


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure and close it; returns `path`."""
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _speedup_bars(axes: Axes, cases: list[Json], providers: list[str]) -> None:
    """Horizontal bars of eager's time over each provider's, one group per case."""
    height = 0.8 / max(1, len(providers))
    for index, provider in enumerate(providers):
        for row, case in enumerate(cases):
            value = speedup(case, provider)
            if value is None:
                continue
            y = row + (index - (len(providers) - 1) / 2) * height
            label = LABELS[provider] if provider not in axes.get_legend_handles_labels()[1] else ""
            axes.barh(y, value, height * 0.92, color=COLORS[provider], label=label)
            axes.text(value, y, f" {value:.2f}", va="center", fontsize=7)
    axes.set_yticks(range(len(cases)))
    axes.set_yticklabels(
        [f"{c['m']} x {c['n']} x {c['k']}" + (" grad" if c["grad"] else "") for c in cases],
        fontsize=8,
    )
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=1)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("speedup over PyTorch eager (1 = the same)")


def plot_speedup(results: Json, path: Path, shown: tuple[str, ...]) -> Path:
    """Bars of the speedup of each op at each shape that has one of the providers `shown`, written
    to `path` as PNG."""
    cases = [c for c in results["cases"] if any(speedup(c, p) for p in shown)]
    groups = {op: [c for c in cases if c["op"] == op] for op in OPS}
    rows = max(len(cases) for cases in groups.values())
    figure, grid = plt.subplots(
        1, len(OPS), figsize=(15, 1.8 + 0.55 * rows), squeeze=False, layout="constrained"
    )
    for axes, op in zip(grid[0], OPS, strict=True):
        providers = [p for p in shown if any(speedup(c, p) for c in groups[op])]
        _speedup_bars(axes, groups[op], providers)
        kernel_size = results["settings"]["kernel_size"]
        suffix = f", kernel_size {kernel_size}" if SHORT_NAMES[op] == "B" else ""
        axes.set_title(f"{SHORT_NAMES[op]}: {op}{suffix}", fontsize=10)
    handles: dict[str, Any] = {}
    for axes in grid[0]:
        handles.update(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles)
        )
    figure.suptitle(f"Speedup by shape (M x N x K)\n{subtitle(results)}", fontsize=11)
    return save_figure(figure, path)


def plot_growth(results: Json, path: Path) -> Path:
    """Time against M, N and K on logarithmic axes, one row per op, written to `path` as PNG."""
    dims = [d for d in ("M", "N", "K") if any(point["dim"] == d for point in results["growth"])]
    figure, grid = plt.subplots(
        len(OPS),
        max(1, len(dims)),
        figsize=(5 * max(1, len(dims)), 8),
        squeeze=False,
        layout="constrained",
    )
    for row, op in zip(grid, OPS, strict=True):
        for axes, dim in zip(row, dims, strict=False):
            points = [p for p in results["growth"] if p["op"] == op and p["dim"] == dim]
            _growth_lines(axes, points, dim)
            axes.set_title(f"{SHORT_NAMES[op]}: {_fixed(points, dim)}", fontsize=10)
    figure.suptitle(f"Time by size\n{subtitle(results)}", fontsize=11)
    return save_figure(figure, path)


def _fixed(points: list[Json], dim: str) -> str:
    others = [d for d in ("M", "N", "K") if d != dim]
    return ", ".join(f"{d} = {points[0][d.lower()]}" for d in others) if points else "not measured"


def _growth_lines(axes: Axes, points: list[Json], dim: str) -> None:
    for provider in ("eager", "ours", "packed"):
        pairs = [
            (point[dim.lower()], times[provider])
            for point in points
            if provider in (times := device_medians(point))
        ]
        if pairs:
            sizes, us = zip(*pairs, strict=True)
            axes.plot(
                sizes, us, marker="o", markersize=3, color=COLORS[provider], label=LABELS[provider]
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(dim)
    axes.set_ylabel("microseconds")
    axes.grid(alpha=0.3, which="both")
    if points:
        axes.legend(fontsize=8)


def cliffs(results: Json, provider: str = "ours", limit: float = 1.3) -> list[str]:
    """Points that take more than `limit` times what their two neighbours suggest.

    The expected time is interpolated between the neighbours on logarithmic axes.

    Returns:
        A sentence for each such point.
    """
    found = []
    for op in OPS:
        for dim in ("M", "N", "K"):
            points = [
                (point[dim.lower()], times[provider])
                for point in results["growth"]
                if point["op"] == op
                and point["dim"] == dim
                and provider in (times := device_medians(point))
            ]
            for before, here, after in zip(points, points[1:], points[2:], strict=False):
                share = math.log(here[0] / before[0]) / math.log(after[0] / before[0])
                expected = before[1] ** (1 - share) * after[1] ** share
                if here[1] > limit * expected:
                    found.append(
                        f"cliff: {SHORT_NAMES[op]} at {dim} = {here[0]} takes {here[1]:.0f} us, "
                        f"{here[1] / expected:.2f}x what its neighbours suggest"
                    )
    return found


def plot_errors(document: Json, path: Path) -> Path:
    """Error of the linear part against K on logarithmic axes, a panel per family of inputs of an
    error report (`benchmarks.error_report`), written to `path` as PNG."""
    entries = document["errors"]
    families = list(dict.fromkeys(entry["family"] for entry in entries))
    columns = min(5, max(1, len(families)))
    lines = max(1, math.ceil(len(families) / columns))
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(1 + 3.6 * columns, 1.4 + 3.4 * lines),
        squeeze=False,
        sharex=True,
        layout="constrained",
    )
    for axes, family in zip(grid.flat, families, strict=False):
        _error_lines(axes, [entry for entry in entries if entry["family"] == family])
        axes.set_title(family, fontsize=10)
    for axes in grid.flat[len(families) :]:
        axes.set_visible(False)
    handles, labels = grid[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
    settings = document["settings"]
    figure.suptitle(
        "Relative L2 error of the linear part against float64 (faint: of the worst row), "
        f"M = {settings['m']}, N = {settings['n']}\n{subtitle(document)}",
        fontsize=11,
    )
    return save_figure(figure, path)


def _error_lines(axes: Axes, entries: list[Json]) -> None:
    for method, color in ERROR_COLORS.items():
        points = [entry for entry in entries if entry["method"] == method]
        if not points:
            continue
        sizes = [point["k"] for point in points]
        whole = [point["whole"] for point in points]
        worst = [point["worst_row"] for point in points]
        axes.plot(sizes, whole, marker="o", markersize=3, color=color, label=ERROR_LABELS[method])
        axes.plot(sizes, worst, color=color, alpha=0.3, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("K")
    axes.grid(alpha=0.3)


def plot_all(results: Json, stem: Path) -> list[Path]:
    """Every plot there is data for: `stem`_speedup.png, `stem`_fp16x3.png, `stem`_growth.png."""
    paths = []
    for name, shown in (("speedup", ("linear", "compile", *IEEE)), ("fp16x3", (*FP16X3, *PEERS))):
        if any(speedup(case, provider) for case in results["cases"] for provider in shown):
            paths.append(plot_speedup(results, stem.with_name(f"{stem.name}_{name}.png"), shown))
    if results["growth"]:
        paths.append(plot_growth(results, stem.with_name(stem.name + "_growth.png")))
    return paths
