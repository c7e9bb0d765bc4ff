"""Who is measured: for each op, the ways of computing it, as functions of nothing.

| provider | what it is |
|---|---|
| `eager` | the composition of torch.nn.functional calls |
| `compile` | the same under torch.compile(dynamic=False) |
| `linear` | F.linear alone, cuBLAS on a GPU: eager without what follows the product |
| `ours` | the cutlass_ops op, everything done on each call |
| `packed` | the cutlass_ops op on a PackedLinear made beforehand |
| `fp16x3` | as `ours`, precision "fp16x3" |
| `fp16x3-packed` | as `packed`, precision "fp16x3" |
| `cublas-fp16x3` | eager on an fp16x3 linear of cuBLAS's fp16 product, x too split beforehand |
| `tf32` | eager with TF32 allowed |
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import cutlass_ops
from benchmarks import families, peers
from benchmarks.shapes import COMPILE_SHAPES, FP16X3_ROWS, PEER_SHAPES, OpName, Shape

Call = Callable[[], Tensor]
BASELINE = "eager"
IEEE = ("ours", "packed")
FP16X3 = ("fp16x3", "fp16x3-packed")
PEERS = ("cublas-fp16x3", "tf32")
PROVIDERS: tuple[str, ...] = (BASELINE, "compile", "linear", *IEEE, *FP16X3, *PEERS)
# Not measured with parameters that require grad.
FORWARD_ONLY = ("compile", *PEERS)


@dataclass(frozen=True)
class Problem:
    """The operands of one case; x [m, k], weight [n, k], bias [n], float32."""

    op: OpName
    x: Tensor
    weight: Tensor
    bias: Tensor
    kernel_size: int
    scale: float


def make_problem(
    op: OpName,
    shape: Shape,
    *,
    device: torch.device,
    grad: bool,
    kernel_size: int,
    scale: float,
    seed: int,
) -> Problem:
    """Fresh random operands: x uniform in [0, 1), weight and bias as nn.Linear initialises them.

    Args:
        grad: Whether weight and bias require grad, as a model's parameters do in training.
    """
    generator = torch.Generator(device).manual_seed(seed)
    x, weight = families.linear(shape.m, shape.n, shape.k, generator)
    bias = families.initial(shape.n, k=shape.k, generator=generator)
    weight.requires_grad_(grad)
    bias.requires_grad_(grad)
    return Problem(op, x, weight, bias, min(kernel_size, shape.n), scale)


def _head_a(z: Tensor) -> Tensor:
    return F.softmax(F.gelu(z), dim=-1)


def _head_b(z: Tensor, kernel_size: int, scale: float) -> Tensor:
    pooled = F.avg_pool1d(z.unsqueeze(1), kernel_size).squeeze(1)
    return torch.max(F.gelu(pooled) * scale, dim=-1).values


def _eager_a(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _head_a(F.linear(x, weight, bias))


def _eager_b(x: Tensor, weight: Tensor, bias: Tensor, kernel_size: int, scale: float) -> Tensor:
    return _head_b(F.linear(x, weight, bias), kernel_size, scale)


def _eager_on(p: Problem, linear: Callable[[], Tensor]) -> Call:
    """The rest of the head in eager, on a linear part of another making."""
    if p.op == "linear_gelu_softmax":
        return lambda: _head_a(linear())
    return lambda: _head_b(linear(), p.kernel_size, p.scale)


def _eager(p: Problem) -> Call:
    return _eager_on(p, lambda: F.linear(p.x, p.weight, p.bias))


def _compile(p: Problem) -> Call:
    # The operands are arguments: a captured tensor would be compiled in as a constant input.
    if p.op == "linear_gelu_softmax":
        compiled_a: Callable[..., Tensor] = torch.compile(_eager_a, dynamic=False)
        return lambda: compiled_a(p.x, p.weight, p.bias)
    compiled_b: Callable[..., Tensor] = torch.compile(_eager_b, dynamic=False)
    return lambda: compiled_b(p.x, p.weight, p.bias, p.kernel_size, p.scale)


def _linear(p: Problem) -> Call:
    return lambda: F.linear(p.x, p.weight, p.bias)


def _ours(p: Problem, precision: str | None = None) -> Call:
    if p.op == "linear_gelu_softmax":
        return lambda: cutlass_ops.linear_gelu_softmax(p.x, p.weight, p.bias, precision=precision)
    return lambda: cutlass_ops.linear_avgpool_gelu_scale_max(
        *(p.x, p.weight, p.bias), kernel_size=p.kernel_size, scale=p.scale, precision=precision
    )


def _packed(p: Problem, precision: str | None = None) -> Call:
    if p.op == "linear_gelu_softmax":
        pack_a = cutlass_ops.pack_linear(p.weight, p.bias, precision=precision)
        return lambda: cutlass_ops.linear_gelu_softmax(p.x, pack_a)
    pack_b = cutlass_ops.pack_linear(
        p.weight, p.bias, kernel_size=p.kernel_size, precision=precision
    )
    return lambda: cutlass_ops.linear_avgpool_gelu_scale_max(p.x, pack_b, scale=p.scale)


def _cublas_fp16x3(p: Problem) -> Call:
    composed = peers.ComposedLinear.of(p.x, p.weight)
    return _eager_on(p, lambda: composed(p.bias))


def _tf32(p: Problem) -> Call:
    return _eager_on(p, lambda: peers.tf32_linear(p.x, p.weight, p.bias))


_MAKERS: dict[str, Callable[[Problem], Call]] = {
    "eager": _eager,
    "compile": _compile,
    "linear": _linear,
    "ours": _ours,
    "packed": _packed,
    "fp16x3": partial(_ours, precision="fp16x3"),
    "fp16x3-packed": partial(_packed, precision="fp16x3"),
    "cublas-fp16x3": _cublas_fp16x3,
    "tf32": _tf32,
}


def suits(provider: str, shape: Shape, *, quick: bool) -> bool:
    """Whether `provider` belongs to the default benchmark of `shape`."""
    if provider == "compile":
        return shape in COMPILE_SHAPES and not quick
    if provider in PEERS:
        return shape in PEER_SHAPES
    return provider not in FP16X3 or shape.m >= FP16X3_ROWS


def make_call(provider: str, problem: Problem) -> Call:
    """The call of `provider` on `problem`, set up (packed, compiled lazily) but not yet run."""
    return _MAKERS[provider](problem)


@dataclass(frozen=True)
class Part:
    """A memory-bound piece measured alone, by us and by PyTorch.

    Attributes:
        name: What it computes.
        size: The operand's sizes, for people.
        moved_bytes: Bytes read plus bytes written.
        calls: Provider name -> call.
    """

    name: str
    size: str
    moved_bytes: int
    calls: dict[str, Call]


def softmax_part(rows: int, length: int, device: torch.device) -> Part:
    """softmax over the last dimension of a [rows, length] matrix."""
    z = torch.randn(rows, length, device=device)
    return Part(
        "softmax",
        f"{rows}x{length}",
        2 * 4 * z.numel(),
        {"eager": lambda: F.softmax(z, dim=-1), "ours": lambda: cutlass_ops.softmax(z)},
    )


def gelu_softmax_part(rows: int, length: int, device: torch.device) -> Part:
    """softmax(gelu(z)) of a [rows, length] matrix; PyTorch moves its bytes twice."""
    z = torch.randn(rows, length, device=device)
    return Part(
        "gelu_softmax",
        f"{rows}x{length}",
        2 * 4 * z.numel(),
        {
            "eager": lambda: F.softmax(F.gelu(z), dim=-1),
            "ours": lambda: cutlass_ops.gelu_softmax(z),
        },
    )


def fold_part(n: int, k: int, kernel_size: int, device: torch.device) -> Part:
    """The means of each `kernel_size` consecutive rows of a [n, k] weight and its bias."""
    weight = torch.randn(n, k, device=device)
    bias = torch.randn(n, device=device)

    def eager() -> Tensor:
        bias.view(-1, kernel_size).mean(1)
        return weight.view(-1, kernel_size, k).mean(1)

    return Part(
        "fold_linear",
        f"{n}x{k} by {kernel_size}",
        4 * (n * k + n * k // kernel_size),
        {
            "eager": eager,
            "ours": lambda: cutlass_ops.fold_linear(weight, bias, kernel_size)[0],
        },
    )
