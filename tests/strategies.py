"""Hypothesis strategies: a case is a small frozen description, and tensors are made from its seed.

Drawing descriptions instead of elements keeps an example cheap and its repr short: a failure prints
one line that rebuilds the same tensors on any run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

# Around the edges of the tiles, primes, the smallest sizes.
EDGES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 128, 129, 251, 255, 256, 257)
THIN = (511, 1021, 2048, 4099, 16384, 20011)
LARGEST = 10**6  # elements of x or W
BUDGET = 4 * 10**6  # M * N * K of one example: a CPU core takes a few milliseconds for it

VALUES = (
    "normal",
    "uniform",
    "positive",
    "negative",
    "equal",
    "columns",
    "compensated",
    "cancelling",
    "sparse",
)
LAYOUTS = (
    "contiguous",
    "offset1",
    "offset2",
    "offset3",
    "padded",
    "sliced",
    "transposed",
    "row expanded",
    "column expanded",
    "odd size-1 strides",
)
BIASES = ("none", "normal", "large", "equal", "offset1", "expanded", "sliced")
PLANTS = (
    *("x nan", "x inf", "x -inf", "w nan", "w inf", "b nan", "b inf", "b -inf"),
    *("x inf row", "w nan row", "w inf row", "w 0 row"),
)
SCALES = (1.0, -1.0, 2.0, 0.0, 0.5, -3.25, 1e-3, 1e6)


@dataclass(frozen=True)
class Case:
    """Operands of a linear layer, and what the pooling head adds to them."""

    leading: tuple[int, ...]
    n: int
    k: int
    values: str = "normal"
    x_layout: str = "contiguous"
    w_layout: str = "contiguous"
    bias: str = "normal"
    plant: str = ""
    kernel_size: int = 1
    scale: float = 1.0
    approximate: str = "none"
    seed: int = 0

    @property
    def m(self) -> int:
        return math.prod(self.leading)

    def generator(self, device: str) -> torch.Generator:
        return torch.Generator(device).manual_seed(self.seed)

    def tensors(self, device: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """x [*leading, K], weight [N, K] and bias [N] or None, with the strides the case asks
        for."""
        generator = self.generator(device)
        x, weight = make_operands(self.values, self.m, self.n, self.k, generator)
        bias = make_bias(self.bias, self.n, generator)
        plant_value(self.plant, x, weight, bias, self.seed)
        x, weight = lay_out(x, self.x_layout), lay_out(weight, self.w_layout)
        return x.view(*self.leading, self.k) if len(self.leading) != 1 else x, weight, bias


def make_operands(
    values: str, m: int, n: int, k: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """x [M, K] and weight [N, K] of one kind of numbers."""

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=generator.device)

    x, weight = randn(m, k), (rand(n, k) * 2 - 1) / math.sqrt(max(k, 1))  # as nn.Linear initialises
    if values == "normal":
        weight = randn(n, k)
    elif values == "positive":
        x, weight = rand(m, k), rand(n, k) / max(k, 1) * 4
    elif values == "negative":  # every pre-activation is negative
        x, weight = rand(m, k), -rand(n, k) / max(k, 1) * 4
    elif values == "equal":
        # Powers of two: sums are exact in any order, so that equal columns are equal in bits.
        x, weight = torch.full_like(x, 0.5), torch.full_like(weight, 2.0 ** -k.bit_length())
    elif values in ("columns", "compensated"):
        exponents = 10.0 ** (rand(k) * 12 - 6)
        x = x * exponents
        weight = weight / exponents if values == "compensated" else weight * rand(n, 1) * 1e-3
    elif values == "cancelling":  # the second half takes back the first, all but a thousandth
        half = k // 2
        x[:, half : 2 * half] = x[:, :half]
        weight[:, half : 2 * half] = -weight[:, :half] * (1 + 1e-3 * rand(n, half))
    elif values == "sparse":  # behind a ReLU, and pruned
        x, weight = x.clamp(min=0), weight * (rand(n, k) < 0.5)
    return x, weight


def make_bias(kind: str, n: int, generator: torch.Generator) -> Tensor | None:
    if kind == "none":
        return None
    if kind == "equal":
        return torch.full((n,), -0.5, device=generator.device)
    if kind == "expanded":
        return torch.full((1,), 0.25, device=generator.device).expand(n)
    values = torch.randn(n, generator=generator, device=generator.device)
    if kind == "offset1":
        return at_offset(values, 1)
    if kind == "sliced":
        return values.repeat_interleave(3)[::3]
    return values * (30 if kind == "large" else 1)


def plant_value(plant: str, x: Tensor, weight: Tensor, bias: Tensor | None, seed: int) -> None:
    """Put one NaN or infinity somewhere, or a row of them or of zeros: first, last or between, by
    the seed."""
    if not plant:
        return
    where, value, *in_row = plant.split()
    target = {"x": x, "w": weight, "b": bias}[where]
    if target is None or target.numel() == 0:
        return
    place = (0, target.numel() - 1, seed % target.numel())[seed % 3]
    if target.stride(0) != 0 and target.is_contiguous():
        length = target.shape[-1] if in_row else 1
        target.view(-1, length)[place // length] = float(value)


def at_offset(t: Tensor, elements: int) -> Tensor:
    """The same numbers, contiguous, starting `elements` floats after an aligned address."""
    flat = t.new_full((t.numel() + elements,), math.nan)[elements:]
    return flat.view(t.shape).copy_(t)


def lay_out(t: Tensor, layout: str) -> Tensor:
    """A matrix of the same shape with other strides; the expanded ones repeat their first row or
    column."""
    rows, columns = t.shape
    if layout.startswith("offset"):
        return at_offset(t, int(layout[-1]))
    if layout == "padded":
        return t.new_full((rows, columns + 3), math.nan)[:, :columns].copy_(t)
    if layout == "sliced":
        return t.new_full((2 * rows, 2 * columns), math.nan)[::2, ::2].copy_(t)
    if layout == "transposed":
        return t.t().contiguous().t()
    if layout == "row expanded" and rows:
        return t[:1].expand(rows, columns)
    if layout == "column expanded" and columns:
        return t[:, :1].expand(rows, columns)
    if layout == "odd size-1 strides":
        stride = (5 if rows == 1 else columns, 7 if columns == 1 else 1)
        return t.contiguous().as_strided((rows, columns), stride)
    return t


def viewable(layout: str, leading: tuple[int, ...]) -> bool:
    """Whether rows of this layout can be seen as more or fewer leading dims without a copy."""
    return len(leading) == 1 or layout in ("contiguous", "offset1", "offset2", "offset3", "padded")


def dims(largest: int) -> st.SearchStrategy[int]:
    edges = [d for d in EDGES + THIN if d <= largest]
    return st.sampled_from(edges or [1]) | st.integers(1, max(1, min(largest, 300)))


@st.composite
def leading_dims(draw: st.DrawFn, m: int) -> tuple[int, ...]:
    kinds = [(m,), (1, m), (m, 1)] + [(2, m // 2)] * (m % 2 == 0) + [(3, 1, m // 3)] * (m % 3 == 0)
    kinds += [()] * (m == 1)
    return draw(st.sampled_from(kinds))


def kernel_sizes(n: int) -> st.SearchStrategy[int]:
    """Dividing and not dividing n, and not above it."""
    return st.sampled_from([k for k in (1, 2, 3, 4, 5, 7, 8, 13, 16, 32, n // 2, n) if 1 <= k <= n])


@st.composite
def cases(
    draw: st.DrawFn, *, pooled: bool = False, planted: bool = False, empty: bool = True
) -> Case:
    """Any accepted input of the two heads with M * N * K within the budget."""
    n = draw(dims(LARGEST))
    m = draw(dims(min(LARGEST, BUDGET // n)))
    k = draw(dims(min(LARGEST // max(m, n), BUDGET // (n * m))))
    if empty:
        m, k = draw(st.sampled_from([(m, k)] * 18 + [(0, k), (m, 0)]))
    leading = draw(leading_dims(m))
    x_layout = draw(st.sampled_from([a for a in LAYOUTS if viewable(a, leading)]))
    return Case(
        leading=leading,
        n=n,
        k=k,
        values=draw(st.sampled_from(VALUES)),
        x_layout=x_layout,
        w_layout=draw(st.sampled_from(LAYOUTS)),
        bias=draw(st.sampled_from(BIASES)),
        plant=draw(st.sampled_from(PLANTS)) if planted else "",
        kernel_size=draw(kernel_sizes(n)) if pooled else 1,
        scale=draw(st.sampled_from(SCALES)) if pooled else 1.0,
        approximate=draw(st.sampled_from(["none", "none", "tanh"])),
        seed=draw(st.integers(0, 2**31 - 1)),
    )
