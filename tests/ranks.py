"""Training on two processes, each with half of a batch: what a rank does, and how they start.

The module is imported by the ranks, so it must not need pytest.
"""

from __future__ import annotations

import datetime
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training import TASKS, Task, take_gradients

WORLD, ROWS, LEARNING_RATE = 2, 24, 0.1
Batch = tuple[Tensor, Tensor]
Found = dict[str, list[Tensor]]  # "gradients" of the first step, "parameters" after the second


def whole(tensor: Any) -> Tensor:
    """A tensor that is sharded over the ranks, on each of them."""
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()


def train(task: Task, model: nn.Module, batches: list[list[Batch]]) -> Found:
    """A step for each entry of `batches`, of the mean loss over its batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    gradients: list[Tensor] = []
    for parts in batches:
        for index, (x, target) in enumerate(parts):
            last = index == len(parts) - 1
            if isinstance(model, DistributedDataParallel) and not last:
                with model.no_sync():
                    (task.loss(model(x), target) / len(parts)).backward()
            else:
                (task.loss(model(x), target) / len(parts)).backward()
        gradients = gradients or [whole(p.grad) for p in model.parameters()]
        optimizer.step()
        take_gradients(model)
    return {"gradients": gradients, "parameters": [whole(p) for p in model.parameters()]}


def steps(task: Task) -> list[Batch]:
    """The whole batches of two steps."""
    return [task.batch(ROWS, seed=seed) for seed in (0, 1)]


def cut(batch: Batch, pieces: int) -> list[Batch]:
    return list(zip(*(t.chunk(pieces) for t in batch), strict=True))


def ddp(task: Task, rank: int) -> Found:
    model = DistributedDataParallel(task.model())
    return train(task, model, [[cut(batch, WORLD)[rank]] for batch in steps(task)])


def ddp_micro_batches(task: Task, rank: int) -> Found:
    """Gradients are exchanged with the last of three micro-batches only."""
    model = DistributedDataParallel(task.model())
    return train(task, model, [cut(cut(batch, WORLD)[rank], 3) for batch in steps(task)])


def fsdp(task: Task, rank: int) -> Found:
    """Each rank keeps half of every parameter; the head is a group of its own."""
    model = task.model()
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert model[2].weight.to_local().shape[0] == model[2].out_features // WORLD
    return train(task, model, [[cut(batch, WORLD)[rank]] for batch in steps(task)])


WAYS = {"ddp": ddp, "ddp micro-batches": ddp_micro_batches, "fsdp": fsdp}


def one_process(task: Task) -> Found:
    """What every way must come to: the whole batches on one model."""
    return train(task, task.model(), [[batch] for batch in steps(task)])


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=60),
    )
    found: dict[str, Any] = {}
    for name, way in WAYS.items():
        for task in TASKS:
            try:
                found[f"{name} {task}"] = way(task, rank)
            except Exception:  # for the test of this way; the other rank fails in the same place
                found[f"{name} {task}"] = traceback.format_exc()
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def run_ranks(folder: Path) -> list[dict[str, Any]]:
    """Start the ranks and wait; for each {way and task: what it found, or its traceback}."""
    mp.spawn(_rank, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
