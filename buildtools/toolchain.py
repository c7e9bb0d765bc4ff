"""Finds what the build needs: nvcc, the headers of CUTLASS and torch, the architectures."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

CUTLASS_FLOOR = (4, 2)

# Machine code for each, and PTX for anything newer. The PTX is that of
# compute_80, because that of compute_90a runs on compute capability 9.0 alone.
DEFAULT_ARCHITECTURES = "80+PTX;86;89;90a"

_NO_CUTLASS = (
    "cutlass_ops needs the CUTLASS headers. Either "
    "`pip install --no-deps nvidia-cutlass==4.2.0.0`, or set CUTLASS_DIR to a "
    "CUTLASS checkout (>= 4.2)."
)
_NO_TORCH = (
    "cutlass_ops builds against the torch of its environment. Install torch >= 2.11 first, then "
    "`pip install --no-build-isolation .`"
)


@dataclass(frozen=True)
class Architecture:
    """One target: ``sm`` such as ``80`` or ``90a``, and whether its PTX goes along."""

    sm: str
    ptx: bool

    @property
    def name(self) -> str:
        return self.sm + ("+PTX" if self.ptx else "")

    def gencode(self) -> list[str]:
        # Every 8.x is compiled from compute_80: one pass of the front end for three of them.
        virtual = "80" if self.sm.startswith("8") else self.sm
        flags = ["-gencode", f"arch=compute_{virtual},code=sm_{self.sm}"]
        if self.ptx:
            flags += ["-gencode", f"arch=compute_{self.sm},code=compute_{self.sm}"]
        return flags


def _named(*variables: str) -> tuple[str, Path] | None:
    """The first of these environment variables that is set, with its path."""
    for variable in variables:
        if path := os.environ.get(variable):
            return variable, Path(path)
    return None


def find_nvcc() -> Path | None:
    """CUDA_HOME or CUDA_PATH, else PATH, else the toolkit's default prefix.

    A variable that is set and leads nowhere is a mistake to report: what would be found in its
    place is another toolkit, or a build without kernels that nobody asked for.
    """
    if named := _named("CUDA_HOME", "CUDA_PATH"):
        variable, home = named
        nvcc = home / "bin" / "nvcc"
        if not nvcc.is_file():
            raise RuntimeError(
                f"{variable} is {home}, which holds no bin/nvcc: correct or unset it, or set "
                "CUTLASS_OPS_SKIP_CUDA=1 to install for the CPU alone"
            )
        return nvcc
    if on_path := shutil.which("nvcc"):
        return Path(on_path)
    default = Path("/usr/local/cuda/bin/nvcc")
    return default if default.is_file() else None


def nvcc_version(nvcc: Path) -> str:
    text = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"release (\d+\.\d+)", text)
    if match is None:
        raise RuntimeError(f"cannot read a version from `{nvcc} --version`:\n{text}")
    return match.group(1)


def _package_directory(name: str) -> Path | None:
    """The directory of an installed package, found without importing it."""
    spec = find_spec(name)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def cutlass_include() -> tuple[Path, str]:
    """The include directory of CUTLASS and its version.

    CUTLASS_DIR or CUTLASS_PATH, else the package nvidia-cutlass.
    """
    if named := _named("CUTLASS_DIR", "CUTLASS_PATH"):
        variable, root = named
        missing = f"{variable} is {root}, which holds no CUTLASS headers: correct or unset it"
    else:
        package = _package_directory("cutlass_library")
        if package is None:
            raise RuntimeError(_NO_CUTLASS)
        root, missing = package / "source", _NO_CUTLASS
    for include in (root / "include", root):
        header = include / "cutlass" / "version.h"
        if header.is_file():
            version = _cutlass_version(header.read_text())
            if version < CUTLASS_FLOOR:
                found = ".".join(map(str, version))
                raise RuntimeError(f"CUTLASS {found} at {include} is older than 4.2. {_NO_CUTLASS}")
            return include, ".".join(map(str, version))
    raise RuntimeError(missing)


def _cutlass_version(header: str) -> tuple[int, ...]:
    parts = (
        re.search(rf"#define CUTLASS_{part}\s+(\d+)", header)
        for part in ("MAJOR", "MINOR", "PATCH")
    )
    return tuple(int(match.group(1)) if match else 0 for match in parts)


def torch_directory() -> Path:
    """The installed torch; it is not imported, which would cost more than a second."""
    directory = _package_directory("torch")
    if directory is None:
        raise RuntimeError(_NO_TORCH)
    return directory


def architectures() -> list[Architecture]:
    """What to build for: CUTLASS_OPS_CUDA_ARCHS (``80;90a``), else TORCH_CUDA_ARCH_LIST
    (``8.0;9.0a+PTX``), else the default.

    TORCH_CUDA_ARCH_LIST is not meant for us alone: containers set it to all that their torch runs
    on. What is too old there is left out with a note; asked of us by name, it is an error.
    """
    ours = os.environ.get("CUTLASS_OPS_CUDA_ARCHS")
    text = ours or os.environ.get("TORCH_CUDA_ARCH_LIST") or DEFAULT_ARCHITECTURES
    found, too_old = [], []
    for item in re.split(r"[;,\s]+", text.strip()):
        match = re.fullmatch(r"(?:sm_)?(\d+)\.?(\d)([af]?)(\+PTX)?", item, re.IGNORECASE)
        if match is None:
            raise RuntimeError(
                f"cannot read the architecture {item!r} of {text!r}: write 80, 8.0, 90a or 9.0+PTX"
            )
        major, minor, suffix, ptx = match.groups()
        if int(major) < 8:
            too_old.append(item)
        else:
            found.append(Architecture(f"{major}{minor}{suffix.lower()}", bool(ptx)))
    if too_old and (ours or not found):
        raise RuntimeError(
            f"architecture {too_old[0]!r}: cutlass_ops needs compute capability 8.0 or newer"
        )
    if too_old:
        left_out = ", ".join(too_old)
        print(f"cutlass_ops: no kernels for {left_out}: older than 8.0", file=sys.stderr)
    return found
