"""Streams, graphs, devices, memory: how the ops behave in the CUDA runtime."""

from __future__ import annotations

import gc
import itertools
import os
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from fused import BOTH, Fused, linear_like, pool_max_op, same_bits, softmax_op
from native import require_kernels
from programs import run_python
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import cutlass_ops
from cutlass_ops import plans, precision

kernels = torch.ops.cutlass_ops

OPS = (softmax_op(), pool_max_op(1, -2.0), pool_max_op(16, 2.0), pool_max_op(3))
every_op = pytest.mark.parametrize("op", OPS, ids=repr)


@pytest.fixture(autouse=True)
def _needs_kernels(cuda: str) -> Iterator[None]:
    require_kernels(cuda)
    return


second_device = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs a second CUDA device"
)

FIRST_CALL = """
import torch, cutlass_ops
from torch.nn import functional as F

def call(x, w, b, long):
    return (
        cutlass_ops.linear_gelu_softmax(x, w, b),
        cutlass_ops.linear_avgpool_gelu_scale_max(x, w, b, kernel_size={k}, scale=2.0),
        cutlass_ops.softmax(x),
        cutlass_ops.gelu_scale_max(x),
        cutlass_ops.softmax(long),
    )

torch.set_default_device("cuda")
x, w, b = torch.zeros({m}, 96), torch.randn(200, 96), torch.randn(200)
long = torch.zeros(2, 40_000)  # a row in a cluster of CTAs, where there are any
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = call(x, w, b, long)
for seed in range(3):
    torch.manual_seed(seed)
    x.copy_(torch.randn_like(x))
    w.copy_(torch.randn_like(w))
    long.copy_(torch.randn_like(long))
    graph.replay()
    for a, e in zip(captured, call(x, w, b, long), strict=True):
        assert torch.equal(a, e), (a - e).abs().max()
    z = F.linear(x.double(), w.double(), b.double())
    assert (captured[0] - F.softmax(F.gelu(z), -1)).abs().max() < 1e-5
print("captured")
"""


@pytest.mark.parametrize(("m", "k"), [(1, 16), (64, 16), (300, 7)])
def test_graph_capture_from_the_first_call(m: int, k: int) -> None:
    """In a fresh process: no warm-up, nothing loaded, no workspace, no plan yet."""
    done = run_python("-c", FIRST_CALL.format(m=m, k=k))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "captured" in done.stdout


@every_op
def test_capture_of_forward_and_backward(op: Fused, cuda: str) -> None:
    operands = linear_like(40, 96, 64, cuda, requires_grad=True)
    x = operands[0]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # PyTorch asks for a warm-up of backward: cuBLAS allocates
        torch.autograd.grad(op.call(*operands).square().sum(), operands)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grads = torch.autograd.grad(op.call(*operands).square().sum(), operands)
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    expected = torch.autograd.grad(op.call(*operands).square().sum(), operands)
    for a, e in zip(grads, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-7)


def on_side_stream(run: Callable[[Tensor], Tensor], late: Tensor) -> Tensor:
    """What `run` makes of a copy that a sleeping stream has not written yet: it holds NaN, which
    work on the default stream would read."""
    target = torch.full_like(late, float("nan"))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        target.copy_(late)
        seen = run(target).clone()
    stream.synchronize()
    return seen


@every_op
@pytest.mark.parametrize("m", [2, 300])
def test_side_stream(op: Fused, m: int, cuda: str) -> None:
    """tile-ai/tilelang#89, pytorch#157363: ops that ran on the default stream."""
    x, weight, bias = linear_like(m, 256, 128, cuda)
    expected = op.call(x, weight, bias)
    assert same_bits(on_side_stream(lambda late: op.call(late, weight, bias), x), expected)


def skip_unless_native(mode: str) -> None:
    reason = precision.reason_not_native(mode, torch.device("cuda"))
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize(
    ("what", "mode"),
    [
        *itertools.product(("product", "transposed product", "packed"), precision.MODES),
        ("folded", "ieee"),
    ],
)
def test_side_stream_of_backward_and_of_packing(what: str, mode: str, cuda: str) -> None:
    """The same of the products of backward, at sizes at which they are ours, of a packed weight
    that is written late, and of folding."""
    skip_unless_native(mode)
    x, late, _ = linear_like(512, 2048, 4096, cuda)
    other = torch.randn(512, 2048, device=cuda)

    def run(t: Tensor) -> Tensor:
        if what == "product":
            return kernels.product(x, False, t.t().contiguous(), mode)
        if what == "transposed product":
            return kernels.product(t[:512], True, other, mode)
        if what == "folded":
            return cutlass_ops.fold_linear(t, None, 4)[0]
        pack = cutlass_ops.pack_linear(t, precision=mode)
        return cutlass_ops.linear_gelu_softmax(x, pack)

    with cutlass_ops.float32_precision(mode):
        expected = run(late)
        assert same_bits(on_side_stream(run, late), expected)


@every_op
def test_results_of_a_side_stream_survive_freeing_the_inputs(op: Fused, cuda: str) -> None:
    """TensorRT-LLM PR#15265, PR#15534: workspaces freed too early, or kept for ever."""
    x, weight, bias = linear_like(200, 256, 128, cuda)
    expected = op.call(x, weight, bias)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results = []
        for _ in range(20):
            mine = x.clone()
            results.append(op.call(mine, weight, bias))
            del mine
            torch.full((200, 256), float("nan"), device=cuda)  # reuses what was freed
    stream.synchronize()
    assert all(same_bits(y, expected) for y in results)


def foreign_memory() -> int:
    """Device memory in use beyond what PyTorch's allocator holds."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def test_memory_is_flat_over_a_thousand_shapes_and_eight_streams(cuda: str) -> None:
    """TransformerEngine PR#1715, comfy-kitchen PR#167: a workspace per shape or stream, never
    freed."""
    streams = [torch.cuda.Stream() for _ in range(8)]
    generator = torch.Generator().manual_seed(0)

    def run(calls: int) -> None:
        for i in range(calls):
            m, n, k = (int(s) for s in torch.randint(1, 300, (3,), generator=generator))
            op = (softmax_op(), pool_max_op(max(1, n // 5)))[i % 2]
            with torch.cuda.stream(streams[i % 8]):
                op.call(*linear_like(m, n, k, cuda))
        torch.cuda.synchronize()
        gc.collect()

    run(100)
    allocated, foreign = torch.cuda.memory_allocated(), foreign_memory()
    run(1000)
    assert torch.cuda.memory_allocated() == allocated
    if "PYTEST_XDIST_WORKER" not in os.environ:  # other processes use the device's memory too
        assert foreign_memory() - foreign < 2**25


def test_caches_of_plans_are_bounded(cuda: str) -> None:
    x = torch.randn(1, 4, device=cuda)
    for n in range(1, 5000):
        cutlass_ops.linear_gelu_softmax(x, x.expand(n, 4))
    assert 0 < plans.linear_plan.cache_info().currsize <= plans._LIMIT < 5000


@second_device
@every_op
def test_tensors_of_another_device_than_the_current_one(op: Fused, cuda: str) -> None:
    """causal-conv1d#69, Liger-Kernel#1304, diso#5: without a guard the launch goes to device 0."""
    x, weight, bias = linear_like(30, 64, 40, "cuda:1")
    assert torch.cuda.current_device() == 0
    y = op.call(x, weight, bias)
    assert y.device == torch.device("cuda:1")
    op.judge(y, x, weight, bias)
    with torch.cuda.stream(torch.cuda.Stream("cuda:1")):
        op.judge(op.call(x, weight, bias), x, weight, bias)
    grads = torch.autograd.grad(
        op.call(*(t.requires_grad_() for t in (x, weight, bias))).sum(), (x, weight, bias)
    )
    assert all(g.device == x.device for g in grads)
    assert torch.cuda.current_device() == 0


@second_device
@every_op
@pytest.mark.parametrize("moved", [0, 1, 2])
def test_operands_on_two_gpus_raise_naming_both(op: Fused, moved: int, cuda: str) -> None:
    operands = list(linear_like(3, 8, 5, cuda))
    operands[moved] = operands[moved].to("cuda:1")
    with pytest.raises(ValueError, match=r"(?s)(?=.*cuda:0)(?=.*cuda:1)"):
        op.call(*operands)


def kernels_of(function: object, *args: Tensor) -> list[str]:
    """Names of everything that ran on the GPU, copies and fills included."""
    function(*args)  # type: ignore[operator]
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        function(*args)  # type: ignore[operator]
        torch.cuda.synchronize()
    gpu = torch.autograd.DeviceType.CUDA
    return [event.name for event in recorded.events() if event.device_type == gpu]


@pytest.fixture(scope="module")
def profiler(cuda: str) -> None:
    if not kernels_of(torch.sin, torch.ones(1000, device=cuda)):
        pytest.skip("the profiler sees no kernels on this machine (no access to CUPTI)")


@every_op
@pytest.mark.parametrize("m", [1, 16, 700])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_forward_runs_kernels_of_this_library_only(
    op: Fused, m: int, requires_grad: bool, profiler: None, cuda: str
) -> None:
    """No cuBLAS, no ATen kernel, no copy, no fill: that is what fused means."""
    operands = linear_like(m, 1024, 768, cuda, requires_grad=requires_grad)
    names = kernels_of(op.call, *operands)
    assert names
    assert all("cutlass_ops" in name for name in names), names


def test_parts_run_kernels_of_this_library_only(profiler: None, cuda: str) -> None:
    z = torch.randn(64, 1000, device=cuda)
    wide = torch.randn(64, 2000, device=cuda)[:, 3:1003]  # rows of any stride are read in place
    for source in (z, wide):
        for part in (cutlass_ops.softmax, cutlass_ops.gelu_softmax, cutlass_ops.gelu_scale_max):
            names = kernels_of(part, source)
            assert len(names) >= 1
            assert all("cutlass_ops" in name for name in names), names


def test_packed_pooled_op_reads_no_more_than_the_pack(profiler: None, cuda: str) -> None:
    """A pack is folded already: no fold kernel at call time."""
    x, weight, bias = linear_like(64, 1024, 256, cuda)
    pack = cutlass_ops.pack_linear(weight, bias, kernel_size=16)
    packed = kernels_of(lambda: cutlass_ops.linear_avgpool_gelu_scale_max(x, pack))
    assert packed
    assert not any("fold" in name for name in packed)


@pytest.mark.parametrize("op", BOTH, ids=repr)
def test_a_device_without_kernels_falls_back_with_one_warning(
    op: Fused, cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mish-cuda#10, pytorch#81883, NVIDIA/cutlass#1728: "no kernel image is available" at run
    time."""
    monkeypatch.setattr("cutlass_ops.warn._warned", set())
    reason = "compute capability 1.0, and the kernels were built for 80, 90a"
    monkeypatch.setattr("cutlass_ops._library.unsupported_reason", lambda device: reason)
    operands = linear_like(9, 40, 24, cuda)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [op.call(*operands) for _ in range(3)]
    assert [reason in str(w.message) for w in caught] == [True]
    for y in results:
        op.judge(y, *operands)


def test_running_out_of_memory_is_pytorchs_own_error(cuda: str) -> None:
    """Allocations happen in Python, so that the error keeps its type, and the next call works."""
    x = torch.zeros(1, 4, device=cuda).expand(2**24, 4)
    weight = torch.zeros(1, 4, device=cuda).expand(2**18, 4)
    with pytest.raises(torch.OutOfMemoryError):
        cutlass_ops.linear_gelu_softmax(x, weight)
    operands = linear_like(5, 6, 7, cuda)
    softmax_op().judge(softmax_op().call(*operands), *operands)


def test_extents_beyond_32_bits_are_refused(cuda: str) -> None:
    """One clear error that names the limit, before any memory is taken."""
    x = torch.zeros(1, 1, device=cuda).expand(2**31 + 8, 1)
    weight = torch.zeros(1, 1, device=cuda)
    with pytest.raises(ValueError, match=r"linear_avgpool_gelu_scale_max.*limited to \d+"):
        cutlass_ops.linear_avgpool_gelu_scale_max(x, weight, kernel_size=1)


@pytest.mark.parametrize("rows", [1, 40, 600])
def test_kernels_that_start_early_wait_for_what_they_read(rows: int, cuda: str) -> None:
    """With programmatic dependent launch a kernel is on the GPU before the one before it has ended.
    Ops that feed one another must give the same bits whether the GPU rests between them or not."""
    start, weight, bias = linear_like(rows, 512, 512, cuda)
    weight *= 1000  # so that each step gives other numbers, and stale ones would show

    def steps(pause: bool) -> list[Tensor]:
        x, results = start, []
        for _ in range(12):
            x = cutlass_ops.linear_gelu_softmax(x, weight, bias)
            results.append(x)
            for y in (
                cutlass_ops.linear_avgpool_gelu_scale_max(x, weight, bias, kernel_size=16),
                cutlass_ops.gelu_scale_max(x),
            ):
                results.append(y)
                if pause:
                    torch.cuda.synchronize()
        return results

    def in_turns(pause: bool) -> Tensor:
        """Without results that are kept: each step writes where the one before it has read."""
        x = start
        for _ in range(12):
            x = cutlass_ops.linear_gelu_softmax(x, weight, bias)
            if pause:
                torch.cuda.synchronize()
        return x

    assert same_bits(in_turns(pause=False), in_turns(pause=True))
    expected = steps(pause=True)
    assert all(same_bits(a, b) for a, b in zip(steps(pause=False), expected, strict=True))
    assert not any(same_bits(a, b) for a, b in zip(expected[::3], expected[3::3], strict=False))


@pytest.mark.parametrize("mode", precision.MODES)
def test_kernels_of_training_that_start_early_wait_for_what_they_read(mode: str, cuda: str) -> None:
    """The same of forward and backward, at a size at which the products are ours."""
    skip_unless_native(mode)
    start, weight, bias = linear_like(512, 2048, 4096, cuda)
    g = torch.randn(512, 2048, device=cuda)

    def step(x: Tensor, rest: Callable[[], None]) -> Iterator[Tensor]:
        y, z = kernels.linear_gelu_softmax_training(x, weight, bias, "none", mode)
        rest()
        dz, dbias = kernels.gelu_softmax_backward(g, z, None, y, "none", True)
        rest()
        yield kernels.product(dz, False, weight, mode)
        rest()
        yield kernels.product(dz, True, x, mode)
        rest()
        y, index, slopes, folded = kernels.linear_avgpool_gelu_scale_max_training(
            x, weight, bias, 4, 2.0, "none", mode
        )
        rest()
        yield from kernels.winner_gradients(
            y, index, slopes, x, folded, len(weight), 4, True, True, True
        )
        rest()
        yield from (dz, dbias, y)

    def steps(rest: Callable[[], None]) -> list[list[Tensor]]:
        x, results = start, []
        for _ in range(6):
            results.append(list(step(x, rest)))
            dx = results[-1][0]
            x = start + dx / dx.abs().max()  # other numbers in each step: stale ones would show
        return results

    expected = steps(torch.cuda.synchronize)
    for found, right in zip(steps(lambda: None), expected, strict=True):
        assert all(same_bits(a, b) for a, b in zip(found, right, strict=True))
    for before, after in itertools.pairwise(expected):
        assert not any(same_bits(a, b) for a, b in zip(before, after, strict=True))
