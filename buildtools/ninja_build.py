"""A ``build_ext`` that lets ninja and nvcc build the one binary.

torch's own CUDAExtension is no help: beside a CPU-only torch it has no CUDA_HOME and links
libraries that are not there.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

from buildtools import toolchain

# The floor of the LibTorch stable ABI that the binary asks for: torch 2.11.
TORCH_TARGET_VERSION = "0x020b000000000000"


class NinjaBuild(build_ext):
    """Builds ``cutlass_ops._C`` into one shared library."""

    def build_extension(self, ext: Extension) -> None:
        output = Path(self.get_ext_fullpath(ext.name)).absolute()
        # Not build_temp, which an editable install puts into a temporary folder: everything would
        # be compiled again each time.
        work = (Path("build") / "ninja").absolute()
        work.mkdir(parents=True, exist_ok=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ninja", "-C", str(work)]
        if jobs := os.environ.get("MAX_JOBS"):
            command += ["-j", jobs]
        with alone_in(work) as lock:
            (work / "build.ninja").write_text(_ninja_file(ext.sources, work, output))
            # Ninja holds the lock too: it may outlive this process.
            subprocess.run(command, check=True, pass_fds=(lock,))
            report = _ptxas_report(work)
            (Path("build") / "ptxas_report.json").write_text(
                json.dumps(report, indent=1, sort_keys=True)
            )


@contextmanager
def alone_in(folder: Path) -> Iterator[int]:
    """Waits for another build in this folder. Of two at a time each takes away the lists of headers
    that the other's compilers have written, and ninja remembers that an object depends on none: it
    is not compiled again, whatever changes. Gives the descriptor of the lock, which is held as long
    as any process has it."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _ninja_file(sources: list[str], work: Path, output: Path) -> str:
    root = Path.cwd()
    nvcc = toolchain.find_nvcc()
    assert nvcc is not None, "setup.py adds the extension only where there is an nvcc"
    cutlass, cutlass_version = toolchain.cutlass_include()
    torch = toolchain.torch_directory()
    architectures = toolchain.architectures()
    build_info = _build_info(cutlass_version, toolchain.nvcc_version(nvcc), architectures)
    _write_if_changed(work / "generated" / "build_info.h", build_info)
    defines = [
        "-DNDEBUG",  # asserts in CUTLASS's device code cost registers
        f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}",
    ]
    # Errors in continuous integration alone: a newer compiler's warning is no reason for a user's
    # install to fail.
    strict = os.environ.get("CI") == "true"
    host = "-fPIC,-fvisibility=hidden,-Wall,-Wextra" + (",-Werror" if strict else "")
    common = [
        "-std=c++17",
        "-O3",
        f"-I{root / 'include'}",
        f"-I{root / 'csrc'}",
        f"-Xcompiler={host}",
        f"-Xcompiler=-ffile-prefix-map={root}/=",
    ]
    device = [
        *(flag for architecture in architectures for flag in architecture.gencode()),
        "-isystem",
        str(cutlass),
        "--expt-relaxed-constexpr",
        *(["-Werror=all-warnings"] if strict else []),
        "-Xptxas=-v",  # registers and spills, read by _ptxas_report
        f"--threads={os.environ.get('NVCC_THREADS', '1')}",
    ]
    binding = [
        f"-I{work / 'generated'}",
        "-isystem",
        str(torch / "include"),
        f"-Xcompiler=-ffile-prefix-map={torch.parent}/=",
    ]
    # No torch_cuda, no c10, no shared cudart: the binary loads beside any torch >= 2.11, CPU-only
    # ones included. Through -Xlinker, because nvcc writes a -L of its own into the binary.
    link = [
        "-shared",
        "-cudart=static",
        f"-Xlinker=-L{torch / 'lib'}",
        "-Xlinker=-ltorch_cpu",
        "-Xlinker=--no-undefined",
    ]

    lines = [
        "ninja_required_version = 1.5",
        f"nvcc = {nvcc}",
        f"defines = {' '.join(defines)}",
        f"common = {' '.join(common)}",
        f"device = {' '.join(device)}",
        f"binding = {' '.join(binding)}",
        f"link = {' '.join(link)}",
        "",
        # The compiler's report goes into a file of its own; on an error it is shown.
        "rule kernel",
        "  command = $nvcc $common $defines $device -MD -MF $out.d -c $in -o $out 2> $out.log"
        " || (cat $out.log >&2; exit 1)",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = nvcc $in",
        "rule host",
        "  command = $nvcc $common $defines $binding -MD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = c++ $in",
        "rule link",
        "  command = $nvcc $in $link -o $out",
        "  description = link $out",
        "",
    ]
    objects = []
    for source in sources:
        name = str(work / (Path(source).with_suffix("").as_posix().replace("/", "_") + ".o"))
        rule = "kernel" if source.endswith(".cu") else "host"
        lines.append(f"build {name}: {rule} {root / source}")
        objects.append(name)
    lines += [f"build {output}: link {' '.join(objects)}", f"default {output}", ""]
    return "\n".join(lines)


def _build_info(cutlass: str, nvcc: str, architectures: list[toolchain.Architecture]) -> str:
    """The header that tells the binary what it was built from."""
    names = ", ".join(f'"{architecture.name}"' for architecture in architectures)
    return f"""#pragma once
namespace cutlass_ops {{
inline constexpr char const* kCutlassVersion = "{cutlass}";
inline constexpr char const* kNvccVersion = "{nvcc}";
inline constexpr char const* kArchitectures[] = {{{names}}};
}}  // namespace cutlass_ops
"""


def _write_if_changed(path: Path, text: str) -> None:
    """Keeps the time of an unchanged file, so that ninja rebuilds nothing for it."""
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _ptxas_report(work: Path) -> dict[str, dict[str, dict[str, int]]]:
    """Kernel (mangled) -> architecture -> registers, shared and spilled bytes, from ptxas -v."""
    report: dict[str, dict[str, dict[str, int]]] = {}
    pattern = re.compile(
        r"Compiling entry function '(?P<kernel>\w+)' for 'sm_(?P<sm>\w+)'.*?"
        r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
        r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
        re.DOTALL,
    )
    for log in sorted(work.glob("*.log")):
        for match in pattern.finditer(log.read_text()):
            shared = re.search(r"(\d+) bytes smem", match["rest"])
            report.setdefault(match["kernel"], {})[match["sm"]] = {
                "registers": int(match["registers"]),
                "shared_memory": int(shared[1]) if shared else 0,
                "spill_stores": int(match["stores"]),
                "spill_loads": int(match["loads"]),
            }
    return report
