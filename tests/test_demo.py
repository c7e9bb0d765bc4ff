"""`python -m cutlass_ops`, as a newcomer meets it."""

from __future__ import annotations

import re

import pytest
import torch
from programs import run_python

OPS = ("linear_gelu_softmax", "linear_avgpool_gelu_scale_max")


def test_the_last_lines_show_both_errors_within_their_bounds() -> None:
    done = run_python("-m", "cutlass_ops")
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-2:]
    for line, op in zip(
        last, ("linear_gelu_softmax", "linear_avgpool_gelu_scale_max"), strict=True
    ):
        match = re.fullmatch(rf"{op}: error (\S+), bound (\S+): PASS", line)
        assert match, line
        assert 0.0 < float(match[1]) <= float(match[2]) < 1e-5


def test_it_says_that_it_runs_on_the_cpu_and_how_ours_compares() -> None:
    done = run_python("-m", "cutlass_ops", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "running on the CPU" in done.stdout
    assert done.stdout.count("PyTorch eager") == 2
    assert len(re.findall(r"\d x$|\d+\.\d\dx$", done.stdout, re.MULTILINE)) == 5


@pytest.mark.parametrize("device", ["tpu"])
def test_an_unknown_device_is_refused(device: str) -> None:
    done = run_python("-m", "cutlass_ops", "--device", device)
    assert done.returncode == 2
    assert "invalid choice" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there_is_refused_without_a_traceback() -> None:
    done = run_python("-m", "cutlass_ops", "--device", "cuda")
    assert done.returncode == 2
    assert "PyTorch sees no CUDA device" in done.stderr
