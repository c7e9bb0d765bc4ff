"""Where it was measured: GPU, driver, versions, commit and the very binary, read by the program."""

import datetime
import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

import cutlass_ops
from cutlass_ops import _library

ROOT = Path(__file__).resolve().parent.parent


def _output(*command: str) -> str | None:
    """Standard output of a command run in the repository, or None if it cannot run or fails."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def git_state() -> dict[str, Any]:
    """{"commit": str | None, "dirty": bool | None}: of the checkout that holds this file, or what
    CUTLASS_OPS_COMMIT says where there is none (a trailing "-dirty" marks changed files)."""
    top = _output("git", "rev-parse", "--show-toplevel")
    if top is not None and Path(top) == ROOT:
        status = _output("git", "status", "--porcelain")
        return {"commit": _output("git", "rev-parse", "HEAD"), "dirty": bool(status)}
    given = os.environ.get("CUTLASS_OPS_COMMIT")
    if not given:
        return {"commit": None, "dirty": None}
    return {"commit": given.removesuffix("-dirty"), "dirty": given.endswith("-dirty")}


def binary_hash() -> dict[str, str]:
    """{file name: sha256} of the shared objects in the imported package, empty without any."""
    folder = Path(cutlass_ops.__file__).parent
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.so"))
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _gpu(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    query = "driver_version,clocks.max.sm,clocks.max.mem,power.limit"
    row = _output(
        "nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", f"--id={device.index or 0}"
    )
    values = [value.strip() for value in row.split(",")] if row else []
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        **dict(zip(query.split(","), values, strict=False)),
    }


def describe(device: torch.device) -> dict[str, Any]:
    """Everything about the machine and the software that a reader of the results needs.

    Returns:
        A JSON-serialisable dict, documented in `benchmarks.report`.
    """
    return {
        "time_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": device.type,
        "gpu": _gpu(device) if device.type == "cuda" else None,
        "cpu": {"name": _processor(), "threads": torch.get_num_threads()},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cutlass_ops": cutlass_ops.__version__,
        },
        "build": _library.build_info(),
        "load_error": _library.load_error(),
        "binary_sha256": binary_hash(),
        "git": git_state(),
        "tf32": {
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cublas_override": os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
        },
    }


def has_fp16x3(device: torch.device) -> bool:
    """Whether cutlass_ops has kernels of "fp16x3" for the device: Hopper's tensor cores."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def device_name(environment: dict[str, Any]) -> str:
    """The measured device's name: the GPU's, or the processor's."""
    gpu = environment["gpu"]
    return str(gpu["name"] if gpu else environment["cpu"]["name"])


def file_stem(environment: dict[str, Any]) -> str:
    """The measured device's name as a file name without suffix."""
    return re.sub(r"[^a-z0-9]+", "-", device_name(environment).lower()).strip("-")
