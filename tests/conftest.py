"""Profiles, markers and the device fixture.

`pytest` runs the profile "dev"; `--hypothesis-profile=ci` or HYPOTHESIS_PROFILE=ci runs more
examples, and `--hypothesis-profile=deep -m deep` runs a thousand of every property of the two ops.
A GPU is used wherever there is one. `-m sanitizer` is the small set that runs under
compute-sanitizer. `--precision=fp16x3` runs the suite in that mode (mode.py).
"""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, is_hypothesis_test, settings

import cutlass_ops

# Test modules share oracle, strategies and the like, and the repository root stays off sys.path, so
# that an installed wheel is tested and not the checkout.
sys.path.insert(0, os.path.dirname(__file__))
pytest.register_assert_rewrite("fake_kernels", "fused", "gradients", "native", "oracle", "packs")

# The first example pays for lazy initialisation, and a shared machine may stall: no deadlines.
_COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "print_blob": True,
}
settings.register_profile("dev", max_examples=25, **_COMMON)
settings.register_profile("ci", max_examples=60, **_COMMON)
settings.register_profile("deep", max_examples=1000, database=None, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

_precision = "ieee"  # of this run

MARKERS = (
    "deep: a property of one of the two ops, cheap enough for a thousand examples",
    "large(gib): needs a GPU with this much free memory",
    "sanitizer: part of the reduced set for compute-sanitizer",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--precision", default="ieee", choices=cutlass_ops.precision.MODES)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    import mode  # behind register_assert_rewrite

    global _precision
    _precision = config.getoption("--precision")
    mode.enter(_precision)


def pytest_report_header() -> list[str]:
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [
        f"cutlass_ops {cutlass_ops.__version__} from {os.path.dirname(cutlass_ops.__file__)}",
        f"torch {torch.__version__}, GPUs: {', '.join(devices) or 'none'}",
    ]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips for what the machine lacks: here, so that the summary has one line for each reason. And
    which sums are forced into the mode of the run (mode.py)."""
    import mode

    if _precision != "ieee" and item.path.stem in mode.MODULES_OF_THE_DEFAULT:
        pytest.skip(f"not in {_precision}: about the default")
    mode.force(short_sums=not is_hypothesis_test(getattr(item, "obj", None)))
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    wants_gpu = item.get_closest_marker("large") or "cuda" in getattr(item, "fixturenames", ())
    if (wants_gpu or parameters.get("device") == "cuda") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if "gpu" in getattr(item, "fixturenames", ()) and "kernel" in parameters:
        from native import reason_without

        reason = reason_without(parameters["kernel"], "cuda")
        if reason is not None:
            pytest.skip(reason)


@pytest.fixture(scope="session", params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def cuda() -> str:
    """For tests that only make sense on a GPU."""
    return "cuda"


@pytest.fixture(scope="session")
def gpu(cuda: str) -> str:
    """For tests that call native kernels: a GPU that the binary was built for."""
    from native import require_kernels

    require_kernels(cuda)
    return cuda


@pytest.fixture(scope="session")
def fp16x3_gpu(gpu: str) -> str:
    """For tests that force a tensor-core kernel."""
    from native import FP16X3, reason_without

    reason = reason_without(FP16X3, gpu)
    if reason is not None:
        pytest.skip(reason)
    return gpu


@pytest.fixture(autouse=True)
def _one_large_test_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Test processes share the GPU; its memory is asked for only while no other large test runs."""
    marker = request.node.get_closest_marker("large")
    if marker is None:
        yield
        return
    with open(os.path.join(tempfile.gettempdir(), "cutlass_ops_large_test.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch.cuda.empty_cache()
        needed, free = marker.args[0], torch.cuda.mem_get_info()[0] / 2**30
        if free < needed:
            pytest.skip(f"needs {needed} GiB of free GPU memory, {free:.0f} GiB are free")
        yield
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def _global_state_is_left_alone() -> Iterator[None]:
    """A test that leaves TF32, autocast, determinism or our precision changed would taint the
    next."""
    yield
    assert cutlass_ops.get_float32_precision() == _precision
    assert not cutlass_ops.precision._strict
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.are_deterministic_algorithms_enabled()
    assert not any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
    assert torch.is_grad_enabled()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended: its tally joins that of all."""
    import oracle

    oracle.tally.update(getattr(node, "workeroutput", {}).get("tally", {}))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    import oracle

    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tally"] = dict(oracle.tally)
    elif exitstatus == 0 and oracle.allowance_is_overused():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    import oracle

    judged, allowed = oracle.tally["judged"], oracle.tally["allowed"]
    if judged:
        failed = f"; FAILED: more than {oracle.MOST_ALLOWED:.0%}"
        terminalreporter.write_line(
            f"oracle: {allowed} of {judged} results passed by the allowance alone (tests/oracle.py)"
            + (failed if oracle.allowance_is_overused() else "")
        )


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`fake_kernels.Kernels`: what Python hands to the binary, without a GPU."""
    from fake_kernels import replace_kernels  # behind register_assert_rewrite

    return replace_kernels(monkeypatch)


@pytest.fixture
def plans_by_cost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests of what the cost model chooses, whatever kernel the run forces (mode.py)."""
    import mode

    monkeypatch.setattr(cutlass_ops.plans, "linear_plan", mode.PLAN_BY_COST)
    monkeypatch.setattr(cutlass_ops.plans, "transposed_plan", mode.TRANSPOSED_BY_COST)
    mode.forget_plans()
    yield
    mode.forget_plans()
