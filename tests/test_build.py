"""The binary and the build's report, wherever they are: nothing here needs a GPU."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from native import KERNELS

from cutlass_ops import _library

REPORT = Path(__file__).resolve().parents[1] / "build" / "ptxas_report.json"
BINARY = _library.binary_path()

with_binary = pytest.mark.skipif(BINARY is None, reason=f"no binary: {_library.load_error()}")
with_report = pytest.mark.skipif(
    not REPORT.is_file(), reason="no build/ptxas_report.json: the binary was not built here"
)
# ptxas may keep a few registers on the stack without cost, around a loop that needs all of them; a
# loop that spills is another matter. Bytes, stores and loads together.
LARGEST_SPILL = 32


def tool(name: str, *arguments: str) -> str:
    """Output of a command, or a skip where it is not installed."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return subprocess.run(
        [name, *arguments], check=True, capture_output=True, text=True, timeout=120
    ).stdout


@with_binary
def test_libraries_it_needs() -> None:
    """libtorch_cpu and the system: with libtorch_cuda or a shared cudart it would not load beside a
    CPU torch, and would be tied to one major version of CUDA (pytorch#187320)."""
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", tool("readelf", "-d", str(BINARY))))
    assert "libtorch_cpu.so" in needed
    system = r"(ld-linux.*|lib(stdc\+\+|gcc_s|c|m|dl|rt|pthread))\.so(\.\d+)?"
    others = {name for name in needed if not re.fullmatch(system, name)}
    assert others == {"libtorch_cpu.so"}


@with_binary
def test_undefined_symbols() -> None:
    """Nothing of the CUDA driver, the CUDA runtime, libtorch_cuda, c10 or ATen; of Python only what
    its stable ABI has."""
    undefined = {
        line.split()[-1].split("@")[0]
        for line in tool("nm", "-D", "--undefined-only", str(BINARY)).splitlines()
    }
    foreign = {
        name
        for name in undefined
        if re.match(r"cu[A-Z]|cuda[A-Z]|cublas|__cuda", name)
        or re.search(r"c10|2at6|torch_cuda|get_current_cuda_stream|torch_c10_cuda", name)
    }
    assert not foreign
    assert any(name.startswith(("aoti_torch_", "torch_")) for name in undefined)


@with_binary
def test_no_build_path_in_the_binary() -> None:
    """Messages name csrc/..., not a directory of the machine that built it."""
    strings = tool("strings", "-n", "8", str(BINARY))
    root = str(REPORT.parents[1])
    assert root not in strings
    assert "csrc/" in strings


@with_binary
def test_stable_abi() -> None:
    assert "STABLE" in tool("torch-abi-audit", str(BINARY), "--check", "torch")


@with_binary
def test_build_info_is_complete() -> None:
    info = _library.build_info()
    assert re.fullmatch(r"4\.\d+\.\d+", info["cutlass"])
    assert re.match(r"\d+\.\d+", info["nvcc"])
    assert info["architectures"]
    assert KERNELS
    for architecture in info["architectures"]:
        assert re.fullmatch(r"\d{2,3}[af]?(\+PTX)?", architecture)


def report() -> dict[str, dict[str, dict[str, int]]]:
    return json.loads(REPORT.read_text())


@with_binary
def test_no_kernel_traps_on_newer_gpus() -> None:
    """They translate PTX of an older architecture, for which CUTLASS's named barriers are traps."""
    text = tool("cuobjdump", "-ptx", str(BINARY))
    assert ".entry" in text or not any("PTX" in a for a in _library.build_info()["architectures"])
    assert not re.search(r"\b(brkpt|trap)\b", text)


@with_report
def test_no_kernel_spills() -> None:
    spills = {
        (kernel, architecture): numbers
        for kernel, by_architecture in report().items()
        for architecture, numbers in by_architecture.items()
        if numbers["spill_stores"] + numbers["spill_loads"] > LARGEST_SPILL
    }
    assert not spills


@with_report
def test_the_mainloop_spills_nothing() -> None:
    """The kernels of the large problems, with loads of 128 bits: all that they do is their loop."""
    numbers = [
        by_architecture["90a"]
        for kernel, by_architecture in report().items()
        if ("9simt_gemm" in kernel or "11stream_gemm" in kernel)
        and "TransposingMainloopINS0_15TransposingTileELb1E" in kernel
        and "90a" in by_architecture
    ]
    assert all(n["spill_stores"] == n["spill_loads"] == 0 for n in numbers)
    assert numbers or not any("90a" in built for built in report().values())


@with_report
def test_every_kernel_is_built_for_every_architecture() -> None:
    kernels = report()
    built = {frozenset(by_architecture) for by_architecture in kernels.values()}
    assert len(kernels) >= len(KERNELS)
    assert len(built) == 1, "some kernels are missing for some architectures"
    for by_architecture in kernels.values():
        assert all(0 < numbers["registers"] <= 255 for numbers in by_architecture.values())


@with_report
def test_no_kernel_needs_an_opt_in_for_shared_memory() -> None:
    """Beyond 48 KiB a kernel must opt in, which fails on a smaller card or is forgotten
    (AQLM#25, vllm PR#5560): every configuration, on every architecture, stays within them."""
    shared = {
        (kernel, architecture): numbers["shared_memory"]
        for kernel, by_architecture in report().items()
        for architecture, numbers in by_architecture.items()
    }
    assert max(shared.values()) > 8 * 1024  # the report does tell
    assert {key: size for key, size in shared.items() if size > 48 * 1024} == {}
