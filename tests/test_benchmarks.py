"""The benchmarks measure, count and report what they say."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from native import needs_binary, require_kernels
from programs import ROOT, run_python

from cutlass_ops import plans

pytest.importorskip("matplotlib", reason="the benchmarks need the extra `bench`")
pytest.importorskip("tqdm", reason="the benchmarks need the extra `bench`")

sys.path.insert(0, str(ROOT))  # the benchmarks are no part of the installed package

from benchmarks import __main__, accuracy, kernels, plots, providers, report, shapes, timing


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """Output, document and folder of a run on two small shapes on the CPU."""
    folder = tmp_path_factory.mktemp("bench")
    done = run_python(
        "-m",
        "benchmarks",
        *("--device", "cpu", "--output", str(folder), "--shapes", "3x40x24,16x64x32"),
        *("--providers", "eager,linear,ours,packed", "--seconds", "0.01", "--kernel-size", "4"),
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.json")
    return done.stdout, json.loads(path.read_text()), folder


def test_a_run_prints_a_table_and_says_that_it_is_on_the_cpu(tiny_run: Any) -> None:
    output, _, _ = tiny_run
    assert "16x64x32" in output
    assert "ours/eager" in output
    assert "on the CPU" in output
    assert " NO" not in output


def test_a_run_writes_raw_samples_and_where_they_come_from(tiny_run: Any) -> None:
    _, document, folder = tiny_run
    assert document["schema"] == report.SCHEMA
    environment = document["environment"]
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["device"] == "cpu"
    assert {"time_utc", "git", "build", "binary_sha256", "cpu"} <= set(environment)
    assert all(len(digest) == 64 for digest in environment["binary_sha256"].values())
    assert len(document["cases"]) == 2 * 2 * 2  # ops, shapes, grad modes
    for case in document["cases"]:
        assert case["flops"] == 2 * case["m"] * case["n"] * case["k"]
        for provider in ("eager", "linear", "ours", "packed"):
            entry = case["times"]["warm"][provider]
            assert len(entry["samples"]) >= timing.MIN_ROUNDS
            assert min(entry["samples"]) <= entry["median"] <= max(entry["samples"])
        assert max(case["errors"].values()) < 1e-5
    assert [path.suffix for path in sorted(folder.iterdir())] == [".json", ".png"]


@pytest.mark.parametrize("provider", report.OURS)
def test_a_call_of_ours_that_raises_fails_the_run(
    provider: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """A crash has no error, which must not read as an error of zero."""

    def crash(problem: providers.Problem) -> providers.Call:
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(providers._MAKERS, provider, crash)
    options = ("--device", "cpu", "--shapes", "3x40x24", "--ops", "B", "--seconds", "0.01")
    names = ("--providers", f"eager,{provider}", "--output", str(tmp_path))
    assert __main__.main([*options, *names]) == 1
    output = capsys.readouterr().out
    assert " NO" in output
    assert "failed: RuntimeError: no such kernel" in output


def test_fp16x3_has_a_table_beside_its_peers(tmp_path: Path) -> None:
    """On a CPU "ieee" stands in for it."""
    names = ("fp16x3", "fp16x3-packed", "cublas-fp16x3", "tf32")
    done = run_python(
        *("-m", "benchmarks", "--device", "cpu", "--output", str(tmp_path), "--grad", "both"),
        *("--shapes", "256x40x24,16x64x32", "--seconds", "0.01", "--kernel-size", "4"),
        *("--providers", ",".join(("eager", *names))),
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    for case in document["cases"]:
        expected = {"eager", "fp16x3", "fp16x3-packed"} | (set() if case["grad"] else set(names))
        assert set(case["times"]["warm"]) == expected == set(case["errors"])
        assert max(case["errors"].values()) < 1e-5
    for name in names:
        assert f"{name}/eager" in done.stdout
    for op in "AB":
        assert f"{op}, fp16x3: geometric mean" in done.stdout
    assert "over 1 shapes of M >= 256" in done.stdout
    assert [file.name.split("_")[-1] for file in tmp_path.glob("*.png")] == ["fp16x3.png"]


def test_the_default_benchmark_measures_fp16x3_for_many_rows_and_peers_at_a_few_shapes() -> None:
    def shapes_of(provider: str, **options: bool) -> list[shapes.Shape]:
        quick = options.get("quick", False)
        return [s for s in shapes.GPU_SHAPES if providers.suits(provider, s, quick=quick)]

    assert shapes_of("ours") == list(shapes.GPU_SHAPES)
    assert shapes.HEADLINE in shapes_of("fp16x3") == shapes_of("fp16x3-packed")
    assert {s.m >= shapes.FP16X3_ROWS for s in shapes_of("fp16x3")} == {True}
    assert set(shapes_of("tf32")) == set(shapes_of("cublas-fp16x3")) == set(shapes.PEER_SHAPES)
    assert set(shapes_of("compile")) == set(shapes.COMPILE_SHAPES)
    assert not shapes_of("compile", quick=True)


def test_what_counts_as_failed() -> None:
    def outcome(**case: Any) -> bool:
        case = {"errors": {"eager": 1e-7}, "error_bound": 1e-6, "skipped": {}, **case}
        return bool(report.failed({"cases": [case], "growth": []}))

    assert not outcome()
    assert not outcome(errors={"ours": 1e-6}, skipped={"compile": "RuntimeError: no compiler"})
    assert not outcome(errors={"ours": 1.0}, error_bound=None)  # eager was not asked for
    assert outcome(errors={"ours": 1.1e-6})
    assert outcome(errors={"packed": math.nan})
    assert outcome(skipped={"packed": "RuntimeError: no such kernel"})
    assert outcome(errors={"fp16x3": 1.1e-6})
    assert not outcome(errors={"tf32": 1e-3}, skipped={"cublas-fp16x3": "OutOfMemoryError"})
    raised = {"skipped": {"ours": "RuntimeError: no such kernel"}}
    assert report.failed({"cases": [], "growth": [raised]}) == [raised]


def test_a_saved_run_can_be_plotted_again(tiny_run: Any, tmp_path: Path) -> None:
    _, document, _ = tiny_run
    report.save(document, tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == document
    done = run_python("-m", "benchmarks", "--plot", str(tmp_path / "again.json"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again_speedup.png").read_bytes().startswith(b"\x89PNG")


def test_a_document_of_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"schema": 0}')
    with pytest.raises(ValueError, match="schema 0"):
        report.load(tmp_path / "old.json")


@pytest.mark.parametrize("text", ["", "3x4", "0x4x5", "axbxc", "-1x2x3"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="MxNxK"):
        shapes.parse_shape(text)


def test_counts_are_those_of_the_definition() -> None:
    shape = shapes.Shape(2, 3, 5)
    assert shape.flops == 60
    assert shape.least_bytes("linear_gelu_softmax") == 4 * (10 + 15 + 3 + 6)
    assert shape.least_bytes("linear_avgpool_gelu_scale_max") == 4 * (10 + 15 + 3 + 2)
    assert len(shapes.TABLE) == len(set(shapes.TABLE)) == 17


@pytest.mark.parametrize("op", shapes.OPS)
def test_the_error_check_sees_a_tf32_slip(op: shapes.OpName) -> None:
    problem = providers.make_problem(
        op,
        shapes.Shape(64, 256, 512),
        device=torch.device("cpu"),
        grad=False,
        kernel_size=16,
        scale=2.0,
        seed=0,
    )
    calls = {name: providers.make_call(name, problem) for name in ("eager", "ours")}
    measured = accuracy.errors(problem, calls, seed=0)
    limit = accuracy.bound(measured)
    assert limit is not None
    assert measured["ours"] <= limit

    def tf32(values: torch.Tensor) -> torch.Tensor:
        return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)

    slipped = providers.Problem(
        op, tf32(problem.x), tf32(problem.weight), problem.bias, problem.kernel_size, problem.scale
    )
    rounded = providers.make_call("ours", slipped)
    assert accuracy.errors(problem, {"ours": rounded}, seed=0)["ours"] > limit


def test_a_cliff_is_found_and_a_smooth_curve_has_none() -> None:
    def points(times: list[float]) -> dict[str, Any]:
        growth = [
            {
                "dim": "M",
                "op": shapes.OPS[0],
                "m": 2**i,
                "n": 1,
                "k": 1,
                "times": {"warm": {"ours": {"median": us}}},
            }
            for i, us in enumerate(times)
        ]
        return {"growth": growth}

    assert plots.cliffs(points([10.0, 20.0, 40.0, 80.0])) == []
    (found,) = plots.cliffs(points([10.0, 20.0, 60.0, 80.0]))
    assert "M = 4" in found


def test_the_mean_is_geometric() -> None:
    assert report.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(report.geometric_mean([]))


@needs_binary
def test_kernels_to_compare_with_the_estimates_include_the_chosen_one(plans_by_cost: None) -> None:
    shape = shapes.HEADLINE
    plan = kernels.best_plan(shape, plans.H200)
    found = list(kernels.candidates(shape, plans.H200))
    assert plan in [candidate for _, candidate in found]
    assert len(found) > 3
    assert all(candidate.nanoseconds >= plan.nanoseconds for _, candidate in found)


@needs_binary
def test_kernels_are_timed_beside_their_estimates(gpu: str, plans_by_cost: None) -> None:
    require_kernels(gpu)
    timer = timing.Timer(torch.device(gpu, 0), 0.01)
    entries = kernels.measure(shapes.Shape(130, 260, 96), timer, plans.gpu(0))
    assert [entry["us"] for entry in entries] == sorted(entry["us"] for entry in entries)
    assert sum(entry["chosen"] for entry in entries) == 1
    assert sum(entry["estimate_us"] is None for entry in entries) == 1  # cuBLAS
