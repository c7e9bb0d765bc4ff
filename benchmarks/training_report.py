"""The training section of a document: what failed in it, its table, its plot."""

import math
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks.plots import COLORS, LABELS, save_figure, subtitle
from benchmarks.providers import BASELINE
from benchmarks.report import Json, medians, ratio, speedup, table, us
from benchmarks.shapes import SHORT_NAMES
from benchmarks.training import PROVIDERS

OURS = ("ours", "fp16x3")


def held(case: Json, provider: str) -> bool:
    """Whether a provider of ours, if it was to run, did, with every gradient within its bound."""
    if provider in case["skipped"]:
        return False
    errors = case["errors"].get(provider, {})
    # Written so that NaN is above its bound.
    return all(
        error <= case["error_bounds"].get(name, math.inf) and math.isfinite(error)
        for name, error in errors.items()
    )


def failed(results: Json) -> list[Json]:
    """The training cases in which one of ours raised or a gradient is not within its bound."""
    return [c for c in results.get("training", []) if not all(held(c, p) for p in OURS)]


def _worst(case: Json, provider: str) -> str:
    errors = case["errors"].get(provider)
    return f"{max(errors.values()):.1e}" if errors else "-"


def _mib(case: Json, provider: str) -> str:
    extra = case["extra_bytes"].get(provider)
    return "-" if extra is None else f"{extra / 2**20:.1f}"


def training_table(results: Json) -> str:
    """Times, ratios to eager, memory and the largest error of a gradient; empty without cases."""
    cases: list[Json] = results.get("training", [])
    if not cases:
        return ""
    used = [p for p in PROVIDERS if any(p in medians(c) for c in cases)]
    others = [p for p in used if p != BASELINE]
    cold = any("cold" in case["times"] for case in cases)
    measured = [p for p in used if any(c["extra_bytes"].get(p) is not None for c in cases)]
    launched = [p for p in used if any(c.get("host_us", {}).get(p, 0) > 0 for c in cases)]
    header = ["op  M x N x K", *used, *(f"{p}/eager" for p in others)]
    header += [f"{p} cold" for p in others] * cold
    header += [f"host {p}" for p in launched]
    header += [f"MiB {p}" for p in measured] + [f"err {p}" for p in used] + ["within"]
    rows = []
    for case in cases:
        shape = f"{case['m']}x{case['n']}x{case['k']}"
        row = [f"{SHORT_NAMES[case['op']]}   {shape}" + (" dx" if case["dx"] else "")]
        row += [us(medians(case).get(p)) for p in used]
        row += [ratio(speedup(case, p)) for p in others]
        row += [ratio(speedup(case, p, "cold")) for p in others] * cold
        row += [us(case.get("host_us", {}).get(p)) for p in launched]
        row += [_mib(case, p) for p in measured] + [_worst(case, p) for p in used]
        judged = bool(case["error_bounds"]) and any(p in case["errors"] for p in OURS)
        row.append("NO" if not all(held(case, p) for p in OURS) else "yes" if judged else "-")
        rows.append(row)
    memory = "; MiB: beyond operands, gradients and result" if measured else ""
    return f"\nTraining, forward and backward{memory}\n" + table(header, rows)


def plot_training(results: Json, path: Path) -> Path:
    """Bars of the time of a step and, where it was measured, of its extra memory, as PNG."""
    cases: list[Json] = results["training"]
    used = [p for p in PROVIDERS if any(p in medians(c) for c in cases)]
    has_memory = any(b is not None for c in cases for b in c["extra_bytes"].values())
    figure, grid = plt.subplots(
        1,
        1 + has_memory,
        figsize=(7.5 * (1 + has_memory), 2.2 + 1.1 * len(cases)),
        squeeze=False,
        layout="constrained",
    )
    height = 0.8 / max(1, len(used))
    for index, provider in enumerate(used):
        for row, case in enumerate(cases):
            y = row + (index - (len(used) - 1) / 2) * height
            style = {"height": height * 0.92, "color": COLORS[provider]}
            time, faster = medians(case).get(provider), speedup(case, provider)
            if time is not None:
                grid[0][0].barh(y, time / 1e3, label=LABELS[provider] if row == 0 else "", **style)
                text = f" {time / 1e3:.3g}" + (f" ({faster:.2f}x)" if faster else "")
                grid[0][0].text(time / 1e3, y, text, va="center", fontsize=8)
            extra = case["extra_bytes"].get(provider)
            if extra is not None:
                grid[0][1].barh(y, extra / 2**20, **style)
                grid[0][1].text(extra / 2**20, y, f" {extra / 2**20:.3g}", va="center", fontsize=8)
    names = [
        f"{SHORT_NAMES[c['op']]}  {c['m']} x {c['n']} x {c['k']}\n"
        + ("with dx" if c["dx"] else "without dx")
        for c in cases
    ]
    for axes in grid[0]:
        axes.set_yticks(range(len(cases)), names, fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.2)
        axes.set_xlim(left=0)
        axes.grid(axis="x", alpha=0.3)
    grid[0][0].set_xlabel("milliseconds for forward and backward (in brackets: eager's / this)")
    if has_memory:
        grid[0][1].set_xlabel("MiB beyond operands, their gradients and the result")
    figure.legend(loc="outside lower center", ncols=max(1, len(used)))
    figure.suptitle(f"Training step\n{subtitle(results)}", fontsize=11)
    return save_figure(figure, path)
