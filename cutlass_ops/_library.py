"""Finds and loads the binary, and says which devices its kernels can run on.

The schemas of the ops are defined in Python (``schemas.py``); the binary only implements them.
Without it, or on a device it was not built for, every op still runs, as plain PyTorch.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import torch

from .schemas import OPS  # so they are defined before the binary that implements them is loaded

__all__ = [
    "build_info",
    "fp16x3_build_reason",
    "fp16x3_reason",
    "load_error",
    "loaded",
    "unsupported_reason",
]

_BINARY = Path(__file__).with_name("_C.abi3.so")


def _load() -> str | None:
    """Loads the binary; the reason why not, or None."""
    if not _BINARY.is_file():
        return (
            "this install has no binary: it was built without nvcc, or with CUTLASS_OPS_SKIP_CUDA=1"
        )
    try:
        torch.ops.load_library(str(_BINARY))
    except OSError as error:
        return f"{_BINARY.name} does not load beside torch {torch.__version__}: {error}"
    return None


_load_error = _load()
# Asked now: a first question inside torch.jit.trace would be recorded, or refused.
_build_info: dict[str, Any] = {} if _load_error else json.loads(OPS._build_info())
_cuda_versions: tuple[int, int] = (0, 0) if _load_error else tuple(OPS._cuda_versions())


def loaded() -> bool:
    """Whether the binary is there and loaded."""
    return _load_error is None


def load_error() -> str | None:
    """Why the binary is not loaded, or None."""
    return _load_error


def binary_path() -> Path | None:
    """The loaded binary, or None."""
    return _BINARY if loaded() else None


def build_info() -> dict[str, Any]:
    """What the binary was built from and holds; empty where none is loaded.

    Keys: ``cutlass`` and ``nvcc`` (versions), ``architectures`` (such as ``80+PTX``, ``90a``),
    ``kernels``, ``epilogues``.
    """
    return _build_info if loaded() else {}


@functools.cache
def unsupported_reason(device: torch.device) -> str | None:
    """Why the kernels cannot run on ``device``, or None where they can."""
    if device.type != "cuda":
        return f"the kernels are CUDA kernels, and do not run on {device}"
    if _load_error is not None:
        return _load_error
    if torch.version.hip is not None:
        return "the kernels are CUDA kernels, and this torch is built for ROCm"
    reason = _driver_reason(*_cuda_versions)
    if reason is not None:
        return reason
    capability = torch.cuda.get_device_capability(device)
    architectures: list[str] = build_info()["architectures"]
    if any(_runs_on(name, capability) for name in architectures):
        return None
    return (
        f"{torch.cuda.get_device_name(device)} has compute capability "
        f"{capability[0]}.{capability[1]}, and the kernels were built for "
        f"{', '.join(architectures)}; set CUTLASS_OPS_CUDA_ARCHS and build again"
    )


@functools.cache
def fp16x3_reason(device: torch.device) -> str | None:
    """Why the precision "fp16x3" is not native on ``device``, or None where it is.

    Its tensor-core kernels are code for compute capability 9.0 and for no other, later ones
    included.
    """
    reason = unsupported_reason(device)
    if reason is not None:
        return reason
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability "
            f"{capability[0]}.{capability[1]}, and the tensor-core kernels are for 9.0 alone"
        )
    return fp16x3_build_reason()


def fp16x3_build_reason() -> str | None:
    """Why the loaded binary has no tensor-core kernels, or None where it has them."""
    architectures: list[str] = build_info()["architectures"]
    if any(name.removesuffix("+PTX") == "90a" for name in architectures):
        return None
    return (
        f"the kernels were built for {', '.join(architectures)}, and the tensor-core kernels "
        f"need 90a; set CUTLASS_OPS_CUDA_ARCHS and build again"
    )


def _driver_reason(driver: int, runtime: int) -> str | None:
    """Why a driver cannot run what was built with a runtime, or None. Within a major version any
    driver runs it."""
    if driver // 1000 >= runtime // 1000:
        return None
    return (
        f"the driver is for CUDA {_version(driver)}, and the kernels were built with "
        f"CUDA {_version(runtime)}"
    )


def _version(number: int) -> str:
    """CUDA's numbers for versions: 13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether code for an architecture of :func:`build_info` runs on a device of a capability."""
    match = re.fullmatch(r"(\d+)(\d)([af]?)(\+PTX)?", architecture)
    assert match is not None, architecture
    built = (int(match[1]), int(match[2]))
    if match[3] == "a":  # 90a: code for that very capability, and so is its PTX
        return capability == built
    # the driver compiles PTX for anything newer, but that of a family (100f) for the family alone
    if match[4] and match[3] == "" and capability >= built:
        return True
    return capability[0] == built[0] and capability[1] >= built[1]
