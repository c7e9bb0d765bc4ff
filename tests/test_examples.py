"""The examples run by themselves, and their drop-in models are drop-ins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import ROOT, cutlass_include, load_module, nvcc, run_python

EXAMPLES = ROOT / "examples"
# Example -> (attribute that holds the linear, small constructor arguments).
DROP_INS: dict[str, tuple[str, Sequence[Any]]] = {
    "matmul_gelu_softmax": ("linear", (48, 33)),
    "matmul_avgpool_gelu_scale_max": ("matmul", (48, 33, 4, -1.5)),
}


def build(model: Any, arguments: Sequence[Any], device: str) -> torch.nn.Module:
    torch.manual_seed(7)
    built: torch.nn.Module = model(*arguments)
    return built.to(device)


@pytest.mark.parametrize("name", [*DROP_INS, "custom_epilogue"])
def test_an_example_runs_by_itself(name: str) -> None:
    if name == "custom_epilogue" and torch.cuda.is_available():  # it compiles a kernel
        nvcc()
        cutlass_include()
    done = run_python(str(EXAMPLES / f"{name}.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" in done.stdout
    assert "float64" in done.stdout


@pytest.mark.parametrize("name", DROP_INS)
def test_both_models_start_from_the_same_parameters(name: str) -> None:
    module, (attribute, arguments) = load_module(EXAMPLES / f"{name}.py"), DROP_INS[name]
    plain, fused = (build(m, arguments, "cpu") for m in (module.Model, module.ModelNew))
    state, state_new = plain.state_dict(), fused.state_dict()
    assert list(state) == list(state_new) == [f"{attribute}.weight", f"{attribute}.bias"]
    for key, value in state.items():
        assert torch.equal(value, state_new[key])
    fused.load_state_dict(state)


@pytest.mark.parametrize("name", DROP_INS)
def test_both_models_agree_forward_and_backward(name: str, device: str) -> None:
    module, (_, arguments) = load_module(EXAMPLES / f"{name}.py"), DROP_INS[name]
    plain, fused = (build(m, arguments, device) for m in (module.Model, module.ModelNew))
    x = torch.randn(9, arguments[0], device=device)
    results = []
    for model in (plain, fused):
        y = model(x)
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad for p in model.parameters())])
    for expected, actual in zip(*results, strict=True):
        assert actual is not None
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", DROP_INS)
def test_the_full_size_is_the_headline_size(name: str) -> None:
    module = load_module(EXAMPLES / f"{name}.py")
    assert (module.batch_size, module.in_features, module.out_features) == (1024, 8192, 8192)
    (x,) = module.get_inputs()
    assert x.shape == (1024, 8192)
    assert module.get_init_inputs()[:2] == [8192, 8192]
    if name == "matmul_avgpool_gelu_scale_max":
        assert module.get_init_inputs()[2:] == [16, 2.0]


def test_the_custom_epilogue_is_under_sixty_lines() -> None:
    assert len((EXAMPLES / "custom_epilogue.cu").read_text().splitlines()) < 60


@pytest.mark.parametrize("head", ["softmax", "max"])
def test_training_with_and_without_the_fused_head(head: str, device: str, tmp_path: Path) -> None:
    """Few steps of it; the program itself judges whether the curves agree."""
    pytest.importorskip("matplotlib", reason="the training example needs the extra `bench`")
    pytest.importorskip("tqdm", reason="the training example needs the extra `bench`")
    plot = tmp_path / "loss.png"
    options = ("--head", head, "--steps", "12", "--device", device, "--output", str(plot))
    done = run_python(str(EXAMPLES / "train_heads.py"), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "12/12" in done.stderr  # the progress bars
    rows = re.findall(r"^(PyTorch|cutlass_ops) +(\S+) +(\S+) +(\S+)$", done.stdout, re.MULTILINE)
    assert [name for name, *_ in rows] == ["PyTorch", "cutlass_ops"]
    for _, rate, first, last in rows:
        assert float(rate) > 0
        assert float(last) < float(first)
    assert "The curves differ by at most" in done.stdout
