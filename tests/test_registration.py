"""torch.ops.cutlass_ops.*: dispatch, fakes that tell the truth, autocast."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fused import BOTH, Fused, linear_like, mode_on, pool_max_op, run_opcheck, softmax_op
from operands import Linear
from oracle import check
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import cutlass_ops
from cutlass_ops.weights import split_rows

OPS = torch.ops.cutlass_ops
PUBLIC = (
    "linear",
    "linear_epilogue",
    "linear_gelu_softmax",
    "linear_gelu_softmax_training",
    "linear_avgpool_gelu_scale_max",
    "linear_avgpool_gelu_scale_max_training",
    "gelu_softmax",
    "gelu_scale_max",
    "softmax",
    "gelu_softmax_backward",
    "fold_rows",
)
both = pytest.mark.parametrize("op", BOTH, ids=repr)
half_types = pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)


def arguments(name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
    """Arguments of each registered op, made from the operands of one linear layer."""
    mode = mode_on(x.device)
    return {
        "linear": (x, weight, bias, mode),
        "linear_epilogue": (x, weight, bias, "avgpool_gelu_scale_max", [3.0, -1.0], mode),
        "linear_gelu_softmax": (x, weight, bias, "none", mode),
        "linear_gelu_softmax_training": (x, weight, bias, "tanh", mode),
        "linear_avgpool_gelu_scale_max": (x, weight, bias, 3, 2.0, "tanh", mode),
        "linear_avgpool_gelu_scale_max_training": (x, weight, bias, 3, 2.0, "tanh", mode),
        "gelu_softmax": (x, None, "none"),
        "gelu_scale_max": (x, None, -1.0, "none"),
        "softmax": (x,),
        "gelu_softmax_backward": (x, x, None, x, "tanh", True),
        "fold_rows": (weight, 3),
    }[name]


def bias_place(name: str) -> int:
    """Of its arguments."""
    return 2 if "linear" in name or name == "gelu_softmax_backward" else 1


def with_pairs(arguments: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """The halves of a pack behind everything else; "ieee" has no use for them."""
    folded = () if len(arguments) == 5 else (1,)
    has_halves = mode_on(device) == "fp16x3"
    pairs = split_rows(arguments[1]) if has_halves else torch.ones(8, device=device)
    return *arguments, *folded, pairs


def results(returned: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What an op returned, one tensor or several, as a tuple."""
    return (returned,) if isinstance(returned, Tensor) else returned


def shapes_of_x(k: int) -> list[tuple[int, ...]]:
    return [(k,), (1, k), (6, k), (0, k), (2, 3, k), (2, 0, k)]


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("shape", shapes_of_x(7), ids=str)
def test_opcheck(name: str, shape: tuple[int, ...], device: str) -> None:
    """cuEquivariance#223, pytorch#143579, #186850: fakes that disagree with the result, here in
    N % k != 0, no rows, 1-D and 3-D."""
    _, weight, bias = linear_like(1, 8, 7, device)
    x = torch.randn(shape, device=device)
    run_opcheck(getattr(OPS, name).default, arguments(name, x, weight, bias))


@pytest.mark.parametrize("name", ["linear_gelu_softmax", "linear_avgpool_gelu_scale_max"])
def test_pairs_are_an_operand(name: str, device: str) -> None:
    """Of every rule: opcheck, fake, meta, autocast."""
    op = getattr(OPS, name).default
    plain = arguments(name, *linear_like(5, 8, 7, device))
    args = with_pairs(plain, device)
    run_opcheck(op, args)
    y = op(*plain)
    assert torch.equal(op(*args), y)
    with FakeTensorMode() as mode:
        fake = (mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args)
        assert op(*fake).shape == y.shape
    meta = (a.to("meta") if isinstance(a, Tensor) else a for a in args)
    assert op(*meta).shape == y.shape
    with torch.autocast(device, dtype=torch.bfloat16):
        assert op(args[0].bfloat16(), *args[1:]).dtype == torch.float32


def strided(t: Tensor, how: str) -> Tensor:
    if how == "transposed":
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "sliced":
        return t.repeat_interleave(2, -1)[..., ::2]
    if how == "expanded":
        return t[:1].expand(t.shape)
    return t


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("how", ["dense", "transposed", "sliced", "expanded"])
@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 7), (0, 7)], ids=str)
def test_fake_tells_shape_strides_dtype_and_device(
    name: str, how: str, shape: tuple[int, ...], device: str
) -> None:
    """pytorch#154537: a meta shape that is silently wrong. Strides are those of a fresh contiguous
    tensor, whatever those of the inputs."""
    _, weight, bias = linear_like(1, 8, 7, device)
    x = strided(torch.randn(shape, device=device), how)
    operands = (x, strided(weight, how), bias)
    op = getattr(OPS, name).default
    real = op(*arguments(name, *operands))
    with FakeTensorMode() as mode:
        fake = op(*arguments(name, *(mode.from_tensor(t) for t in operands)))
    for told, made in zip(results(fake), results(real), strict=True):
        assert (told.shape, told.stride()) == (made.shape, made.stride())
        assert (told.dtype, told.device.type) == (made.dtype, made.device.type)
        assert made.is_contiguous()


@pytest.mark.parametrize("name", PUBLIC)
def test_meta_tensors(name: str) -> None:
    x, weight, bias = (t.to("meta") for t in linear_like(5, 8, 7, "cpu"))
    result = results(getattr(OPS, name)(*arguments(name, x, weight, bias)))[0]
    assert result.device.type == "meta"
    assert result.is_contiguous()


@pytest.mark.parametrize("name", PUBLIC)
def test_ops_are_functional_by_schema(name: str) -> None:
    """No aliasing and no mutation declared, every argument positional: autocast rules and
    functorch rely on it."""
    schema = getattr(OPS, name).default._schema
    assert not schema.is_mutable
    assert all(a.alias_info is None and not a.kwarg_only for a in schema.arguments)
    assert all(r.alias_info is None for r in schema.returns)


@both
def test_public_functions_run_the_registered_op(op: Fused, device: str) -> None:
    """What the profiler, torch.compile and a user who traces will see."""
    seen = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Spy():
        op.call(*linear_like(3, 8, 5, device))
    assert op.op in seen
    assert not any("aten.addmm" in str(f) or "aten.mm" in str(f) for f in seen)


@both
@half_types
def test_autocast_computes_in_float32(op: Fused, half: torch.dtype, device: str) -> None:
    """pytorch#47906, apex#849: half x against float weights. Cast up, computed and returned in
    float32, and never the bits of one type read as another."""
    x, weight, bias = linear_like(9, 24, 40, device)
    x = x.to(half)
    with torch.autocast(device, dtype=half):
        y = op.call(x, weight, bias)
        mixed = op.call(x.float(), weight.to(half), bias.to(half))
    assert y.dtype == mixed.dtype == torch.float32
    check(y, op.head, Linear(x.float(), weight, bias))
    check(mixed, op.head, Linear(x.float(), weight.to(half).float(), bias.to(half).float()))


@both
@half_types
def test_autocast_after_a_half_linear(op: Fused, half: torch.dtype, device: str) -> None:
    """As in a model: the layer before hands on half precision, gradients come back as float32."""
    x, weight, bias = linear_like(9, 24, 40, device, requires_grad=True)
    first = torch.nn.Linear(40, 40).to(device)
    with torch.autocast(device, dtype=half):
        hidden = first(x)
        y = op.call(hidden, weight, bias)
        y.square().sum().backward()
    assert hidden.dtype == half
    assert y.dtype == torch.float32
    truth = [t.detach().double().requires_grad_() for t in (hidden, weight, bias)]
    exact = op.head.exact(torch.nn.functional.linear(*truth))
    grads = torch.autograd.grad(exact, truth[1:], 2 * exact)
    for leaf, grad in zip((weight, bias), grads, strict=True):
        assert leaf.grad is not None
        assert leaf.grad.dtype == torch.float32
        # A matmul of backward in bfloat16 would show as 2e-3.
        assert (leaf.grad - grad).norm() <= 2e-5 * grad.norm()


@both
@half_types
def test_registered_op_under_autocast(op: Fused, half: torch.dtype, device: str) -> None:
    """torch.ops.cutlass_ops.* called directly has a rule of its own."""
    x, weight, bias = linear_like(9, 24, 40, device)
    with torch.autocast(device, dtype=half):
        y = op.op(*op.arguments(x.to(half), weight, bias))
    assert y.dtype == torch.float32
    check(y, op.head, Linear(x.to(half).float(), weight, bias))


@both
def test_autocast_disabled_inside_or_on_another_device(op: Fused, device: str) -> None:
    x, weight, bias = linear_like(9, 24, 40, device)
    other = "cuda" if device == "cpu" else "cpu"
    with torch.autocast(device, dtype=torch.bfloat16), torch.autocast(device, enabled=False):
        inside = op.call(x, weight, bias)
        with pytest.raises(TypeError, match="bfloat16"):
            op.call(x.bfloat16(), weight, bias)
    assert torch.equal(inside, op.call(x, weight, bias))
    if torch.cuda.is_available() or other == "cpu":
        with torch.autocast(other, dtype=torch.bfloat16), pytest.raises(TypeError):
            op.call(x.bfloat16(), weight, bias)


@both
@pytest.mark.parametrize("flag", ["allow_tf32", "set_float32_matmul_precision"])
def test_tf32_flags_do_not_reach_the_forward(op: Fused, flag: str, device: str) -> None:
    """The mode "ieee" is float32 multiply-add, whatever PyTorch's global flags say."""
    if device == "cpu" and flag != "allow_tf32":
        pytest.skip("PyTorch's own matmul on the CPU follows this flag, and so does the reference")
    x, weight, bias = linear_like(128, 512, 1024, device)
    plain = op.call(x, weight, bias)
    try:
        if flag == "allow_tf32":
            torch.backends.cuda.matmul.allow_tf32 = True
        else:
            torch.set_float32_matmul_precision("medium")
        flagged = op.call(x, weight, bias)
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.equal(plain, flagged)
    check(flagged, op.head, Linear(x, weight, bias))


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan])
def test_a_scale_that_is_not_finite_is_an_ordinary_number(scale: float, device: str) -> None:
    x, weight, bias = linear_like(4, 8, 5, device)
    op = pool_max_op(1, scale)
    y = op.call(x, weight, bias)
    expected = op.head.exact(Linear(x, weight, bias).exact())
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.isinf(), expected.isinf())


def test_float64_runs_in_the_reference_arithmetic(device: str) -> None:
    x, weight, bias = (t.double() for t in linear_like(6, 12, 5, device))
    for op in (softmax_op(), pool_max_op(4, -1.0)):
        y = op.call(x, weight, bias)
        assert y.dtype == torch.float64
        exact = op.head.exact(torch.nn.functional.linear(x, weight, bias))
        torch.testing.assert_close(y, exact, rtol=1e-12, atol=1e-15)
    assert cutlass_ops.softmax(x).dtype == torch.float64


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in ("softmax", "fold_rows")])
@pytest.mark.parametrize("bias_shape", [(1,), (8, 1), ()], ids=str)
def test_registered_ops_broadcast_no_bias(
    name: str, bias_shape: tuple[int, ...], device: str
) -> None:
    """On the CPU a bias of one element was added to every column, where meta and CUDA raise."""
    x, weight, _ = linear_like(5, 8, 8, device)
    bias = torch.zeros(bias_shape, device=device)
    args = list(arguments(name, x, weight, bias))
    args[bias_place(name)] = bias
    with pytest.raises(ValueError, match=f"{name}: bias must have shape"):
        getattr(OPS, name)(*args)
    with pytest.raises(RuntimeError, match="bias"):
        getattr(OPS, name)(*(a.to("meta") if isinstance(a, Tensor) else a for a in args))


def test_registered_ops_refuse_scalars_and_empty_maxima(device: str) -> None:
    """As the CUDA implementations do: the CPU's gave softmax(scalar) = 1, and an IndexError."""
    scalar = torch.zeros((), device=device)
    for call in (
        lambda: OPS.softmax(scalar),
        lambda: OPS.gelu_softmax(scalar, None, "none"),
        lambda: OPS.gelu_scale_max(scalar, None, 1.0, "none"),
        lambda: OPS.gelu_scale_max(torch.zeros(2, 0, device=device), None, 1.0, "none"),
    ):
        with pytest.raises(ValueError, match=r"softmax|gelu_scale_max"):
            call()


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "linear_epilogue"])
def test_backward_through_a_registered_op_warns(name: str, device: str) -> None:
    """They have no gradient, the functional API has; that much must not be silent."""
    operands = linear_like(5, 8, 8, device, requires_grad=True)
    y = results(getattr(OPS, name)(*arguments(name, *operands)))[0]
    with pytest.warns(UserWarning, match=f"cutlass_ops::{name}"):
        y.sum().backward()


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.complex64], ids=str)
def test_registered_ops_take_float32_and_float64_alone(
    name: str, dtype: torch.dtype, device: str
) -> None:
    """The CPU's gave float32 for int32, where the fake said int32."""
    operands = [t.to(dtype) for t in linear_like(5, 8, 8, device)]
    call = getattr(OPS, name)
    with pytest.raises(TypeError, match="must be float32"):
        call(*arguments(name, *operands))
    with pytest.raises(TypeError, match="must be float32"):
        call(*arguments(name, *(t.to("meta") for t in operands)))


@pytest.mark.parametrize("name", [n for n in PUBLIC if n not in ("softmax", "fold_rows")])
def test_registered_ops_mix_no_dtypes(name: str, device: str) -> None:
    x, weight, bias = linear_like(5, 8, 8, device)
    args = list(arguments(name, x, weight, bias))
    args[bias_place(name)] = bias.double()
    with pytest.raises(TypeError, match="float"):
        getattr(OPS, name)(*args)
    with pytest.raises(TypeError, match="float"):
        getattr(OPS, name)(*(a.to("meta") if isinstance(a, Tensor) else a for a in args))
