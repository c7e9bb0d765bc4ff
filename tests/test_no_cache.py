"""Nothing remembers the weights of a call: there is no cache where nobody packed."""

from __future__ import annotations

import pytest
import torch
from fused import BOTH, Fused, linear_like

both = pytest.mark.parametrize("op", BOTH, ids=repr)


@both
@pytest.mark.parametrize("requires_grad", [False, True])
def test_writes_to_data_are_seen(op: Fused, requires_grad: bool, device: str) -> None:
    """pytorch#6990, #30987: neither version nor pointer changes."""
    x, weight, bias = linear_like(20, 24, 16, device, requires_grad=requires_grad)
    for _ in range(3):
        version, pointer = weight._version, weight.data_ptr()
        y = op.call(x, weight, bias).detach()
        op.judge(y, x.detach(), weight.detach(), bias.detach())
        weight.data.mul_(-2)
        assert (weight._version, weight.data_ptr()) == (version, pointer)
        assert not torch.equal(op.call(x, weight, bias), y)


@both
def test_a_new_weight_at_the_address_of_an_old_one(op: Fused, device: str) -> None:
    """antirez/iris.c PR#28, Camelid PR#216, flashinfer PR#4069: a pointer as the key of a cache."""
    x, _, _ = linear_like(6, 24, 16, device)
    addresses = set()
    for seed in range(20):
        _, weight, bias = linear_like(6, 24, 16, device, seed=seed)
        addresses.add(weight.data_ptr())
        op.judge(op.call(x, weight, bias), x, weight, bias)
        del weight, bias
    assert len(addresses) < 20, "no address was used again, so this proves nothing"


@both
def test_swapped_storage_is_seen(op: Fused, device: str) -> None:
    """param.data = other: the same object, another storage."""
    x, weight, bias = linear_like(6, 24, 16, device)
    parameter = torch.nn.Parameter(weight)
    op.call(x, parameter, bias)
    parameter.data = torch.randn_like(weight)
    y = op.call(x, parameter, bias).detach()
    op.judge(y, x, parameter.detach(), bias)
