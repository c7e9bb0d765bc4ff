"""The results as a table and as JSON.

The JSON document (schema 1), written by `python -m benchmarks` and read back by `--plot`:

    schema        1
    environment   what `benchmarks.environment.describe` returns: time_utc, device, gpu (name,
                  capability, driver_version, ...), cpu, versions, build, binary_sha256, git, tf32
    settings      argv, seconds, seed, kernel_size, scale, notes (what was left out and why)
    copy_gbs      measured device-to-device copy bandwidth, bytes read + bytes written
    cases         list of op cases, one for each op, shape and grad mode
        op, m, n, k, grad, flops, least_bytes
        errors    {provider: relative error against float64}
        error_bound  the largest error allowed for ours, packed and those of fp16x3
        host_us   {provider: host time of one launch}
        peak_bytes   {provider: GPU memory held beyond the operands, the result included}
        skipped   {provider: why}
        times     {"warm" | "cold": {provider: {median, p10, p90, samples}}}, microseconds per call
    growth        list of {dim: "M" | "N" | "K", op, m, n, k, skipped, times: one state of them}
    parts         list of {name, size, moved_bytes, times: as above}
    training      list of cases of forward and backward (what is counted: `benchmarks.training`);
                  older documents have no such list
        op, m, n, k, flops
        dx        whether x requires grad, besides weight and bias
        errors    {provider: {"x" | "weight" | "bias": error of that gradient against float64}}
        host_us   {provider: host time of one step}
        error_bounds   {"x" | "weight" | "bias": the largest error allowed for ours and fp16x3}
        extra_bytes    {provider: GPU memory of a step beyond operands, gradients and result}
        skipped, times: as above
"""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.environment import device_name
from benchmarks.providers import BASELINE, FP16X3, IEEE, PEERS, PROVIDERS
from benchmarks.shapes import FP16X3_ROWS, SHORT_NAMES
from benchmarks.timing import Samples

SCHEMA = 1
Json = dict[str, Any]


def samples_json(samples: dict[str, Samples]) -> Json:
    """{provider: {median, p10, p90, samples}}, in microseconds rounded to nanoseconds."""
    return {
        name: {
            "median": round(s.median, 3),
            "p10": round(s.quantile(0.1), 3),
            "p90": round(s.quantile(0.9), 3),
            "samples": [round(us, 3) for us in s.us],
        }
        for name, s in samples.items()
    }


def save(results: Json, path: Path) -> None:
    """Write the document, each list of numbers on one line."""
    text = json.dumps(results, indent=1)
    text = re.sub(r"\[[-\d.,\s]+\]", lambda match: " ".join(match[0].split()), text)
    path.write_text(text + "\n")


def load(path: Path) -> Json:
    """Read a document back; ValueError naming the file if its schema is another."""
    results: Json = json.loads(path.read_text())
    if results.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {results.get('schema')!r}, expected {SCHEMA}")
    return results


def failure(error: Exception) -> str:
    """What an exception says, on one short line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def medians(case: Json, cache: str = "warm") -> dict[str, float]:
    """{provider: median microseconds} of a case, empty for a cache state not measured."""
    return {name: entry["median"] for name, entry in case["times"].get(cache, {}).items()}


def device_state(case: Json) -> str:
    """The cache state whose times the host's pace cannot reach: cold, where that was measured."""
    return "cold" if "cold" in case["times"] else "warm"


def device_medians(case: Json) -> dict[str, float]:
    return medians(case, device_state(case))


def speedup(case: Json, provider: str, cache: str = "warm") -> float | None:
    """Eager's time over the provider's, None where either was not measured."""
    times = medians(case, cache)
    if BASELINE not in times or provider not in times:
        return None
    return times[BASELINE] / times[provider]


OURS = (*IEEE, *FP16X3)


def failed(results: Json) -> list[Json]:
    """The cases in which one of ours raised, or its error is above the bound or not a number."""
    cases = [*results["cases"], *results["growth"]]
    return [case for case in cases if not all(_held(case, provider) for provider in OURS)]


def _held(case: Json, provider: str) -> bool:
    if provider in case["skipped"]:
        return False
    limit = case.get("error_bound")
    error: float = case.get("errors", {}).get(provider, 0.0)  # not run, or judged elsewhere
    return error <= (math.inf if limit is None else limit)


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers, NaN of none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns padded to equal width, the first left-aligned and the others right-aligned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def us(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _label(case: Json) -> str:
    shape = f"{SHORT_NAMES[case['op']]}   {case['m']}x{case['n']}x{case['k']}"
    return shape + (" grad" if case["grad"] else "")


def _verdict(case: Json, judged: Iterable[str]) -> str:
    """Whether the errors of these providers of ours are within the bound."""
    if not all(_held(case, p) for p in judged):
        return "NO"
    known = case["error_bound"] is not None and any(p in case["errors"] for p in judged)
    return "yes" if known else "-"


def _tflops(case: Json, provider: str) -> str:
    us = medians(case).get(provider)
    return "-" if us is None else f"{case['flops'] / us / 1e6:.1f}"


def ops_table(results: Json) -> str:
    """Times, ratios to eager and errors of every op case; times in microseconds."""
    cases: list[Json] = results["cases"]
    apart = (*FP16X3, *PEERS)
    used = [p for p in PROVIDERS if p not in apart and any(p in medians(case) for case in cases)]
    ours = [p for p in IEEE if p in used]
    cold = any("cold" in case["times"] for case in cases)
    header = ["op  M x N x K", *used, *(f"{p}/eager" for p in ours)]
    header += [f"{p} cold" for p in ours] * cold
    header += ["TFLOP/s", "err eager", "err ours", "within"]
    rows = []
    for case in cases:
        times, error = medians(case), case["errors"]
        worst = max((error[p] for p in ours if p in error), default=None)
        row = [_label(case), *(us(times.get(p)) for p in used)]
        row += [ratio(speedup(case, p)) for p in ours]
        row += [ratio(speedup(case, p, "cold")) for p in ours] * cold
        row += [_tflops(case, "ours"), _error(error.get(BASELINE)), _error(worst)]
        row.append(_verdict(case, IEEE))
        rows.append(row)
    return table(header, rows)


def fp16x3table(results: Json) -> str:
    """fp16x3 beside its peers, in the cases that have any of them; empty without any."""
    shown = (*FP16X3, *PEERS)
    cases = [
        c for c in results["cases"] if any(p in medians(c) or p in c["skipped"] for p in shown)
    ]
    used = [p for p in shown if any(p in medians(case) for case in cases)]
    if not cases:
        return ""
    cold = [p for p in FP16X3 if any(p in medians(case, "cold") for case in cases)]
    header = ["op  M x N x K", *used, *(f"{p}/eager" for p in used), *(f"{p} cold" for p in cold)]
    compared = [BASELINE, *(p for p in PEERS if p in used)]
    header += ["TFLOP/s", *(f"err {p}" for p in compared), "err ours", "within"]
    rows = []
    for case in cases:
        times, error = medians(case), case["errors"]
        row = [_label(case), *(us(times.get(p)) for p in used)]
        row += [ratio(speedup(case, p)) for p in used]
        row += [ratio(speedup(case, p, "cold")) for p in cold]
        row += [_tflops(case, "fp16x3"), *(_error(error.get(p)) for p in compared)]
        worst = max((error[p] for p in FP16X3 if p in error), default=None)
        row += [_error(worst), _verdict(case, FP16X3)]
        rows.append(row)
    return table(header, rows)


def mean_lines(results: Json) -> list[str]:
    """A sentence for each op and provider of ours: the mean and the least speedup without grad;
    that of fp16x3 over the shapes of enough rows."""
    lines = []
    for op, short in SHORT_NAMES.items():
        for provider in ("ours", *FP16X3):
            rows = FP16X3_ROWS if provider in FP16X3 else 0
            ratios = [
                (ratio, f"{case['m']}x{case['n']}x{case['k']}")
                for case in results["cases"]
                if case["op"] == op and not case["grad"] and case["m"] >= rows
                if (ratio := speedup(case, provider))
            ]
            if ratios:
                mean, (least, where) = geometric_mean(r for r, _ in ratios), min(ratios)
                name = short if provider == "ours" else f"{short}, {provider}"
                which = f" of M >= {rows}" if rows else ""
                lines.append(
                    f"{name}: geometric mean {mean:.2f}x over {len(ratios)} shapes{which}, "
                    f"least {least:.2f}x at {where}"
                )
    return lines


def parts_table(results: Json) -> str:
    """The memory-bound parts: times, GB/s and the share of copy bandwidth."""
    copy = results["copy_gbs"]
    rows = []
    for part in results["parts"]:
        times = device_medians(part)
        rates = {p: part["moved_bytes"] / us / 1e3 for p, us in times.items()}
        rows.append(
            [
                f"{part['name']} {part['size']}",
                *(us(times[p]) for p in ("eager", "ours")),
                *(f"{rates[p]:.0f}" for p in ("eager", "ours")),
                f"{100 * rates['ours'] / copy:.0f} %",
                ratio(speedup(part, "ours", device_state(part))),
            ]
        )
    header = ["part", "eager us", "ours us", "eager GB/s", "ours GB/s", "of copy", "ours/eager"]
    return table(header, rows)


def summary(results: Json) -> str:
    """Everything for the terminal: the machine, both tables, the means and what was left out."""
    environment, notes = results["environment"], results["settings"]["notes"]
    versions, git = environment["versions"], environment["git"]
    commit = (git["commit"] or "unknown")[:12] + (" (with changes)" if git["dirty"] else "")
    lines = [
        f"{device_name(environment)}, torch {versions['torch']}, CUDA {versions['cuda']}, "
        f"cutlass_ops {versions['cutlass_ops']}, commit {commit}",
        "Times: microseconds per call, median of interleaved runs, L2 warm unless marked cold.",
        "Ratios: eager's time / ours, above 1 is faster. err: relative L2 against float64.",
        "",
    ]
    if results["cases"]:
        lines += [ops_table(results), ""]
    if fp16x3 := fp16x3table(results):
        lines += [
            'Precision "fp16x3" and its peers (cublas-fp16x3: without splitting x and the weight):',
            fp16x3,
            "",
        ]
    lines += mean_lines(results)
    if results["parts"]:
        lines += ["", f"Copy bandwidth {results['copy_gbs']:.0f} GB/s", parts_table(results)]
    return "\n".join([*lines, *(f"Note: {note}" for note in notes)])
