"""Both heads as the last layer of a model in training, with what PyTorch builds around autograd.

Elsewhere: backward twice, writes into saved inputs, inputs without grad (test_autograd.py);
checkpointing, the parameters that fused optimizers wrote (test_nn.py); torch.func
(test_functorch.py); graphs of torch.compile and of CUDA (test_training_graphs.py); several ranks
(test_training_ranks.py); which column a maximum's gradient goes to (test_max_gradient.py).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fused import Fused, linear_like, pool_max_op, same_bits, softmax_op
from torch import Tensor, nn
from training import HIDDEN, TASKS, Task, check_near, take_gradients

every_task = pytest.mark.parametrize("task", TASKS, ids=repr)
every_op = pytest.mark.parametrize("op", [softmax_op(), pool_max_op(5, -1.5)], ids=repr)


def pairs(op: Fused, rows: int, device: str) -> tuple[tuple[Tensor, ...], Tensor]:
    """Operands that require grad, and the op's result with two leading dims."""
    x, weight, bias = linear_like(rows, 66, 24, device, requires_grad=True)
    return (x, weight, bias), op.call(x.view(2, rows // 2, 24), weight, bias)


@every_task
@pytest.mark.parametrize("sizes", [(12, 12, 12, 12), (1, 5, 42)], ids=str)
def test_micro_batches_add_up(task: Task, sizes: tuple[int, ...], device: str) -> None:
    """Gradient accumulation, with sizes that different kernels are for."""
    model = task.model(device)
    x, target = task.batch(48, device)
    whole = task.gradients(model, [(x, target)], 48)
    parts = zip(x.split(sizes), target.split(sizes), strict=True)
    check_near(task.gradients(model, parts, 48), whole)
    check_near(whole, task.gradients(task.model(device, fused=False), [(x, target)], 48))


def expanded(g: Tensor) -> Tensor:
    """Stride 0 in every dim, as sum() sends it."""
    return g.flatten()[:1].view([1] * g.dim()).expand(g.shape)


def expanded_rows(g: Tensor) -> Tensor:
    return g[:1].expand(g.shape)


def expanded_columns(g: Tensor) -> Tensor:
    return g[..., :1].expand(g.shape)


def transposed(g: Tensor) -> Tensor:
    return g.transpose(0, -1).contiguous().transpose(0, -1)


def sliced(g: Tensor) -> Tensor:
    return g.repeat_interleave(2, -1)[..., ::2]


def offset(g: Tensor) -> Tensor:
    """Contiguous, at an address of no more than 4 bytes' alignment."""
    return torch.cat((g.new_zeros(1), g.flatten()))[1:].view(g.shape)


LAYOUTS = (expanded, expanded_rows, expanded_columns, transposed, sliced, offset)


@every_op
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_incoming_gradients_of_any_layout(
    op: Fused, layout: Callable[[Tensor], Tensor], device: str
) -> None:
    """And it is left as it was: another node may receive the same tensor."""
    operands, y = pairs(op, 12, device)
    generator = torch.Generator(device).manual_seed(1)
    g = layout(torch.randn(y.shape, generator=generator, device=device))
    assert g.shape == y.shape
    before, dense = g.clone(), g.clone(memory_format=torch.contiguous_format)
    actual = torch.autograd.grad(y, operands, g, retain_graph=True)
    assert same_bits(g.contiguous(), before.contiguous())
    expected = torch.autograd.grad(y, operands, dense)
    assert same_bits(dense, before.contiguous())
    if layout is expanded and op.op is softmax_op().op:
        # A gradient alike for all of a row leaves rounding errors.
        assert all(a.abs().max() < 1e-6 for a in (*actual, *expected))
    else:
        check_near(actual, expected, 1e-6)


@every_op
def test_a_gradient_shared_with_another_node(op: Fused, device: str) -> None:
    """y + y2 sends one tensor to both; a backward that writes into it spoils the other's."""
    operands, y = pairs(op, 12, device)
    others, second = pairs(op, 12, device)
    g = torch.linspace(-1, 1, y.numel(), device=device).view(y.shape)
    together = torch.autograd.grad(y + second, (*operands, *others), g, retain_graph=True)
    alone = torch.autograd.grad(y, operands, g)
    for a, b in zip(together, (*alone, *alone), strict=True):
        assert same_bits(a, b)


@every_op
def test_tensor_hooks(op: Fused, device: str) -> None:
    """On the result and on each operand: they see the gradients, and what they return counts."""
    operands, y = pairs(op, 12, device)
    g = torch.linspace(-1, 1, y.numel(), device=device).view(y.shape)
    expected = torch.autograd.grad(y, operands, g, retain_graph=True)
    seen: list[Tensor] = []

    def double(grad: Tensor) -> Tensor:
        seen.append(grad.clone())
        return 2 * grad

    y.register_hook(double)
    y.retain_grad()
    for t in operands:
        t.register_hook(double)
    y.backward(g)
    assert len(seen) == 1 + len(operands)
    assert same_bits(seen[0], g)
    assert y.grad is not None
    assert same_bits(y.grad, 2 * g)
    for t, once in zip(operands, expected, strict=True):
        assert t.grad is not None
        assert same_bits(t.grad, 4 * once)  # a power of two rounds nothing
    assert sum(any(same_bits(s, 2 * e) for s in seen[1:]) for e in expected) == len(expected)


@every_task
def test_module_hooks(task: Task, device: str) -> None:
    """Full backward hooks wrap input and output in nodes of their own."""
    x, target = task.batch(9, device)
    model = task.model(device)
    expected = task.gradients(model, [(x, target)], 9)
    head = model[2]
    order: list[str] = []
    grads: dict[str, Tensor] = {}

    def before(module: nn.Module, grad_output: tuple[Tensor, ...]) -> None:
        order.append("before")
        (grads["output"],) = grad_output

    def after(module: nn.Module, grad_input: tuple[Tensor, ...], _: tuple[Tensor, ...]) -> None:
        order.append("after")
        (grads["input"],) = grad_input

    head.register_full_backward_pre_hook(before)
    head.register_full_backward_hook(after)
    actual = task.gradients(model, [(x, target)], 9)
    assert order == ["before", "after"]
    assert grads["input"].shape == (9, HIDDEN)
    for a, b in zip(actual, expected, strict=True):
        assert same_bits(a, b)
    hidden = model[:2](x).detach().requires_grad_()
    (dx,) = torch.autograd.grad(head(hidden), hidden, grads["output"])
    assert same_bits(grads["input"], dx)


@every_task
def test_an_optimizer_inside_backward(task: Task, device: str) -> None:
    """Each parameter is written as soon as its gradient is there, while backward still runs."""
    x, target = task.batch(9, device)
    plain, hooked = task.model(device), task.model(device)

    def step(parameter: Tensor) -> None:
        assert parameter.grad is not None
        with torch.no_grad():
            parameter -= 0.1 * parameter.grad
        parameter.grad = None

    for p in hooked.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        task.loss(hooked(x), target).backward()
        task.loss(plain(x), target).backward()
        for p in plain.parameters():
            step(p)
    for a, b in zip(hooked.parameters(), plain.parameters(), strict=True):
        assert same_bits(a.detach(), b.detach())


@every_task
def test_automatic_mixed_precision(task: Task, device: str) -> None:
    """Body in half, head in float32, and a loss scaled by a power of two: unscaled gradients are
    those of PyTorch's head, and of no scaling at all."""
    half = torch.float16 if device == "cuda" else torch.bfloat16
    x, target = task.batch(48, device)

    def run(model: nn.Module, scale: float) -> list[Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=scale, enabled=scale != 1)
        with torch.autocast(device, dtype=half):
            y = model(x)
            assert y.dtype == torch.float32
            loss = task.loss(y, target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        grads = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
        before = [p.detach().clone() for p in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        stepped = [b - 0.1 * g for b, g in zip(before, grads, strict=True)]
        check_near(list(model.parameters()), stepped, 1e-6)
        return grads

    # The body's gradients are rounded to half on their way.
    limits = [2e-2, 2e-2, 1e-5, 1e-5]
    scaled = run(task.model(device), 2.0**12)
    check_near(scaled, run(task.model(device), 1), limits)
    check_near(scaled, run(task.model(device, fused=False), 2.0**12), limits)


@every_task
@pytest.mark.parametrize("where", ["loss", "input"])
def test_overflow_skips_the_step(task: Task, where: str, device: str) -> None:
    """GradScaler looks for an infinity or a NaN in the gradients: backward must not swallow it."""
    model = task.model(device)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**16)
    x, target = task.batch(9, device)
    factor = 1.0
    if where == "loss":
        factor = 1e38
    else:
        x[4, 3] = torch.inf
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = task.loss(model(x), target)
    scaler.scale(loss * factor).backward()
    for name, p in model[2].named_parameters():
        assert p.grad is not None
        assert not p.grad.isfinite().all(), name
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15
    for p, b in zip(model.parameters(), before, strict=True):
        assert same_bits(p.detach(), b)


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


@every_task
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_lowers_the_loss_as_pytorch_does(task: Task, name: str, device: str) -> None:
    """Ten steps from the same parameters: the losses fall, along PyTorch's own."""
    x, target = task.batch(48, device)
    curves = []
    for fused in (True, False):
        model = task.model(device, fused=fused)
        optimizer = OPTIMIZERS[name](list(model.parameters()))

        def closure(model: nn.Module = model, optimizer: object = optimizer) -> Tensor:
            model.zero_grad()
            loss = task.loss(model(x), target)
            loss.backward()
            return loss

        losses = [float(optimizer.step(closure).detach()) for _ in range(10)]  # type: ignore
        curves.append(torch.tensor([*losses, float(closure().detach())]))
        take_gradients(model)
    ours, plain = curves
    assert ours[-1] < 0.95 * ours[0]
    torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4)
