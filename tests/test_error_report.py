"""The error report: its inputs are what they are called, its methods what they say, and the
document's table is the one that it prints."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import ROOT, run_python

pytest.importorskip("matplotlib", reason="the benchmarks need the extra `bench`")
pytest.importorskip("tqdm", reason="the benchmarks need the extra `bench`")

sys.path.insert(0, str(ROOT))  # the benchmarks are no part of the installed package

from benchmarks import accuracy, error_report, peers, report
from benchmarks.families import FAMILIES, WEAK

UNIT = 2.0**-24


def operands(family: str, k: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    return FAMILIES[family](24, 40, k, torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def tiny_report(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """Output, document and folder of a report of small sizes on the CPU, without fp16x3."""
    folder = tmp_path_factory.mktemp("errors")
    done = run_python(
        *("-m", "benchmarks.error_report", "--device", "cpu", "--output", str(folder)),
        *("--m", "8", "--n", "16", "--sizes", "64,128,256"),
        *("--methods", "ieee,cublas,cublas-fp16x3,tf32"),
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*_errors.json")
    return done.stdout, json.loads(path.read_text()), folder


def test_a_report_has_an_entry_for_all_that_was_asked_for(tiny_report: Any) -> None:
    output, document, folder = tiny_report
    assert len(document["errors"]) == len(FAMILIES) * 3 * 4
    assert {"time_utc", "git", "versions"} <= set(document["environment"])
    assert document["settings"]["m"] == 8
    for entry in document["errors"]:
        assert 0 < entry["whole"] <= entry["worst_row"]
        if entry["method"] == "ieee":
            assert entry["worst_row"] < (1e-2 if entry["family"] == "cancelling" else 1e-6)
    assert "on the CPU" in output
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".png"]


def test_the_table_is_printed_from_the_document(tiny_report: Any) -> None:
    output, document, folder = tiny_report
    (path,) = folder.glob("*.json")
    done = run_python("-m", "benchmarks.error_report", "--table", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in output
    table = error_report.table(document, 256).splitlines()
    assert len(table) == 2 + len(FAMILIES)
    assert table[0].count("|") == table[1].count("|") == table[2].count("|") == 6
    assert "| K = 128 |" in done.stdout  # the middle one
    assert "| K = 256 |" in done.stdout
    assert "| K = 64 |" not in done.stdout


def test_figures_replace_figures_and_nothing_else() -> None:
    text = "before\n<!-- begin figures, generated -->\nold\n<!-- end figures -->\nafter\n"
    once = error_report.filled(text, "new")
    assert once == text.replace("old", "new")
    assert error_report.filled(once, "new") == once
    with pytest.raises(ValueError, match="no place for figures"):
        error_report.filled("before\nafter\n", "new")


def test_the_document_has_the_figures_of_the_results() -> None:
    text = (ROOT / "docs" / "accuracy.md").read_text()
    results = sorted((ROOT / "benchmarks" / "results").glob("*_errors.json"))
    figures = [error_report.markdown(error_report.load(path)) for path in results]
    expected = figures[0] if figures else "Not measured yet."
    assert error_report.filled(text, expected) == text


def test_what_is_no_error_report_is_refused(tmp_path: Path) -> None:
    report.save({"schema": report.SCHEMA, "cases": []}, tmp_path / "run.json")
    with pytest.raises(ValueError, match="no error report"):
        error_report.load(tmp_path / "run.json")


@pytest.mark.parametrize("option", ["--families", "--methods"])
def test_an_unknown_name_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=r"called 'nonsense'.*known: "):
        error_report.main(["--device", "cpu", option, "nonsense"])


def test_a_method_that_fails_is_told_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    def crash(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(error_report.METHODS, "fp16x3", crash)
    sizes = ("--m", "4", "--n", "4", "--sizes", "8", "--families", "normal")
    options = ("--device", "cpu", "--methods", "fp16x3,cublas", "--output", str(tmp_path))
    assert error_report.main([*sizes, *options]) == 0  # a GPU is where it counts as failed
    output = capsys.readouterr().out
    assert "`fp16x3` did not run: RuntimeError: no such kernel" in output
    assert "| normal |" in output


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_makes_finite_operands_and_repeats_them(family: str) -> None:
    for tensor, again, rows in zip(operands(family), operands(family), (24, 40), strict=True):
        assert tensor.shape == (rows, 256)
        assert tensor.dtype == torch.float32
        assert tensor.isfinite().all()
        assert torch.equal(tensor, again)


def test_the_families_are_what_they_are_called() -> None:
    def spread(values: torch.Tensor) -> float:
        return math.log10(values.max() / values.min())

    assert all(float(tensor.min()) >= 0 for tensor in operands("all positive"))
    x, weight = operands("cancelling")
    assert (x @ weight.t()).norm() < 1e-2 * (x.abs() @ weight.abs().t()).norm()
    assert 10 < spread(operands("columns over 10^±6")[0].norm(dim=0)) < 13
    assert 40 < spread(operands("rows over 10^±30")[0].double().norm(dim=1)) < 61
    for name, value in (("outlier 1e5", 1e5), ("outlier 1e8", 1e8)):
        assert (operands(name)[0] == value).sum(dim=1).tolist() == [1] * 24
    x, weight = operands("outlier 1e8 on zero weights")
    assert bool((weight[:, x[0] == 1e8] == 0).all())
    x, weight = operands("columns undone by weights")
    assert spread(x.norm(dim=0)) > 10
    assert spread(x.norm(dim=0) * weight.norm(dim=0)) < 1


def test_halves_are_the_row() -> None:
    x, _ = operands("rows over 10^±30")
    x[3] = 0
    halves = peers.split(x)
    assert halves.high.dtype == halves.low.dtype == torch.float16
    largest = halves.high[torch.arange(24) != 3].abs().amax(dim=1)
    assert float(largest.min()) >= 2.0**14
    assert float(largest.max()) <= 2.0**15
    found = (halves.high.double() + halves.low.double()) * halves.unscale.double()
    wrong = (found - x.double()).abs()
    bound = torch.maximum(
        2.0**-23 * x.double().abs(), 2.0**-39 * x.double().abs().amax(dim=1, keepdim=True)
    )
    assert bool((wrong <= bound).all())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_composed_linear_is_as_exact_as_promised(family: str) -> None:
    """Beside the lengths of the rows, always; beside the result, but for the weak families."""
    x, weight = operands(family)
    expected = accuracy.float64_linear(x, weight)
    found = peers.ComposedLinear.of(x, weight)()
    lengths = x.double().norm(dim=1)[:, None] * weight.double().norm(dim=1)
    assert float(((found - expected).abs() / lengths).max()) < 32 * UNIT
    plain = accuracy.relative_error(peers.float32_linear(x, weight), expected)
    mine = accuracy.relative_error(found, expected)
    assert (mine > 20 * plain) == (family in WEAK)


def test_a_bias_is_added_to_the_composed_linear() -> None:
    x, weight = operands("normal")
    bias = torch.arange(40.0)
    composed = peers.ComposedLinear.of(x, weight)
    torch.testing.assert_close(composed(bias), composed() + bias)


def test_peers_restore_what_pytorch_is_set_to() -> None:
    x, weight = operands("normal")
    before = torch.get_float32_matmul_precision()
    with peers.matmul_precision("medium"):
        peers.float32_linear(x, weight)
        peers.tf32_linear(x, weight)
        with pytest.raises(RuntimeError):
            peers.tf32_linear(x, weight[:, :3])
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == before
