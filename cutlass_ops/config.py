"""What is installed, what can run here, and which kernel a call would run."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import torch

from . import _library, plans
from . import precision as _precision
from .epilogues import gelu_name, pooled_name
from .schemas import OPS
from .validation import check_approximate, check_kernel_size, check_sizes, integer

_EXPLAINED = ("linear_gelu_softmax", "linear_avgpool_gelu_scale_max")


class Report(str):
    """A string that shows as its text at the prompt, too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _own_version() -> str:
    try:
        return version("cutlass_ops")
    except PackageNotFoundError:
        return "not installed (source tree)"


def _build_lines() -> list[str]:
    if not _library.loaded():
        return [f"build         none loaded: {_library.load_error() or 'no reason known'}"]
    info = _library.build_info()
    lines = [
        f"build         CUTLASS {info.get('cutlass', '?')}, nvcc {info.get('nvcc', '?')}",
        f"architectures {', '.join(info.get('architectures', ()))}",
        f"epilogues     {', '.join(info.get('epilogues', ()))}",
    ]
    kernels = info.get("kernels", ())
    if kernels:
        lines.append(f"kernels       {len(kernels)}: {', '.join(map(str, kernels))}")
    return lines


def _device_lines() -> list[str]:
    if not torch.cuda.is_available():
        why = _no_cuda_reason()
        return [f"device        cpu ({why}): the plain PyTorch reference runs, in 'ieee' alone"]
    lines = []
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        major, minor = torch.cuda.get_device_capability(index)
        device = torch.device("cuda", index)
        reason = _library.unsupported_reason(device)
        runs = "native kernels run" if reason is None else f"reference runs: {reason}"
        lines.append(f"device        cuda:{index} {name}, capability {major}.{minor}: {runs}")
        lines.append(f"              native precisions: {_native_modes(device)}")
    return lines


def _native_modes(device: torch.device) -> str:
    """The modes that are native on ``device``, and why the others are not."""
    reasons = {mode: _precision.reason_not_native(mode, device) for mode in _precision.MODES}
    native = ", ".join(mode for mode, reason in reasons.items() if reason is None)
    others = [f"; not {mode}: {reason}" for mode, reason in reasons.items() if reason is not None]
    return native + "".join(others)


def _no_cuda_reason() -> str:
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    return "no CUDA device is visible" if built else "this PyTorch is built without CUDA"


def show_config() -> str:
    """Version, build, devices, which kernels can run on them or why none can, and in which modes.

    Returns:
        the text, as a str that also shows as text at the prompt.
    """
    cuda = torch.version.cuda or "none"
    lines = [
        f"cutlass_ops   {_own_version()}",
        f"python        {platform.python_version()}",
        f"torch         {torch.__version__} (CUDA {cuda})",
        *_build_lines(),
        *_device_lines(),
        f"precision     {_precision.get_float32_precision()} is the default; known: "
        f"{', '.join(_precision.MODES)}",
    ]
    return Report("\n".join(lines))


def explain(
    op: str,
    shape: tuple[int, int, int],
    *,
    precision: str | None = None,
    packed: bool = False,
    kernel_size: int = 1,
    approximate: str = "none",
    device: torch.device | str | int | None = None,
) -> str:
    """The kernel, tile and split that a call would run, or why the reference would run.

    Args:
        op: ``"linear_gelu_softmax"`` or ``"linear_avgpool_gelu_scale_max"``.
        shape: (M, N, K): rows of x, rows of the weight, columns of both.
        precision: the mode asked for; None for the default.
        packed: whether the weight is a PackedLinear, already folded, and split for "fp16x3".
        kernel_size: of the pooling; 1 for linear_gelu_softmax.
        approximate: the form of GELU.
        device: a CUDA device; None for the current one. Without any the text says why the
            reference would run, and, where a binary is loaded, what an H200 would run.

    Returns:
        the text, as a str that also shows as text at the prompt.

    Raises:
        ValueError: an unknown op, mode or form, a negative size, kernel_size outside 1..N (or,
            for linear_gelu_softmax, other than 1), a shape of other than three sizes or of sizes
            beyond the limit of each.
        RuntimeError: the sizes together take more tiles than a launch has.
        TypeError: kernel_size no int, shape no sequence of ints.
    """
    if op not in _EXPLAINED:
        raise ValueError(f"explain: op must be one of {_EXPLAINED}, got {op!r}")
    m, n, k = _sizes(shape)
    check_approximate("explain", approximate)
    pooled = op == "linear_avgpool_gelu_scale_max"
    if pooled or kernel_size != 1:
        kernel_size = check_kernel_size("explain", kernel_size, n if pooled else 1)
    mode = _precision.requested("explain", precision)
    lines = [f"{op}  M={m} N={n} K={k}" + (f" kernel_size={kernel_size}" if pooled else "")]
    target = _target(device)
    if target is None:
        lines.append(f"the plain PyTorch reference would run: {_reference_reason(device)}")
        if not _library.loaded():
            return Report("\n".join(lines))
        gpu = plans.H200
        lines.append(f"on an H200 ({gpu.sm_count} SMs) it would be:")
        reason = None if mode == "ieee" else _library.fp16x3_build_reason()
    else:
        gpu = plans.gpu(target)
        name = torch.cuda.get_device_name(target)
        lines.append(f"on cuda:{target}, {name} ({gpu.sm_count} SMs):")
        reason = _precision.reason_not_native(mode, torch.device("cuda", target))
    if reason is not None:
        lines.append(f"  precision {mode!r} has no native kernel here: {reason}; 'ieee' stands in")
        mode = "ieee"
    fp16x3 = mode == "fp16x3"
    if m == 0 or n == 0:
        lines.append("  nothing, the output is empty")
        return Report("\n".join(lines))
    if fp16x3 and packed and k > 0:  # a pack without elements has no halves
        lines.append("  weights split into fp16 halves when they were packed")
    if pooled:
        lines += _pooled_lines(m, n, k, kernel_size, packed, approximate, gpu, fp16x3)
    else:
        plan = plans.linear_plan("identity", (), m, n, k, gpu, 1, fp16x3, fp16x3 and packed)
        lines.append(_plan_line("linear", plan))
        lines.append(f"  bias, {gelu_name(approximate)} and row softmax in one pass")
    return Report("\n".join(lines))


def _sizes(shape: Sequence[int]) -> tuple[int, int, int]:
    """(M, N, K), checked."""
    op = "explain"
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise TypeError(f"{op}: shape must be (M, N, K), got {shape!r}")
    if len(shape) != 3:
        raise ValueError(f"{op}: shape must be (M, N, K), got {shape!r}")
    m, n, k = (integer(op, name, size) for name, size in zip("MNK", shape, strict=True))
    if min(m, n, k) < 0:
        raise ValueError(f"{op}: shape must be (M, N, K) of sizes, got {shape!r}")
    check_sizes(op, m, n, k)
    return m, n, k


def _target(device: torch.device | str | int | None) -> int | None:
    """Index of the CUDA device that would run native kernels; None where none would."""
    if not torch.cuda.is_available():
        return None
    chosen = _device(device)
    if chosen.type != "cuda":
        return None
    index = torch.cuda.current_device() if chosen.index is None else chosen.index
    native = _library.unsupported_reason(torch.device("cuda", index)) is None
    return index if native else None


def _device(device: torch.device | str | int | None) -> torch.device:
    """A number counts CUDA devices, also where there are none (torch.device(0) raises there)."""
    if isinstance(device, int):
        return torch.device("cuda", device)
    return torch.device("cuda" if device is None else device)


def _reference_reason(device: torch.device | str | int | None) -> str:
    chosen = _device(device)
    if chosen.type != "cuda":
        return f"the device is {chosen}"
    if not torch.cuda.is_available():
        return _no_cuda_reason()
    index = torch.cuda.current_device() if chosen.index is None else chosen.index
    return _library.unsupported_reason(torch.device("cuda", index)) or "no reason known"


def _pooled_lines(
    m: int,
    n: int,
    k: int,
    kernel_size: int,
    packed: bool,
    approximate: str,
    gpu: plans.Gpu,
    fp16x3: bool,
) -> list[str]:
    name = pooled_name(approximate)
    windows = n // kernel_size
    lines = []
    if packed and kernel_size > 1:
        lines.append("  weights folded when they were packed")
        route = plans.pooled_route(name, m, windows, k, 1, gpu, kernel_size, fp16x3, fp16x3)
    else:
        halves = fp16x3 and packed and kernel_size == 1
        route = plans.pooled_route(name, m, n, k, kernel_size, gpu, 1, fp16x3, halves)
        if route.fold:
            lines.append(f"  fold the weights, {route.rows} rows to {windows}")
    return [*lines, _plan_line(name, route.plan)]


def _plan_line(name: str, plan: plans.Plan) -> str:
    estimate = plan.nanoseconds / 1000.0
    return f"  {name}: {OPS._describe_plan(plan)}; estimated {estimate:.1f} us"
