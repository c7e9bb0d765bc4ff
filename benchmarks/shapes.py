"""What is measured: the ops, the shapes, and how their FLOPs and bytes are counted.

FLOPs are those of the definition, 2 * M * N * K for the linear part of either op, whatever an
implementation really executes: op B on folded weights does kernel_size times fewer, so its
TFLOP/s figure may pass the machine's peak. Bytes are the least any implementation must move: each
operand read once and the result written once, all in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

OpName = Literal["linear_gelu_softmax", "linear_avgpool_gelu_scale_max"]
OPS: tuple[OpName, ...] = ("linear_gelu_softmax", "linear_avgpool_gelu_scale_max")
SHORT_NAMES: dict[str, str] = {"linear_gelu_softmax": "A", "linear_avgpool_gelu_scale_max": "B"}


@dataclass(frozen=True)
class Shape:
    """A linear of m rows, n outputs and k inputs: x [m, k], weight [n, k]."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of the matrix product by its definition."""
        return 2 * self.m * self.n * self.k

    def least_bytes(self, op: OpName) -> int:
        """Bytes of x, weight, bias and the result of `op`, each moved once."""
        result = self.m * self.n if op == "linear_gelu_softmax" else self.m
        return 4 * (self.m * self.k + self.n * self.k + self.n + result)


def parse_shape(text: str) -> Shape:
    """`"1024x8192x8192"` as a Shape (M, N, K); ValueError naming the text otherwise."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"a shape is MxNxK with positive sizes, got {text!r}")
    m, n, k = (int(part) for part in parts)
    return Shape(m, n, k)


HEADLINE = Shape(1024, 8192, 8192)
FEW_ROWS: tuple[Shape, ...] = tuple(Shape(m, 8192, 8192) for m in (1, 2, 4, 8, 16, 32))

# The table that the project's goals are stated for (geometric mean, slowest shape).
TABLE: tuple[Shape, ...] = (
    HEADLINE,
    Shape(1, 8192, 8192),
    Shape(16, 8192, 8192),
    Shape(64, 8192, 8192),
    Shape(256, 8192, 8192),
    Shape(4096, 8192, 8192),
    Shape(4096, 4096, 4096),
    Shape(16384, 1024, 1024),
    Shape(4096, 1024, 4096),
    Shape(1000, 1000, 1000),
    Shape(128, 50257, 1024),
    Shape(8192, 768, 3072),
    Shape(2048, 11008, 4096),
    Shape(512, 32768, 512),
    Shape(65536, 256, 256),
    Shape(333, 4099, 1021),
    Shape(128, 16384, 16384),
)
GPU_SHAPES: tuple[Shape, ...] = tuple(dict.fromkeys(TABLE + FEW_ROWS))
QUICK_SHAPES: tuple[Shape, ...] = (HEADLINE, Shape(1, 8192, 8192), Shape(16, 8192, 8192))
# Also measured with parameters that require grad, and with torch.compile: compiling each further
# shape would take longer than measuring it.
GRAD_SHAPES = QUICK_SHAPES
COMPILE_SHAPES = QUICK_SHAPES
# fp16x3 is for many rows: where reading the weight takes most of the time, it has nothing to gain.
FP16X3_ROWS = 256
# Where fp16x3 is compared with its peers: the headline, few rows, short K, and all sizes alike.
PEER_SHAPES: tuple[Shape, ...] = (
    HEADLINE,
    Shape(256, 8192, 8192),
    Shape(4096, 4096, 4096),
    Shape(16384, 1024, 1024),
)
CPU_SHAPES: tuple[Shape, ...] = (Shape(1, 256, 256), Shape(64, 512, 256), Shape(128, 1024, 512))


def growth_sweeps(*, small: bool) -> dict[str, list[Shape]]:
    """Shapes that differ in one dimension, as {"M" | "N" | "K": shapes in rising order}.

    Sizes rise by factors of about 1.4, with points between the powers of two, so that a cliff at a
    tile boundary or at a change of kernel shows.

    Args:
        small: Sizes for a CPU.
    """
    fixed = 256 if small else 4096
    largest = {"M": 256, "N": 512, "K": 512} if small else {"M": 8192, "N": 32768, "K": 32768}
    smallest = {"M": 1, "N": 32, "K": 32}
    sweeps: dict[str, list[Shape]] = {}
    for dim in ("M", "N", "K"):
        sizes = _rising(smallest[dim], largest[dim])
        rows = 64 if small else 1024
        sweeps[dim] = [
            Shape(
                size if dim == "M" else rows,
                size if dim == "N" else fixed,
                size if dim == "K" else fixed,
            )
            for size in sizes
        ]
    return sweeps


def _rising(first: int, last: int) -> list[int]:
    """Powers of two from `first` to `last` with 1.5 times each (from 2 on) between them."""
    sizes: list[int] = []
    size = first
    while size <= last:
        sizes.append(size)
        between = size + size // 2
        if size >= 2 and between < last:
            sizes.append(between)
        size *= 2
    return sizes


# Row lengths of the softmax measured alone, the largest of its configurations, and some between
# them, odd ones too; the rows are as many as make SOFTMAX_ELEMENTS.
SOFTMAX_LENGTHS: Sequence[int] = (
    *(1024, 2048, 4096, 8192, 16384, 32768, 65536),
    *(3001, 10_001, 20_000, 40_000, 50_257),
)
SOFTMAX_ELEMENTS = 1 << 27
