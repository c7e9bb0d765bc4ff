"""torch.compile and torch.export: no graph break, no stale weights, the shapes that fakes
promise."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fused import Fused, linear_like, pool_max_op, softmax_op
from operands import Linear
from oracle import check
from torch import Tensor, nn

import cutlass_ops

OPS = (softmax_op(), pool_max_op(3, -1.5))
every_op = pytest.mark.parametrize("op", OPS, ids=repr)
modules = pytest.mark.parametrize(
    "make",
    [
        lambda: cutlass_ops.nn.LinearGELUSoftmax(24, 32),
        lambda: cutlass_ops.nn.LinearAvgPoolGELUScaleMax(24, 32, 5, 2.0),
    ],
    ids=["softmax", "pool_max"],
)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def head_of(module: nn.Module) -> Any:
    if isinstance(module, cutlass_ops.nn.LinearGELUSoftmax):
        return softmax_op().head
    return pool_max_op(module.kernel_size, module.scale).head  # type: ignore[arg-type]


def compiled(function: Any, **options: Any) -> Any:
    """Traced and run without code generation: seconds less per test, the same tracing and fakes."""
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@every_op
def test_dynamic_shapes_without_recompiling(op: Fused, device: str) -> None:
    _, weight, bias = linear_like(1, 32, 24, device)
    call = compiled(op.call, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for m in (7, 2, 64, 129, 1000):
            x = torch.randn(m, 24, device=device)
            op.judge(call(x, weight, bias), x, weight, bias)


@every_op
def test_all_dims_dynamic(op: Fused, device: str) -> None:
    """N % k != 0 and N % k == 0, one graph."""
    call = compiled(op.call, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for m, n, k in ((7, 32, 24), (5, 33, 16), (9, 40, 65)):
            operands = linear_like(m, n, k, device)
            op.judge(call(*operands), *operands)


@every_op
@pytest.mark.parametrize("shape", [(24,), (1, 24), (0, 24), (2, 0, 24), (2, 3, 24)], ids=str)
def test_shapes_that_tracing_treats_apart(op: Fused, shape: tuple[int, ...], device: str) -> None:
    """cuEquivariance#223, pytorch#154537: no rows, one row, 1-D and 3-D."""
    _, weight, bias = linear_like(1, 32, 24, device)
    x = torch.randn(shape, device=device)
    op.judge(compiled(op.call)(x, weight, bias), x, weight, bias)


@every_op
def test_strided_operands(op: Fused, device: str) -> None:
    """pytorch#182328: the strides of the result matter to what follows it in the graph."""
    x, weight, bias = linear_like(24, 32, 24, device)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return op.call(x.t(), weight, bias).flatten().view(24, -1) * 1.0

    expected = function(x, weight)
    for w in (weight, weight.t().contiguous().t(), weight.repeat_interleave(2, 1)[:, ::2]):
        torch.testing.assert_close(compiled(function)(x, w), expected, rtol=1e-5, atol=1e-7)


@every_op
@pytest.mark.parametrize("bias", [True, False])
def test_gradients(op: Fused, bias: bool, device: str) -> None:
    operands = linear_like(12, 32, 24, device, requires_grad=True)[: 3 if bias else 2]
    call = compiled(op.call, dynamic=True)
    compiled_grads = torch.autograd.grad(call(*operands).square().sum(), operands)
    eager_grads = torch.autograd.grad(op.call(*operands).square().sum(), operands)
    for a, b in zip(compiled_grads, eager_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@every_op
def test_one_op_twice_in_a_graph(op: Fused, device: str) -> None:
    """Two layers of a model. With dynamic=True dynamo makes graph inputs of global floats, and
    failed on those of the second backward that it traced."""
    operands = linear_like(12, 32, 24, device, requires_grad=True)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return op.call(x, weight, bias).sum() + op.call(2 * x, weight, bias).square().sum()

    grads = torch.autograd.grad(compiled(function, dynamic=True)(*operands), operands)
    expected = torch.autograd.grad(function(*operands), operands)
    for a, b in zip(grads, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_parts(device: str) -> None:
    z = torch.randn(6, 33, device=device)

    def function(z: Tensor) -> tuple[Tensor, ...]:
        weight, bias = cutlass_ops.fold_linear(z, z[:, 0], 2)
        assert bias is not None
        return (
            cutlass_ops.gelu_softmax(z, z[0]),
            cutlass_ops.gelu_scale_max(z, scale=-1.0, approximate="tanh"),
            cutlass_ops.softmax(z),
            weight,
            bias,
        )

    for a, b in zip(compiled(function, dynamic=True)(z), function(z), strict=True):
        torch.testing.assert_close(a, b)


@modules
def test_module_after_an_optimizer_step(make: Any, device: str) -> None:
    """pytorch#115774, #135441, #139152: caches on the module break the graph or keep old
    weights."""
    module = make().to(device)
    call = compiled(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    x = torch.randn(16, 24, device=device)
    results = []
    for _ in range(3):
        y = call(x)
        check(y, head_of(module), Linear(x, module.weight.detach(), module.bias.detach()))
        results.append(y.detach())
        optimizer.zero_grad()
        y.square().sum().backward()
        optimizer.step()
    assert not torch.equal(results[0], results[1])
    module.weight.data = torch.randn_like(module.weight)
    check(call(x), head_of(module), Linear(x, module.weight.detach(), module.bias.detach()))


@modules
def test_packed_module(make: Any, device: str) -> None:
    module = make().to(device)
    packed = module.pack()
    x = torch.randn(16, 24, device=device)
    y = compiled(packed, dynamic=True)(x)
    check(y, head_of(module), Linear(x, module.weight.detach(), module.bias.detach()))


@modules
@pytest.mark.parametrize("grad", [True, False])
def test_export(make: Any, grad: bool, device: str) -> None:
    module = make().to(device)
    x = torch.randn(7, 24, device=device)
    batch = torch.export.Dim("batch", min=2, max=4096)
    with torch.set_grad_enabled(grad):
        program = torch.export.export(module, (x,), dynamic_shapes=({0: batch},))
    assert any("cutlass_ops" in str(node.target) for node in program.graph.nodes)
    for rows in (7, 2, 130):
        x = torch.randn(rows, 24, device=device)
        y = program.module()(x).detach()
        check(y, head_of(module), Linear(x, module.weight.detach(), module.bias.detach()))


@every_op
def test_autocast_inside_the_graph(op: Fused, device: str) -> None:
    _, weight, bias = linear_like(1, 32, 24, device)
    first = nn.Linear(24, 24).to(device)

    def function(x: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return op.call(first(x), weight, bias)

    x = torch.randn(9, 24, device=device)
    with torch.no_grad():
        y, expected = compiled(function)(x), function(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, expected, rtol=1e-2, atol=1e-3)


def test_autocast_around_the_graph(device: str) -> None:
    """Every function, on operands in half: cast up inside the graph, a pack's too."""
    z = torch.randn(6, 33, device=device)
    weight, bias = torch.randn(12, 33, device=device), torch.randn(12, device=device)
    packs = [cutlass_ops.pack_linear(weight, bias, kernel_size=k).half() for k in (1, 3)]

    def function(z: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        folded, folded_bias = cutlass_ops.fold_linear(weight, bias, 2)
        assert folded_bias is not None
        return (
            cutlass_ops.linear_gelu_softmax(z, weight, bias),
            cutlass_ops.linear_avgpool_gelu_scale_max(z, weight, bias, kernel_size=3),
            cutlass_ops.linear_gelu_softmax(z, packs[0]),
            cutlass_ops.linear_avgpool_gelu_scale_max(z, packs[1], scale=2.0),
            cutlass_ops.gelu_softmax(z),
            cutlass_ops.gelu_scale_max(z, scale=-1.0, approximate="tanh"),
            cutlass_ops.softmax(z),
            folded,
            folded_bias,
        )

    halves = [t.half() for t in (z, weight, bias)]
    wide = [t.float() for t in halves]
    with torch.autocast(device, dtype=torch.bfloat16):
        found, plain = compiled(function)(*halves), function(*halves)
    for pack in packs:
        pack.float()
    for a, b, c in zip(found, plain, function(*wide), strict=True):
        assert a.dtype == b.dtype == torch.float32
        torch.testing.assert_close(a, c)
        torch.testing.assert_close(b, c)


@every_op
def test_vmap_inside_the_graph(op: Fused, device: str) -> None:
    x, weight, bias = linear_like(12, 32, 24, device)

    def function(x: Tensor) -> Tensor:
        return torch.func.vmap(op.call, (0, None, None))(x.view(3, 4, 24), weight, bias)

    torch.testing.assert_close(compiled(function)(x), function(x), rtol=1e-5, atol=1e-7)


@every_op
@pytest.mark.parametrize("batched", [False, True])
def test_gradient_transforms_inside_the_graph(op: Fused, batched: bool, device: str) -> None:
    """torch.func.grad, and vmap of it, traced: a backward that tracing drops would be zeros."""
    x, weight, bias = linear_like(6, 32, 24, device)

    def loss(weight: Tensor, row: Tensor) -> Tensor:
        return op.call(row, weight, bias).square().sum()

    gradient = torch.func.grad(loss)
    function = torch.func.vmap(gradient, (None, 0)) if batched else gradient
    expected = function(weight, x)
    assert expected.any()
    torch.testing.assert_close(compiled(function)(weight, x), expected, rtol=1e-4, atol=1e-6)


@every_op
def test_code_generation(op: Fused, device: str) -> None:
    """The default backend, with something to fuse on both sides of the op."""
    if device == "cpu" and not shutil.which("c++") and not shutil.which("g++"):
        pytest.skip("Inductor needs a C++ compiler on the CPU")
    x, weight, bias = linear_like(12, 32, 24, device)

    def function(x: Tensor) -> Tensor:
        return op.call(x.sin(), weight, bias).cos().sum(0)

    call = torch.compile(function, fullgraph=True, dynamic=True)
    torch.testing.assert_close(call(x), function(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(call(x[:5]), function(x[:5]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [512, 4096])
@modules
def test_reduce_overhead_after_a_linear(make: Any, size: int, cuda: str) -> None:
    """pytorch#157363, extension-cpp#118: a kernel on the default stream gave wrong numbers only
    under reduce-overhead, after nn.Linear, at sizes of 4096 and more."""
    head = make()
    options = (5, 2.0) if hasattr(head, "kernel_size") else ()
    model = nn.Sequential(nn.Linear(size, size), type(head)(size, size, *options)).to(cuda)
    call = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for seed in range(6):
            generator = torch.Generator(cuda).manual_seed(seed)
            x = torch.randn(size, size, generator=generator, device=cuda)
            torch.compiler.cudagraph_mark_step_begin()
            y = call(x).clone()
            torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-9)


@modules
def test_reduce_overhead_training(make: Any, cuda: str) -> None:
    torch.manual_seed(0)
    module = make().to(cuda)
    call = torch.compile(module, mode="reduce-overhead", fullgraph=True)
    for _ in range(5):
        x = torch.randn(16, 24, device=cuda)
        torch.compiler.cudagraph_mark_step_begin()
        loss = call(x).square().sum()
        loss.backward()
        got = [p.grad.clone() for p in module.parameters()]  # type: ignore[union-attr]
        module.zero_grad()
        module(x).square().sum().backward()
        for p, g in zip(module.parameters(), got, strict=True):
            torch.testing.assert_close(g, p.grad, rtol=1e-4, atol=1e-6)
            p.data -= 0.1 * g
        module.zero_grad()
