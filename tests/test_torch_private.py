"""A torch without the private names: the calls are slower, and the results the same."""

from __future__ import annotations

import pytest
from programs import run_python

from cutlass_ops import _torch_private
from cutlass_ops.schemas import OPS

NAMES = {
    "transforms_active": "torch._C._are_functorch_transforms_active",
    "dispatch_modes": "torch._C._len_torch_dispatch_stack",
    "function_modes": "torch._C._len_torch_function_stack",
    "tracing_state": "torch._C._get_tracing_state",
    "profiler_enabled": "torch._C._autograd._profiler_enabled",
    "below_autograd": "torch._C._AutoDispatchBelowAutograd",
    "forward_levels": "torch.autograd.forward_ad._current_level",
    "legacy_batched": "torch._C._functorch.is_legacy_batchedtensor",
    "unwrap_if_dead": "torch._C._functorch.unwrap_if_dead",
}

# The names are gone while the package is imported only: torch itself needs them afterwards.
USE = """
import operator, sys, torch
import torch._dynamo, torch._functorch.utils, torch.autograd.forward_ad, torch.library
missing = sys.argv[1].split()
saved = []
for path in missing:
    parent, _, name = path.rpartition(".")
    owner = operator.attrgetter(parent.removeprefix("torch."))(torch)
    saved.append((owner, name, getattr(owner, name)))
    delattr(owner, name)
import cutlass_ops
for owner, name, value in saved:
    setattr(owner, name, value)

from cutlass_ops import calls, reference

assert calls.observed() == ("torch._C._are_functorch_transforms_active" in missing)

torch.manual_seed(0)
x, w, b = torch.randn(5, 8), torch.randn(6, 8), torch.randn(6)
pooled = {"kernel_size": 2, "scale": -1.5}
for op, plain in (
    (cutlass_ops.linear_gelu_softmax, reference.linear_gelu_softmax),
    (
        lambda *t: cutlass_ops.linear_avgpool_gelu_scale_max(*t, **pooled),
        lambda *t: reference.linear_avgpool_gelu_scale_max(*t, **pooled),
    ),
):
    expected = plain(x, w, b)
    with torch.no_grad():
        torch.testing.assert_close(op(x, w, b), expected)
    for call in (op, torch.compile(op, fullgraph=True, backend="aot_eager")):
        torch.testing.assert_close(call(x, w, b), expected)
        inputs = [t.clone().requires_grad_() for t in (x, w, b)]
        grads = torch.autograd.grad(call(*inputs).square().sum(), inputs)
        truth = torch.autograd.grad(plain(*inputs).square().sum(), inputs)
        torch.testing.assert_close(grads, truth)
    rows = torch.func.vmap(op, (0, None, None))(x, w, b)
    torch.testing.assert_close(rows, expected)
    gradient = torch.func.grad(lambda w: op(x, w, b).square().sum())(w)
    torch.testing.assert_close(gradient, truth[1])
"""


@pytest.mark.parametrize(
    "missing",
    ["transforms_active", "forward_levels", " ".join(NAMES)],
    ids=["one", "another", "all"],
)
def test_a_torch_that_lacks_names(missing: str) -> None:
    """Those by which a way is chosen, and all."""
    done = run_python("-c", USE, " ".join(NAMES[name] for name in missing.split()))
    assert done.returncode == 0, done.stdout + done.stderr


def test_this_torch_has_them_all() -> None:
    """Otherwise calls are slow, and nothing else would tell."""
    assert _torch_private.transforms_active() is False
    assert _torch_private.dispatch_modes() == _torch_private.function_modes() == 0
    assert _torch_private.tracing_state() is None
    assert _torch_private.profiler_enabled() is False
    assert _torch_private.forward_levels._current_level == -1
    assert _torch_private.unwrap_if_dead is not None
    assert _torch_private.below_autograd.__name__ == "_AutoDispatchBelowAutograd"
    assert _torch_private.bare_call(OPS.softmax.default) is not OPS.softmax.default
