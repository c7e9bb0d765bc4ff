"""Errors: ValueError or TypeError that name the op, the argument and the offending value."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fused import linear_like
from torch import Tensor

import cutlass_ops

LINEAR = ("linear_gelu_softmax", "linear_avgpool_gelu_scale_max")
linear_ops = pytest.mark.parametrize("name", LINEAR)


def call(name: str, x: Any, weight: Any, bias: Any = None, **options: Any) -> Tensor:
    if name == "linear_avgpool_gelu_scale_max":
        options.setdefault("kernel_size", 1)
    return getattr(cutlass_ops, name)(x, weight, bias, **options)


def naming(*parts: str) -> str:
    """All of these, in any order."""
    return "(?s)" + "".join(f"(?=.*{re.escape(part)})" for part in parts)


@linear_ops
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.complex64, torch.bool]
)
def test_unsupported_dtype(name: str, dtype: torch.dtype, device: str) -> None:
    """No silent cast, and the dtype in the message, as for every argument."""
    x, weight, bias = linear_like(2, 3, 4, device)
    spelled = str(dtype).removeprefix("torch.")
    with pytest.raises(TypeError, match=naming(name, "x", spelled)):
        call(name, x.to(dtype), weight.to(dtype), bias.to(dtype))
    with pytest.raises(TypeError, match=naming(name, "weight", spelled)):
        call(name, x, weight.to(dtype), bias)
    with pytest.raises(TypeError, match=naming(name, "bias", spelled)):
        call(name, x, weight, bias.to(dtype))


@linear_ops
def test_mixed_float_dtypes(name: str, device: str) -> None:
    x, weight, bias = linear_like(2, 3, 4, device)
    with pytest.raises(TypeError, match=naming(name, "float32", "float64")):
        call(name, x.double(), weight, bias)
    with pytest.raises(TypeError, match=naming(name, "bias", "float64")):
        call(name, x, weight, bias.double())


@linear_ops
@pytest.mark.parametrize(
    ("shapes", "argument"),
    [
        (((2, 4), (3, 5), (3,)), "x"),
        (((), (3, 4), (3,)), "x"),
        (((2, 4), (4,), None), "weight"),
        (((2, 4), (1, 3, 4), None), "weight"),
        (((2, 4), (3, 4), (4,)), "bias"),
        (((2, 4), (3, 4), (3, 1)), "bias"),
        (((2, 4), (3, 4), ()), "bias"),
        (((2, 4), (3, 4), (1,)), "bias"),
    ],
)
def test_shapes_that_do_not_fit(name: str, shapes: tuple, argument: str, device: str) -> None:
    """Nothing is broadcast, and the offending shape stands in the message."""
    tensors = [None if s is None else torch.zeros(s, device=device) for s in shapes]
    offending = {"x": shapes[0], "weight": shapes[1], "bias": shapes[2]}[argument]
    value = str(list(offending)) if offending else "scalar" if argument == "x" else "[]"
    with pytest.raises(ValueError, match=naming(name, argument, value)):
        call(name, *tensors)


@linear_ops
@pytest.mark.parametrize("argument", ["x", "weight", "bias"])
@pytest.mark.parametrize("value", [[[1.0]], 1.0, "text"])
def test_what_is_no_tensor(name: str, argument: str, value: object) -> None:
    operands: dict[str, Any] = dict(
        zip(("x", "weight", "bias"), linear_like(1, 1, 1, "cpu"), strict=True)
    )
    operands[argument] = value
    with pytest.raises(TypeError, match=naming(name, argument, type(value).__name__)):
        call(name, **operands)


@linear_ops
@pytest.mark.parametrize("argument", ["weight", "bias"])
def test_mixed_devices_name_both(name: str, argument: str, cuda: str) -> None:
    """nv-tlabs/NKSR#40 and others: an address of one device read on another."""
    operands = dict(zip(("x", "weight", "bias"), linear_like(2, 3, 4, cuda), strict=True))
    operands[argument] = operands[argument].cpu()
    with pytest.raises((ValueError, RuntimeError), match=naming(name, argument, "cuda:0", "cpu")):
        call(name, **operands)


@linear_ops
@pytest.mark.parametrize("argument", ["weight", "bias"])
def test_mixed_devices_without_a_gpu(name: str, argument: str) -> None:
    operands = dict(zip(("x", "weight", "bias"), linear_like(2, 3, 4, "cpu"), strict=True))
    operands[argument] = operands[argument].to("meta")
    with pytest.raises(ValueError, match=naming(name, argument, "meta", "cpu")):
        call(name, **operands)


@linear_ops
def test_sparse_tensors(name: str, device: str) -> None:
    x, weight, bias = linear_like(2, 3, 4, device)
    with pytest.raises(TypeError, match=naming(name, "x", "sparse")):
        call(name, x.to_sparse(), weight, bias)
    with pytest.raises(TypeError, match=naming(name, "weight", "sparse")):
        call(name, x, weight.to_sparse(), bias)


@linear_ops
@pytest.mark.parametrize("approximate", ["erf", "", None, "TANH"])
def test_approximate(name: str, approximate: Any, device: str) -> None:
    with pytest.raises(ValueError, match=naming(name, "approximate", str(approximate))):
        call(name, *linear_like(2, 3, 4, device), approximate=approximate)


@linear_ops
@pytest.mark.parametrize("precision", ["tf32", "", "IEEE", "fp16"])
def test_precision(name: str, precision: str, device: str) -> None:
    with pytest.raises(ValueError, match=naming(name, "precision", precision)):
        call(name, *linear_like(2, 3, 4, device), precision=precision)


@pytest.mark.parametrize("kernel_size", [0, -1, 4, 1000])
def test_kernel_size_out_of_range_names_both_numbers(kernel_size: int, device: str) -> None:
    """k < 1 or k > N: no window at all, and no division by zero."""
    name = "linear_avgpool_gelu_scale_max"
    x, weight, bias = linear_like(2, 3, 4, device)
    with pytest.raises(ValueError, match=naming(name, "kernel_size", str(kernel_size), "3")):
        call(name, x, weight, bias, kernel_size=kernel_size)
    with pytest.raises(ValueError, match=naming("fold_linear", str(kernel_size), "3")):
        cutlass_ops.fold_linear(weight, bias, kernel_size)
    with pytest.raises(ValueError, match=naming(str(kernel_size), "3")):
        cutlass_ops.pack_linear(weight, bias, kernel_size=kernel_size)
    with pytest.raises(ValueError, match=naming(str(kernel_size), "3")):
        cutlass_ops.nn.LinearAvgPoolGELUScaleMax(4, 3, kernel_size)


@pytest.mark.parametrize("kernel_size", [np.int64(2), np.uint8(2)], ids=repr)
def test_kernel_size_of_numpy(kernel_size: Any, device: str) -> None:
    """A size that NumPy computed was refused as no int."""
    x, weight, bias = linear_like(2, 3, 4, device)
    name = "linear_avgpool_gelu_scale_max"
    assert torch.equal(
        call(name, x, weight, bias, kernel_size=kernel_size),
        call(name, x, weight, bias, kernel_size=2),
    )
    folded = cutlass_ops.fold_linear(weight, bias, kernel_size)
    pack = cutlass_ops.pack_linear(weight, bias, kernel_size=kernel_size)
    assert torch.equal(folded[0], pack.weight)
    assert type(pack.kernel_size) is int


@pytest.mark.parametrize(
    "kernel_size", [2.0, "2", True, np.True_, np.float64(2), torch.tensor(2), None], ids=repr
)
def test_kernel_size_that_is_no_int(kernel_size: Any, device: str) -> None:
    with pytest.raises((TypeError, ValueError), match="kernel_size"):
        cutlass_ops.linear_avgpool_gelu_scale_max(
            *linear_like(2, 3, 4, device), kernel_size=kernel_size
        )


def test_kernel_size_is_required(device: str) -> None:
    with pytest.raises((TypeError, ValueError), match="kernel_size"):
        cutlass_ops.linear_avgpool_gelu_scale_max(*linear_like(2, 3, 4, device))


@pytest.mark.parametrize("scale", ["2", None, 1j, [1.0]])
def test_scale_that_is_no_real_number(scale: Any, device: str) -> None:
    name = "linear_avgpool_gelu_scale_max"
    with pytest.raises(TypeError, match=naming(name, "scale")):
        call(name, *linear_like(2, 3, 4, device), scale=scale)


def test_scale_beyond_any_float(device: str) -> None:
    name = "linear_avgpool_gelu_scale_max"
    with pytest.raises(ValueError, match=naming(name, "scale")):
        call(name, *linear_like(2, 3, 4, device), scale=10**400)


def test_maximum_of_no_columns(device: str) -> None:
    x, weight = torch.zeros(2, 4, device=device), torch.zeros(0, 4, device=device)
    with pytest.raises(ValueError, match="linear_avgpool_gelu_scale_max"):
        call("linear_avgpool_gelu_scale_max", x, weight)
    with pytest.raises(ValueError, match="gelu_scale_max"):
        cutlass_ops.gelu_scale_max(torch.zeros(2, 0, device=device))


PARTS: list[tuple[str, Callable[..., Any]]] = [
    ("softmax", lambda z, bias=None: cutlass_ops.softmax(z)),
    ("gelu_softmax", cutlass_ops.gelu_softmax),
    ("gelu_scale_max", cutlass_ops.gelu_scale_max),
    ("fold_linear", lambda z, bias=None: cutlass_ops.fold_linear(z, bias, 1)),
]


@pytest.mark.parametrize(("name", "part"), PARTS, ids=[name for name, _ in PARTS])
def test_operands_of_the_parts(name: str, part: Callable[..., Any], device: str) -> None:
    z = torch.zeros(2, 3, device=device)
    for dtype in (torch.float16, torch.int64):
        with pytest.raises(TypeError, match=naming(name, str(dtype).removeprefix("torch."))):
            part(z.to(dtype))
    with pytest.raises(ValueError, match=name):
        part(torch.zeros((), device=device))
    with pytest.raises(TypeError, match=naming(name, "list")):
        part([[1.0]])
    if name != "softmax":
        with pytest.raises(ValueError, match=naming(name, "bias", "[7]")):
            part(z, torch.zeros(7, device=device))
        with pytest.raises(TypeError, match=naming(name, "bias", "float64")):
            part(z, torch.zeros(z.shape[0], device=device, dtype=torch.float64))


@pytest.mark.parametrize("name", ["linear_gelu_softmax", "linear_avgpool_gelu_scale_max"])
def test_a_refused_call_leaves_nothing_behind(name: str, device: str) -> None:
    """After an error the next call is right: no half-set state."""
    x, weight, bias = linear_like(2, 3, 4, device)
    before = call(name, x, weight, bias)
    with pytest.raises(ValueError, match=name):
        call(name, x[:, :3], weight, bias)
    with pytest.raises(ValueError, match=name):
        call(name, x, weight, bias, precision="nonsense")
    assert torch.equal(call(name, x, weight, bias), before)
    assert cutlass_ops.get_float32_precision() == "ieee"


FUNCTIONS = [name for name in cutlass_ops.__all__ if inspect.isfunction(getattr(cutlass_ops, name))]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "precision" not in name])
def test_docstrings_tell_arguments_results_and_errors(name: str) -> None:
    function = getattr(cutlass_ops, name)
    text = inspect.getdoc(function) or ""
    arguments = inspect.signature(function).parameters
    assert "Returns:" in text
    if arguments:
        assert "Raises:" in text
        told = text[text.index("Args:") : text.index("Returns:")]
        assert all(f"\n    {argument}: " in told for argument in arguments)
