"""Programs of the repository, run as a person runs them, and its C++ as libraries of a test."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import cutlass_ops

ROOT = Path(__file__).resolve().parent.parent
UNDER_TEST = Path(cutlass_ops.__file__).parent.parent


def run_python(
    *arguments: str, cwd: Path = ROOT, package_root: Path = UNDER_TEST
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in the repository, with the package under test first on the path.

    With -c and -m the working directory comes before that: another package needs another `cwd`.
    """
    paths = [str(package_root), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def load_module(path: Path) -> ModuleType:
    """A file as a module of its stem's name, without its folder on sys.path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and named tuples look themselves up there
    spec.loader.exec_module(module)
    return module


def load_toolchain() -> ModuleType:
    """buildtools/toolchain.py."""
    return load_module(ROOT / "buildtools" / "toolchain.py")


def nvcc() -> Path:
    """The compiler that the build would take; the test is skipped where there is none."""
    try:
        found: Path | None = load_toolchain().find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))
    if found is None:
        pytest.skip("no nvcc")
    return found


def cutlass_include() -> Path:
    """The CUTLASS headers that the build would take; the test is skipped where there are none."""
    try:
        include: Path = load_toolchain().cutlass_include()[0]
    except RuntimeError as error:
        pytest.skip(str(error))
    return include


def compile_library(command: list[str], source: str, output: Path) -> ctypes.CDLL:
    """A file of tests/cpp as a shared library, which is loaded."""
    include = ["-I", str(ROOT / "include")]
    path = str(ROOT / "tests" / "cpp" / source)
    done = subprocess.run(
        [*command, "-shared", *include, path, "-o", str(output)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(output))


def compile_for_host(source: str, output: Path) -> ctypes.CDLL:
    """The same without CUDA; the test is skipped where there is no compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    flags = ["-std=c++17", "-O1", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror"]
    return compile_library([compiler, *flags], source, output)


def pointer(array: np.ndarray | None) -> ctypes.c_void_p | None:
    """For a function of such a library."""
    return None if array is None else ctypes.c_void_p(array.ctypes.data)
