"""Argument checks, made before any tensor work.

The functional API checks kinds, dtypes, devices and shapes; the registered ops, on every device,
shapes alone. Every message starts with the op's name and names the argument and the offending
value. Hot paths only compare; the messages are built where a comparison failed.
"""

from __future__ import annotations

import numbers
import operator
from typing import NoReturn

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64)

# Kernels index rows, columns and depth with 32-bit integers and offsets with 64-bit ones. What
# sticks out of the problem must not overflow its index: the column stride of the softmax and the
# chunk of the skinny kernel are 4096 each, hence so much to spare. C++ has the same number.
SIZE_LIMIT = 2**31 - 1 - 4096


def _fail_kind(op: str, name: str, value: object, optional: bool) -> NoReturn:
    wanted = "a Tensor or None" if optional else "a Tensor"
    raise TypeError(f"{op}: {name} must be {wanted}, got {type(value).__name__}")


def check_tensor(op: str, name: str, value: object, optional: bool = False) -> None:
    """Raise TypeError unless ``value`` is a tensor (or, where ``optional``, None)."""
    if not isinstance(value, Tensor) and not (optional and value is None):
        _fail_kind(op, name, value, optional)


def _fail_dtype(op: str, named: list[tuple[str, Tensor]]) -> NoReturn:
    for name, value in named:
        if value.dtype not in DTYPES:
            raise TypeError(f"{op}: {name} must be float32 or float64, got {value.dtype}")
    listed = ", ".join(f"{name} {value.dtype}" for name, value in named)
    raise TypeError(f"{op}: all inputs must have one dtype, got {listed}")


def _fail_device(op: str, named: list[tuple[str, Tensor]]) -> NoReturn:
    listed = ", ".join(f"{name} on {value.device}" for name, value in named)
    raise ValueError(f"{op}: all inputs must be on one device, got {listed}")


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def _check_alone(op: str, name: str, tensor: Tensor) -> None:
    """A dense tensor of float32 or float64."""
    check_tensor(op, name, tensor)
    if tensor.dtype not in DTYPES:
        _fail_dtype(op, [(name, tensor)])
    if tensor.layout != torch.strided:
        raise TypeError(f"{op}: {name} must be a dense tensor, got layout {tensor.layout}")


def _check_family(op: str, x: Tensor, other: Tensor, data: str, name: str) -> None:
    """One dtype, float32 or float64, one device and strided layout for both tensors."""
    dtype = x.dtype
    if dtype not in DTYPES or other.dtype != dtype:
        _fail_dtype(op, [(data, x), (name, other)])
    if x.device != other.device:
        _fail_device(op, [(data, x), (name, other)])
    if x.layout != torch.strided or other.layout != torch.strided:
        culprit, layout = (data, x.layout) if x.layout != torch.strided else (name, other.layout)
        raise TypeError(f"{op}: {culprit} must be a dense tensor, got layout {layout}")


def check_linear(op: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Check the operands of a linear op: x ``[..., K]``, weight ``[N, K]``, bias ``[N]`` or None.

    Raises TypeError for what is no dense tensor of float32 or float64 or for mixed dtypes,
    ValueError for mixed devices or shapes that do not fit.
    """
    check_tensor(op, "x", x)
    check_tensor(op, "weight", weight)
    _check_family(op, x, weight, "x", "weight")
    if bias is not None:
        check_tensor(op, "bias", bias, optional=True)
        _check_family(op, x, bias, "x", "bias")
    check_linear_shapes(op, x, weight, bias)


def check_linear_shapes(op: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """The shapes of :func:`check_linear`; nothing is broadcast."""
    x_shape, weight_shape = x.shape, weight.shape
    if len(weight_shape) != 2:
        raise ValueError(f"{op}: weight must have shape [N, K], got {_shape(weight)}")
    if len(x_shape) == 0:
        raise ValueError(f"{op}: x must have at least one dimension, got a scalar")
    if x_shape[-1] != weight_shape[1]:
        raise ValueError(
            f"{op}: the last dimension of x must be that of weight, "
            f"got x {_shape(x)} and weight {_shape(weight)}"
        )
    if bias is not None:
        _check_bias(op, bias, weight, weight_shape[0], "the rows of weight", "weight")


def _check_bias(op: str, bias: Tensor, other: Tensor, n: int, meaning: str, name: str) -> None:
    bias_shape = bias.shape
    if len(bias_shape) != 1 or bias_shape[0] != n:
        raise ValueError(
            f"{op}: bias must have shape [N] with N {meaning}, "
            f"got bias {_shape(bias)} and {name} {_shape(other)}"
        )


def check_matrix(op: str, z: Tensor, bias: Tensor | None) -> None:
    """Check z ``[..., N]`` and bias ``[N]`` or None, as :func:`check_linear` does."""
    _check_alone(op, "z", z)
    if bias is not None:
        check_tensor(op, "bias", bias, optional=True)
        _check_family(op, z, bias, "z", "bias")
    check_matrix_shapes(op, z, bias)


def check_matrix_shapes(op: str, z: Tensor, bias: Tensor | None) -> None:
    """The shapes of :func:`check_matrix`; nothing is broadcast."""
    z_shape = z.shape
    if len(z_shape) == 0:
        raise ValueError(f"{op}: z must have at least one dimension, got a scalar")
    if bias is not None:
        _check_bias(op, bias, z, z_shape[-1], "the last dimension of z", "z")


def check_fold(op: str, weight: Tensor, bias: Tensor | None) -> None:
    """Check weight ``[N, K]`` and bias ``[N]`` or None where there is no x."""
    _check_alone(op, "weight", weight)
    if weight.dim() != 2:
        raise ValueError(f"{op}: weight must have shape [N, K], got {_shape(weight)}")
    if bias is not None:
        check_tensor(op, "bias", bias, optional=True)
        _check_family(op, weight, bias, "weight", "bias")
        _check_bias(op, bias, weight, weight.shape[0], "the rows of weight", "weight")


def check_fold_rows(op: str, weight: Tensor, kernel_size: int) -> None:
    """Check weight ``[N, K]`` or ``[N]`` and a window of ``1 <= kernel_size <= N`` rows."""
    if weight.dtype not in DTYPES:
        _fail_dtype(op, [("weight", weight)])
    if weight.dim() not in (1, 2):
        raise ValueError(f"{op}: weight must have shape [N, K] or [N], got {_shape(weight)}")
    rows = weight.shape[0]
    if not 1 <= kernel_size <= rows:
        raise ValueError(
            f"{op}: kernel_size must be between 1 and the number of rows, "
            f"got kernel_size {kernel_size} for {rows} rows"
        )


def check_operand_dtypes(op: str, *operands: Tensor | None) -> None:
    """Raise TypeError unless all are float32 or all float64."""
    dtypes = {operand.dtype for operand in operands if operand is not None}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        listed = ", ".join(sorted(map(str, dtypes)))
        raise TypeError(f"{op}: all inputs must be float32, or all float64, got {listed}")


def check_sizes(op: str, m: int, n: int, k: int) -> None:
    """Raise ValueError where a kernel's 32-bit index could overflow."""
    if m > SIZE_LIMIT or n > SIZE_LIMIT or k > SIZE_LIMIT:
        raise ValueError(
            f"{op}: rows, columns and depth are limited to {SIZE_LIMIT} each on CUDA, "
            f"got {m} rows, {n} columns and depth {k}"
        )


def check_approximate(op: str, approximate: str) -> None:
    """Raise ValueError unless ``approximate`` is ``"none"`` or ``"tanh"``."""
    if approximate != "none" and approximate != "tanh":
        raise ValueError(f"{op}: approximate must be 'none' or 'tanh', got {approximate!r}")


def integer(op: str, name: str, value: object) -> int:
    """``value`` as an int; TypeError unless it is an integer of Python or NumPy, or symbolic."""
    if type(value) is int:
        return value
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return value  # type: ignore[return-value]
    if not isinstance(value, (bool, Tensor)):  # a bool is no number, a Tensor would synchronise
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(f"{op}: {name} must be an int, got {value!r}")


def check_kernel_size(op: str, kernel_size: int | None, columns: int) -> int:
    """``kernel_size`` as an int; TypeError unless it is an integer, ValueError unless
    ``1 <= kernel_size <= columns``."""
    if kernel_size is None:
        raise TypeError(f"{op}: kernel_size must be an int, got None")
    kernel_size = integer(op, "kernel_size", kernel_size)
    if kernel_size < 1 or kernel_size > columns:
        raise ValueError(
            f"{op}: kernel_size must be between 1 and N, "
            f"got kernel_size {kernel_size} for N = {columns}"
        )
    return kernel_size


def check_columns(op: str, columns: int) -> None:
    """Raise ValueError where a row maximum would have nothing to choose from."""
    if columns < 1:
        raise ValueError(f"{op}: the maximum needs N >= 1, got N = {columns}")


def real_number(op: str, name: str, value: object) -> float:
    """``value`` as a float; TypeError unless it is a real number, ValueError for an integer that no
    float reaches. inf and NaN are legal."""
    if type(value) is float:
        return value
    traced = isinstance(value, (int, torch.SymInt, torch.SymFloat))  # without an ABC
    if isinstance(value, bool) or not (traced or isinstance(value, numbers.Real)):
        raise TypeError(f"{op}: {name} must be a real number, got {value!r}")
    try:
        return float(value)  # type: ignore[arg-type]  # numpy.float64 too, which is a float
    except OverflowError:
        raise ValueError(f"{op}: {name} is beyond the range of a float") from None
