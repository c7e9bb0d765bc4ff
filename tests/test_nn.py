"""The modules: an nn.Linear with another forward, and nothing of its own to go stale."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from fused import Fused, pool_max_op, same_bits, softmax_op
from operands import Linear
from oracle import check
from torch import Tensor, nn

import cutlass_ops
from cutlass_ops.nn import LinearAvgPoolGELUScaleMax, LinearGELUSoftmax

Make = Callable[..., nn.Linear]
IN, OUT = 12, 20


def make_softmax(**options: object) -> nn.Linear:
    return LinearGELUSoftmax(IN, OUT, **options)  # type: ignore[arg-type]


def make_pooled(**options: object) -> nn.Linear:
    return LinearAvgPoolGELUScaleMax(IN, OUT, 4, -1.5, **options)  # type: ignore[arg-type]


MODULES = ((make_softmax, softmax_op()), (make_pooled, pool_max_op(4, -1.5)))
modules = pytest.mark.parametrize(("make", "op"), MODULES, ids=["softmax", "pool_max"])


def judge(module: nn.Linear, op: Fused, device: str, rows: int = 7) -> Tensor:
    """The module's result must be that of its present parameters."""
    x = torch.randn(rows, IN, device=device)
    y = module(x)
    check(y, op.head, Linear(x, module.weight.detach(), module.bias))
    return y


@modules
def test_forward(make: Make, op: Fused, device: str) -> None:
    module = make(device=device)
    judge(module, op, device)
    check(
        module(torch.ones(2, 3, IN, device=device)),
        op.head,
        Linear(torch.ones(2, 3, IN, device=device), module.weight, module.bias),
    )


@modules
@pytest.mark.parametrize("bias", [True, False])
def test_same_random_numbers_as_a_linear(make: Make, op: Fused, bias: bool, device: str) -> None:
    torch.manual_seed(11)
    plain = nn.Linear(IN, OUT, bias=bias, device=device)
    after_plain = torch.rand(1)
    torch.manual_seed(11)
    module = make(bias=bias, device=device)
    assert torch.equal(torch.rand(1), after_plain)
    assert same_bits(module.weight.detach(), plain.weight.detach())
    assert (module.bias is None) == (not bias)
    assert not bias or same_bits(module.bias.detach(), plain.bias.detach())


@modules
@pytest.mark.parametrize("bias", [True, False])
def test_state_dict_is_that_of_a_linear(make: Make, op: Fused, bias: bool, device: str) -> None:
    """torchtitan#3569, pytorch#28340, #921: keys that move or a None buffer that becomes a key."""
    module, plain = make(bias=bias, device=device), nn.Linear(IN, OUT, bias=bias, device=device)
    assert list(module.state_dict()) == list(plain.state_dict())
    module.load_state_dict(plain.state_dict(), strict=True)
    plain.load_state_dict(module.state_dict(), strict=True)
    judge(module, op, device)
    assert list(module.state_dict()) == list(plain.state_dict())  # also after a call


@modules
def test_from_linear_shares_the_parameters(make: Make, op: Fused, device: str) -> None:
    plain = nn.Linear(IN, OUT, device=device).eval()
    state = torch.get_rng_state()
    cls = type(make())
    torch.set_rng_state(state)
    arguments = (4, -1.5) if cls is LinearAvgPoolGELUScaleMax else ()
    module = cls.from_linear(plain, *arguments)
    assert torch.equal(torch.get_rng_state(), state), "from_linear drew random numbers"
    assert module.weight is plain.weight
    assert module.bias is plain.bias
    assert module.training is False
    assert (module.in_features, module.out_features) == (IN, OUT)
    judge(module, op, device)
    with torch.no_grad():
        plain.weight.mul_(3)
    judge(module, op, device)
    with pytest.raises(TypeError, match="from_linear"):
        cls.from_linear(nn.Conv1d(1, 1, 1), *arguments)


@modules
def test_data_writes_are_seen(make: Make, op: Fused, device: str) -> None:
    """pytorch#6990, #30987: .data writes bump no version counter, so a cache cannot know."""
    module = make(device=device)
    first = judge(module, op, device)
    module.weight.data.mul_(2)
    module.bias.data.add_(0.5)
    assert not torch.equal(first, judge(module, op, device))


@modules
def test_load_with_assign_is_seen(make: Make, op: Fused, device: str) -> None:
    """pytorch#129362, #188346: assign=True swaps the Parameter objects."""
    module, other = make(device=device), make(device=device)
    judge(module, op, device)
    module.load_state_dict(other.state_dict(), assign=True)
    x = torch.randn(5, IN, device=device)
    assert same_bits(module(x).detach(), other(x).detach())


@modules
@pytest.mark.parametrize("fused", [False, True])
def test_training_steps_are_seen(make: Make, op: Fused, fused: bool, device: str) -> None:
    """Fused optimizers write parameters without bumping versions."""
    module = make(device=device)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05, fused=fused)
    losses = []
    x = torch.randn(64, IN, device=device)
    for _ in range(5):
        y = module(x)
        check(y, op.head, Linear(x, module.weight.detach(), module.bias.detach()))
        loss = y.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


@modules
def test_copies_after_a_call(make: Make, op: Fused, device: str) -> None:
    """pytorch#54580, locuslab/deq#23, TransformerEngine PR#2805: a cached tensor breaks deepcopy
    and pickle, or goes along with the copy."""
    module = make(device=device)
    before = len(list(module.buffers()))
    judge(module, op, device).sum().backward()
    x = torch.randn(3, IN, device=device)
    expected = module(x)
    for clone in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert same_bits(clone(x).detach(), expected.detach())
        clone.weight.data.zero_()
        judge(clone, op, device)
    assert same_bits(module(x).detach(), expected.detach())
    assert len(list(module.buffers())) == before == 0


@modules
def test_conversions_after_a_call(make: Make, op: Fused, device: str) -> None:
    module = make(device=device)
    judge(module, op, device)
    judge(module.cpu(), op, "cpu")
    judge(module.to(device), op, device)
    y = module.double()(torch.randn(3, IN, device=device, dtype=torch.float64))
    assert y.dtype == torch.float64
    with pytest.raises(TypeError, match="float16"):
        module.half()(torch.randn(3, IN, device=device, dtype=torch.float16))
    judge(module.float(), op, device)


@modules
def test_an_autocast_model_in_half(make: Make, op: Fused, device: str) -> None:
    module = make(device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = module(torch.randn(3, IN, device=device))
    assert y.dtype == torch.float32


@modules
def test_dtype_and_device_arguments(make: Make, op: Fused, device: str) -> None:
    module = make(dtype=torch.float64, device=device)
    assert module.weight.dtype == torch.float64
    assert module.weight.device.type == device
    assert make(device="meta").weight.is_meta


@modules
def test_repr_and_options(make: Make, op: Fused) -> None:
    text = repr(make(approximate="tanh", precision="ieee"))
    for part in (f"in_features={IN}", f"out_features={OUT}", "bias=True", "tanh", "ieee"):
        assert part in text
    for wrong in ({"approximate": "relu"}, {"precision": "tf32"}):
        with pytest.raises(ValueError, match=r"relu|tf32"):
            make(**wrong)


def test_repr_of_the_pooled_module_tells_its_numbers() -> None:
    assert "kernel_size=4" in repr(make_pooled())
    assert "-1.5" in repr(make_pooled())


@modules
def test_pack_is_a_snapshot_for_inference(make: Make, op: Fused, device: str) -> None:
    module = make(device=device)
    packed = module.pack()
    x = torch.randn(9, IN, device=device)
    y = packed(x)
    weight, bias = module.weight.detach().clone(), module.bias.detach().clone()
    check(y, op.head, Linear(x, weight, bias))
    with torch.no_grad():
        module.weight.zero_()
    check(packed(x), op.head, Linear(x, weight, bias))
    assert not list(packed.parameters())
    assert not y.requires_grad
    assert not packed.training
    with pytest.raises(RuntimeError, match="requires grad"):
        packed(x.requires_grad_())
    with torch.no_grad():
        packed(x)


@modules
def test_packed_modules_are_saved_and_loaded(
    make: Make, op: Fused, device: str, tmp_path: object
) -> None:
    module = make(device=device)
    packed, other = module.pack(), make(device=device).pack()
    x = torch.randn(9, IN, device=device)
    torch.save(packed.state_dict(), f"{tmp_path}/state.pt")
    other.load_state_dict(torch.load(f"{tmp_path}/state.pt", weights_only=True))
    assert same_bits(other(x), packed(x))
    assert same_bits(copy.deepcopy(packed)(x), packed(x))
    assert same_bits(pickle.loads(pickle.dumps(packed))(x), packed(x))


def test_modules_in_a_sequential_train_together(device: str) -> None:
    model = nn.Sequential(
        nn.Linear(IN, IN), cutlass_ops.nn.LinearGELUSoftmax(IN, OUT), nn.Linear(OUT, 2)
    ).to(device)
    model(torch.randn(5, IN, device=device)).square().sum().backward()
    grads = [p.grad for p in model.parameters()]
    assert len(grads) == 6
    assert all(g is not None and g.isfinite().all() for g in grads)


@modules
@pytest.mark.parametrize("bias", [True, False])
def test_from_a_lazy_linear(make: Make, op: Fused, bias: bool, device: str) -> None:
    """Before its first input it has in_features = 0: it was taken, and every call failed."""
    cls = type(make())
    arguments = (4, -1.5) if cls is LinearAvgPoolGELUScaleMax else ()
    lazy = nn.LazyLinear(OUT, bias=bias, device=device)
    with pytest.raises(ValueError, match=r"from_linear.*LazyLinear"):
        cls.from_linear(lazy, *arguments)
    lazy(torch.randn(2, IN, device=device))
    judge(cls.from_linear(lazy, *arguments), op, device)


@modules
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(make: Make, op: Fused, reentrant: bool, device: str) -> None:
    """The forward runs again inside backward, the first time without gradients if reentrant: the
    same bits."""
    module = make(device=device)
    x = torch.randn(7, IN, device=device, requires_grad=True)
    leaves = (x, *module.parameters())
    y = module(x)
    g = torch.linspace(-1, 1, y.numel(), device=device).view(y.shape)
    expected = torch.autograd.grad(y, leaves, g)
    again = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=reentrant)
    again.backward(g)
    for leaf, grad in zip(leaves, expected, strict=True):
        assert leaf.grad is not None
        assert same_bits(leaf.grad, grad)
    if not reentrant:
        assert same_bits(again.detach(), y.detach())


@modules
def test_inference_mode(make: Make, op: Fused, device: str) -> None:
    """And a call with gradients after it: nothing that the first call keeps may be an inference
    tensor."""
    module = make(device=device)
    x = torch.randn(7, IN, device=device)
    with torch.inference_mode():
        y = module(x)
        assert y.is_inference()
        check(y, op.head, Linear(x, module.weight, module.bias))
        packed = module.pack()
        check(packed(x), op.head, Linear(x, module.weight, module.bias))
    check(packed(x), op.head, Linear(x, module.weight.detach(), module.bias.detach()))
    judge(module, op, device).sum().backward()
    assert module.weight.grad is not None


def test_kernel_size_of_numpy_in_a_module(device: str) -> None:
    module = LinearAvgPoolGELUScaleMax(IN, OUT, np.int64(4), -1.5, device=device)
    assert type(module.kernel_size) is int
    judge(module, pool_max_op(4, -1.5), device)
    assert type(module.pack().packed.kernel_size) is int


def test_scale_of_numpy_in_a_module(device: str) -> None:
    """numpy.float64 is a float, and torch.compile takes it for an array."""
    module = LinearAvgPoolGELUScaleMax(IN, OUT, 4, 1 / np.sqrt(4.0), device=device)
    assert type(module.scale) is float
    assert type(module.pack().scale) is float
    x = torch.randn(3, IN, device=device)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert same_bits(compiled(x), module(x))


@modules
def test_what_a_module_cannot_be_made_from(make: Make, op: Fused) -> None:
    cls = type(make())
    options = {} if make is make_softmax else {"kernel_size": 4}
    linear = nn.Linear(IN, OUT)
    nn.utils.parametrize.register_parametrization(linear, "bias", nn.Tanh())
    with pytest.raises(TypeError, match="from_linear: the bias of the linear must be a Parameter"):
        cls.from_linear(linear, **options)
    packed_class = type(make().pack())
    with pytest.raises(TypeError, match="packed must be a PackedLinear, got Linear"):
        packed_class(nn.Linear(IN, OUT))
