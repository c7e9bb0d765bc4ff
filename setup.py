"""Builds the CUDA binary where there is an nvcc; elsewhere the package runs on the CPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

sys.path.insert(0, str(Path(__file__).parent))  # PEP 517 front ends do not put the project there

from buildtools import toolchain
from buildtools.ninja_build import NinjaBuild


def extensions() -> list[Extension]:
    if os.environ.get("CUTLASS_OPS_SKIP_CUDA") == "1":
        reason = "CUTLASS_OPS_SKIP_CUDA=1"
    elif toolchain.find_nvcc() is None:
        reason = "no nvcc on PATH or in /usr/local/cuda, and no CUDA_HOME"
    else:
        sources = sorted(
            str(path) for path in Path("csrc").rglob("*") if path.suffix in {".cpp", ".cu"}
        )
        return [Extension("cutlass_ops._C", sources, py_limited_api=True)]
    print(
        f"cutlass_ops: {reason}: installing without kernels; the ops run as plain PyTorch.",
        file=sys.stderr,
    )
    return []


modules = extensions()
setup(
    ext_modules=modules,
    cmdclass={"build_ext": NinjaBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if modules else {},
)
