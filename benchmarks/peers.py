"""What else a user of PyTorch can take for a float32 linear: the peers of `precision="fp16x3"`.

Three of them, each `x Wᵀ + b` on cuBLAS: float32 without TF32, TF32, and fp16x3 composed of
PyTorch's operations. The last splits each operand into two scaled fp16 halves as the kernels do:

    row * s = high + low,  s = 2^(14 - ilogb(max |row|)),  high and low in fp16
    y = (x_high w_high + x_high w_low + x_low w_high) / (s_x s_w)

in one product over 3 K columns, `[high, high, low] [high, low, high]ᵀ`. Unlike the kernels it
leaves all of K in the accumulators of the tensor cores, which truncate.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST_EXPONENT = 14  # of a scaled row: its largest is below 2^15, the largest fp16 near 2^16


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """PyTorch's own float32 matmul precision inside a block: "highest", or "high" for TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def float32_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear without TF32, whatever PyTorch's flags say."""
    with matmul_precision("highest"):
        return F.linear(x, weight, bias)


def tf32_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear with TF32 allowed."""
    with matmul_precision("high"):
        return F.linear(x, weight, bias)


@dataclass(frozen=True)
class Halves:
    """The rows of a float32 matrix under a power of two each, as the sum of two fp16 matrices.

    Attributes:
        high: [rows, k], fp16.
        low: [rows, k], fp16.
        unscale: [rows, 1], float32: row = (high + low) * unscale.
    """

    high: Tensor
    low: Tensor
    unscale: Tensor


def split(matrix: Tensor) -> Halves:
    """`matrix` [rows, k] in halves. Where a row's largest is below 1e-34, its scale is no float."""
    matrix = matrix.detach()
    largest = matrix.abs().amax(1, keepdim=True)
    exponent = torch.frexp(largest).exponent - 1 - LARGEST_EXPONENT
    scaled = torch.ldexp(matrix, -exponent)
    high = scaled.half()
    low = (scaled - high.float()).half()
    return Halves(high, low, torch.ldexp(torch.ones_like(largest), exponent))


@dataclass(frozen=True)
class ComposedLinear:
    """fp16x3 of PyTorch's operations, its operands split beforehand.

    Attributes:
        x: [m, 3 k], fp16: high, high, low.
        weight: [n, 3 k], fp16: high, low, high.
        x_unscale: [m, 1].
        weight_unscale: [1, n].
    """

    x: Tensor
    weight: Tensor
    x_unscale: Tensor
    weight_unscale: Tensor

    @classmethod
    def of(cls, x: Tensor, weight: Tensor) -> "ComposedLinear":
        a, b = split(x), split(weight)
        return cls(
            torch.cat([a.high, a.high, a.low], dim=1),
            torch.cat([b.high, b.low, b.high], dim=1),
            a.unscale,
            b.unscale.t(),
        )

    def __call__(self, bias: Tensor | None = None) -> Tensor:
        """x Wᵀ + bias, [m, n]."""
        product = _product(self.x, self.weight.t()).mul_(self.x_unscale)
        if bias is None:
            return product.mul_(self.weight_unscale)
        return torch.addcmul(bias, product, self.weight_unscale)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The float32 product of fp16 matrices."""
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=torch.float32)
    return (
        a.float() @ b.float()
    )  # PyTorch has no such product on a CPU; this one has the same terms
