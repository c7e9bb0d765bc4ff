"""Data parallel training with gloo on the CPU: two ranks come to what one process does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from training import TASKS, Task, check_near

if not torch.distributed.is_available():
    pytest.skip("torch.distributed is not in this build", allow_module_level=True)

from ranks import WAYS, one_process, run_ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("task", TASKS, ids=repr)
@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_train_as_one_process(way: str, task: Task, found: list[dict[str, Any]]) -> None:
    """DistributedDataParallel, with micro-batches too, and FSDP2, whose parameters are sharded
    DTensors that it swaps for whole tensors around forward and backward."""
    expected = one_process(task)
    for of_rank in found:
        actual = of_rank[f"{way} {task}"]
        assert isinstance(actual, dict), actual  # a traceback
        for key, tensors in expected.items():
            check_near(actual[key], tensors)
