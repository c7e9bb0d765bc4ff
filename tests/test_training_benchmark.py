"""The training section of the benchmarks: what a step is, what is counted, what counts as
failed."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import ROOT, run_python

pytest.importorskip("matplotlib", reason="the benchmarks need the extra `bench`")
pytest.importorskip("tqdm", reason="the benchmarks need the extra `bench`")

sys.path.insert(0, str(ROOT))  # the benchmarks are no part of the installed package

from benchmarks import __main__, providers, shapes, timing, training, training_report

every_op = pytest.mark.parametrize("op", shapes.OPS)


def problem_of(op: shapes.OpName, shape: shapes.Shape, device: str = "cpu") -> providers.Problem:
    problem = providers.make_problem(
        op, shape, device=torch.device(device), grad=True, kernel_size=4, scale=2.0, seed=0
    )
    problem.x.requires_grad_()
    return problem


def test_a_run_of_training_alone(tmp_path: Path) -> None:
    done = run_python(
        *("-m", "benchmarks", "--training", "only", "--device", "cpu", "--output", str(tmp_path)),
        *("--shapes", "3x40x24,16x66x32", "--kernel-size", "4", "--seconds", "0.01"),
        *("--providers", "eager,ours,fp16x3,packed"),
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    assert document["cases"] == document["growth"] == document["parts"] == []
    assert len(document["training"]) == 2 * 2 * 2  # ops, shapes, with dx and without
    for case in document["training"]:
        products = 3 if case["dx"] else 2
        assert case["flops"] == products * 2 * case["m"] * case["n"] * case["k"]
        operands = {"weight", "bias"} | ({"x"} if case["dx"] else set())
        assert set(case["error_bounds"]) == operands
        trained = {"eager", "ours", "fp16x3"}  # a pack is for inference
        for section in (
            case["errors"],
            case["times"]["warm"],
            case["extra_bytes"],
            case["host_us"],
        ):
            assert set(section) == trained
        for found in case["errors"].values():
            assert set(found) == operands
            assert 0 < max(found.values()) < 1e-5
        assert len(case["times"]["warm"]["ours"]["samples"]) >= timing.MIN_ROUNDS
        assert not case["skipped"]
    assert "16x66x32 dx" in done.stdout
    assert "fp16x3/eager" in done.stdout
    assert " NO" not in done.stdout
    (plot,) = tmp_path.glob("*_training.png")
    assert plot.read_bytes().startswith(b"\x89PNG")
    again = run_python("-m", "benchmarks", "--plot", str(path))
    assert again.returncode == 0, again.stderr
    assert str(plot) in again.stdout


@every_op
def test_a_step_makes_gradients_anew(op: shapes.OpName) -> None:
    """Twice the same, not added up; and none are left for memory to be measured without."""
    problem = problem_of(op, shapes.Shape(7, 22, 10))
    g = training.upstream(problem, seed=0)
    step = training.make_step("ours", problem, g)
    first, second = step.gradients(), step.gradients()
    assert set(first) == {"x", "weight", "bias"}
    for name, grad in first.items():
        assert torch.equal(grad, second[name])
    assert problem.weight.grad is None
    left = [step(), *(t.grad for t in step.operands.values())]
    assert step.left_bytes() == sum(t.numel() * t.element_size() for t in left if t is not None)


@every_op
def test_wrong_gradients_are_found(op: shapes.OpName) -> None:
    problem = problem_of(op, shapes.Shape(20, 64, 48))
    g = training.upstream(problem, seed=0)
    steps = {name: training.make_step(name, problem, g) for name in ("eager", "ours")}
    right = training.errors(problem, steps, g)
    call = providers.make_call("ours", problem)
    slip = 1 + 2.0**-12

    def slipped() -> torch.Tensor:
        y = call()
        return y * slip - (y * (slip - 1)).detach()

    wrong = {"ours": training.Step(slipped, steps["ours"].operands, g)}
    case = {"skipped": {}, "errors": right, "error_bounds": training.bounds(right)}
    assert training_report.failed({"training": [case]}) == []
    case["errors"] = training.errors(problem, wrong, g)
    assert training_report.failed({"training": [case]}) == [case]


def test_rows_with_nearly_tied_windows_receive_nothing() -> None:
    problem = problem_of("linear_avgpool_gelu_scale_max", shapes.Shape(5, 8, 3))
    with torch.no_grad():
        problem.weight[4:] = problem.weight[:4]
        problem.bias[4:] = problem.bias[:4]
    assert not training.upstream(problem, seed=0).any()
    with torch.no_grad():
        problem.bias[4:] += 1
    assert training.upstream(problem, seed=0).all()


def test_what_counts_as_failed() -> None:
    def outcome(**case: Any) -> bool:
        whole = {"errors": {}, "error_bounds": {"x": 1e-6}, "skipped": {}, **case}
        return bool(training_report.failed({"training": [whole]}))

    assert not outcome(errors={"ours": {"x": 1e-6}, "fp16x3": {"x": 1e-7}})
    assert not outcome(errors={"ours": {"weight": 1.0}})  # eager was not asked for
    assert not outcome(skipped={"compile": "RuntimeError: no compiler"})
    assert outcome(errors={"ours": {"x": 1.1e-6}})
    assert outcome(errors={"fp16x3": {"x": math.nan}})
    assert outcome(skipped={"ours": "RuntimeError: no such kernel"})
    older: dict[str, Any] = {"cases": []}
    assert training_report.failed(older) == []
    assert training_report.training_table(older) == ""


def test_a_backward_that_raises_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    def crash(problem: providers.Problem) -> providers.Call:
        def forward() -> torch.Tensor:
            y = providers._eager(problem)()
            y.register_hook(lambda grad: 1 / 0)
            return y

        return forward

    monkeypatch.setitem(providers._MAKERS, "ours", crash)
    options = ("--device", "cpu", "--shapes", "3x40x24", "--ops", "B", "--seconds", "0.01")
    names = ("--providers", "eager,ours", "--training", "only", "--output", str(tmp_path))
    assert __main__.main([*options, *names]) == 1
    output = capsys.readouterr().out
    assert " NO" in output
    assert "failed: ZeroDivisionError" in output


def test_compilation_is_paid_for_with_dx_alone() -> None:
    assert training.suits("compile", dx=True)
    assert not training.suits("compile", dx=False)
    assert training.suits("ours", dx=False)
    assert not training.suits("packed", dx=True)


@every_op
@pytest.mark.parametrize("shape", [(256, 2048, 64), (1024, 8192, 2048)], ids=str)
def test_memory_of_a_step(
    op: shapes.OpName, shape: tuple[int, int, int], cuda: str, plans_by_cost: None
) -> None:
    """Of PyTorch it is what stands between the product and the result, in forward and backward;
    of ours not more. The second is one that halves are made for."""
    m, n, k = shape
    problem = problem_of(op, shapes.Shape(m, n, k), cuda)
    g = training.upstream(problem, seed=0)
    timer = timing.Timer(torch.device(cuda), 0.01)
    found = {}
    for name in ("eager", "ours", "fp16x3"):
        step = training.make_step(name, problem, g)
        step()
        found[name] = training.extra_bytes(step, timer)
        assert problem.weight.grad is None
    eager = found.pop("eager")
    assert eager is not None
    assert eager >= 4 * m * n
    for ours in found.values():
        assert ours is not None
        assert 0 <= ours <= eager


def test_the_gpu_is_kept_busy_until_steps_are_queued(cuda: str) -> None:
    """A step whose host is slow takes the GPU no longer for it."""
    timer = timing.Timer(torch.device(cuda), 0.05)
    x = torch.randn(1 << 20, device=cuda)

    def slow() -> torch.Tensor:
        time.sleep(2e-3)
        return x.mul_(1.0)

    for cache in timer.cache_states():
        alone = timer.compare({"slow": slow}, cache)["slow"].median
        ahead = timer.compare({"slow": slow}, cache, ahead_us=60_000.0)["slow"].median
        assert ahead < 1000 < alone, cache
