"""Which device and driver run the binary; the package without it, and imported more than once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from programs import run_python

import cutlass_ops
from cutlass_ops import _library

PACKAGE = Path(cutlass_ops.__file__).parent

CAPABILITIES = [
    (["80", "86", "89", "90a"], (9, 0), True),
    (["80", "86", "89", "90a"], (8, 0), True),
    (["80"], (8, 6), True),  # code for 8.0 runs on later minors
    (["86"], (8, 0), False),
    (["90a"], (9, 0), True),
    (["90a"], (10, 0), False),  # arch-specific code runs on that very capability
    (["90a+PTX"], (10, 0), False),  # and so does its PTX
    (["100a"], (10, 3), False),
    (["100f"], (10, 0), True),
    (["100f"], (10, 3), True),  # family-specific code runs on later minors of its major
    (["103f"], (10, 0), False),
    (["100f"], (12, 0), False),
    (["100f+PTX"], (10, 3), True),
    (["100f+PTX"], (12, 0), False),
    (["80", "90a"], (12, 0), False),
    (["80", "90+PTX"], (12, 0), True),
    (["80+PTX", "90a"], (10, 3), True),
    (["80", "90a"], (7, 5), False),
]


@pytest.mark.skipif(not _library.loaded(), reason="without a binary that is the reason")
@pytest.mark.parametrize(("built", "capability", "runs"), CAPABILITIES)
def test_which_capability_runs_which_build(
    built: list[str], capability: tuple[int, int], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA/cutlass#1728, PointRCNN#128: a build for another architecture must be told at once,
    with the capability and the built list."""
    monkeypatch.setattr(_library, "build_info", lambda: {"architectures": built})
    monkeypatch.setattr(_library, "_driver_reason", lambda *versions: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Some GPU")
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    reason = _library.unsupported_reason.__wrapped__(torch.device("cuda", 0))
    assert (reason is None) == runs
    if reason is not None:
        assert ".".join(map(str, capability)) in reason
        assert all(architecture in reason for architecture in built)


@pytest.mark.parametrize("kind", ["cpu", "meta", "xpu"])
def test_the_kernels_run_on_cuda_devices_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever CUDA device there is beside this one."""
    monkeypatch.setattr(_library, "_driver_reason", lambda *versions: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    reason = _library.unsupported_reason.__wrapped__(torch.device(kind))
    assert reason == f"the kernels are CUDA kernels, and do not run on {kind}"


@pytest.mark.parametrize(
    ("driver", "runtime", "reason"),
    [
        (13000, 13000, None),
        (13000, 13010, None),
        (14000, 13010, None),
        (12080, 13000, "the driver is for CUDA 12.8, and the kernels were built with CUDA 13.0"),
    ],
)
def test_which_driver_runs_the_binary(driver: int, runtime: int, reason: str | None) -> None:
    """Without this the first kernel would fail with cudaErrorInsufficientDriver."""
    assert _library._driver_reason(driver, runtime) == reason


@pytest.mark.skipif(not _library.loaded(), reason="the versions come from the binary")
def test_the_binary_knows_both_versions(cuda: str) -> None:
    driver, runtime = torch.ops.cutlass_ops._cuda_versions()
    assert driver >= 12000
    assert runtime >= 13000


USE = """
import torch, cutlass_ops
print(cutlass_ops.__file__)
x, w = torch.randn(5, 8), torch.randn(6, 8)
y = cutlass_ops.linear_gelu_softmax(x, w)
assert torch.allclose(y, torch.softmax(torch.nn.functional.gelu(x @ w.t()), -1), atol=1e-6)
cutlass_ops.linear_avgpool_gelu_scale_max(x, w, kernel_size=2).sum()
print(cutlass_ops.show_config())
"""


@pytest.mark.parametrize("binary", [None, b"", b"not an ELF file at all"])
def test_without_a_usable_binary_the_reference_runs(binary: bytes | None, tmp_path: Path) -> None:
    """An install without nvcc, or a binary damaged or for another platform: told, not fatal."""
    copied = tmp_path / "cutlass_ops"
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    if binary is not None:
        (copied / "_C.abi3.so").write_bytes(binary)
    done = run_python("-c", USE, cwd=tmp_path, package_root=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(copied) in done.stdout
    assert "none loaded" in done.stdout


AGAIN = """
import importlib, sys, torch, cutlass_ops

def use(package):
    module = package.nn.LinearGELUSoftmax(1, 1)
    y = package.linear_gelu_softmax(torch.ones(1, 1), torch.ones(1, 1)), module(torch.ones(1, 1))
    assert [one.item() for one in y] == [1.0, 1.0]

use(cutlass_ops)
if cutlass_ops._library.loaded():
    torch.ops.load_library(str(cutlass_ops._library.binary_path()))
use(importlib.reload(cutlass_ops))
first = cutlass_ops
for name in [name for name in sys.modules if name.partition(".")[0] == "cutlass_ops"]:
    del sys.modules[name]
try:
    import cutlass_ops
except RuntimeError as error:
    print(error)
use(first)
print("alive")
"""


def test_loading_and_importing_again() -> None:
    """As a notebook does. The binary may be loaded twice and the package reloaded. Imported anew
    behind Python's back it would define its ops twice: an exception says so, and does not end the
    process, and what was imported first still works."""
    done = run_python("-c", AGAIN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "register the namespace cutlass_ops" in done.stdout
    assert done.stdout.endswith("alive\n")


def test_importing_does_not_start_cuda() -> None:
    """A fork after the import must still be able to use CUDA, as in a data loader."""
    done = run_python("-c", "import torch, cutlass_ops; print(torch.cuda.is_initialized())")
    assert done.stdout.strip() == "False", done.stderr
