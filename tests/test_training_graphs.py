"""Whole training steps as one graph: of torch.compile, and of CUDA."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from training import HIDDEN, TASKS, Task, check_near, take_gradients

every_task = pytest.mark.parametrize("task", TASKS, ids=repr)
LEARNING_RATE = 0.1


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def skip_without_a_compiler(backend: str, device: str) -> None:
    if (
        backend == "inductor"
        and device == "cpu"
        and not (shutil.which("c++") or shutil.which("g++"))
    ):
        pytest.skip("Inductor needs a C++ compiler on the CPU")


@every_task
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_whole_step_is_one_graph(task: Task, backend: str, device: str) -> None:
    """Forward, backward and the optimizer's arithmetic; torch.optim's own steps break a graph."""
    skip_without_a_compiler(backend, device)
    model, twin = task.model(device), task.model(device)
    parameters = list(model.parameters())

    def step(x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        loss = task.loss(model(x), target)
        grads = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, grads, alpha=-LEARNING_RATE)  # type: ignore[arg-type]
        return loss.detach(), *grads

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    optimizer = torch.optim.SGD(twin.parameters(), lr=LEARNING_RATE)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        for seed in range(3):
            x, target = task.batch(16, device, seed)
            loss, *grads = compiled(x, target)
            expected = task.loss(twin(x), target)
            expected.backward()
            optimizer.step()
            check_near([loss, *grads], [expected, *take_gradients(twin)])
            check_near(parameters, twin.parameters())
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1


@every_task
def test_model_and_optimizer_compiled_apart(task: Task, device: str) -> None:
    """As it is mostly done: the loss is one graph, backward comes of it, the optimizer is
    another."""
    model, twin = task.model(device), task.model(device)
    x, target = task.batch(16, device)

    def loss_of(x: Tensor, target: Tensor) -> Tensor:
        return task.loss(model(x), target)

    explained = torch._dynamo.explain(loss_of)(x, target)
    assert (explained.graph_break_count, explained.graph_count) == (0, 1)
    torch._dynamo.reset()
    compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, twin)]
    compiled_step = torch.compile(optimizers[0].step, backend="aot_eager")
    for seed in range(3):
        x, target = task.batch(16, device, seed)
        compiled(x, target).backward()
        compiled_step()
        task.loss(twin(x), target).backward()
        optimizers[1].step()
        # Adam divides by what may be near nothing: parameters are not as near as gradients were.
        check_near(take_gradients(model), take_gradients(twin), 1e-3 if seed else 1e-5)
    check_near(model.parameters(), twin.parameters(), 1e-3)


@every_task
def test_a_captured_step(task: Task, cuda: str) -> None:
    """Forward, backward and optimizer in a CUDA graph that is replayed on new data."""
    model, twin = task.model(cuda), task.model(cuda)
    optimizers = [torch.optim.SGD(m.parameters(), lr=LEARNING_RATE) for m in (model, twin)]
    x, target = task.batch(48, cuda)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # PyTorch asks for a warm-up of backward: cuBLAS allocates
        for _ in range(3):
            task.loss(model(x), target).backward()
            model.zero_grad()
    torch.cuda.current_stream().wait_stream(stream)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = task.loss(model(x), target)
        loss.backward()
        optimizers[0].step()
    grads = [p.grad for p in model.parameters()]
    for seed in range(1, 5):
        fresh, fresh_target = task.batch(48, cuda, seed)
        x.copy_(fresh)
        target.copy_(fresh_target)
        graph.replay()
        expected = task.loss(twin(fresh), fresh_target)
        expected.backward()
        optimizers[1].step()
        check_near([loss, *grads], [expected, *take_gradients(twin)])  # type: ignore[list-item]
        check_near(model.parameters(), twin.parameters())


@every_task
def test_graphed_callables(task: Task, cuda: str) -> None:
    """torch.cuda.make_graphed_callables: forward and backward in a graph each, other layers in
    none."""
    model, twin = task.model(cuda), task.model(cuda)
    hidden = torch.randn(48, HIDDEN, device=cuda, requires_grad=True)
    head = torch.cuda.make_graphed_callables(model[2], (hidden,))
    for seed in range(3):
        x, target = task.batch(48, cuda, seed)
        task.loss(head(model[:2](x)), target).backward()
        task.loss(twin(x), target).backward()
        check_near(take_gradients(model), take_gradients(twin))
