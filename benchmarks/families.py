"""Inputs for the error report: families of operands that are easy or hard to multiply.

Each is a function of (m, n, k, generator) that returns x [m, k] and weight [n, k] in float32, on
the generator's device. `FAMILIES` gives them by name, in the order of the report.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Operands = tuple[Tensor, Tensor]
Family = Callable[[int, int, int, torch.Generator], Operands]


def _normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, device=generator.device, generator=generator)


def _uniform(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.rand(rows, columns, device=generator.device, generator=generator)


def _powers_of_ten(rows: int, columns: int, most: float, generator: torch.Generator) -> Tensor:
    """10^u, u uniform between -most and most."""
    return 10.0 ** ((2 * _uniform(rows, columns, generator) - 1) * most)


def initial(*size: int, k: int, generator: torch.Generator) -> Tensor:
    """Parameters as nn.Linear of k inputs initialises them: uniform between -1/√k and 1/√k."""
    bound = k**-0.5
    values = torch.rand(size, device=generator.device, generator=generator)
    return values.mul_(2 * bound).sub_(bound)


def linear(m: int, n: int, k: int, generator: torch.Generator) -> Operands:
    """x in [0, 1), weight as nn.Linear initialises it: the operands of the benchmark."""
    return _uniform(m, k, generator), initial(n, k, k=k, generator=generator)


def normal(m: int, n: int, k: int, generator: torch.Generator) -> Operands:
    return _normal(m, k, generator), _normal(n, k, generator)


def positive(m: int, n: int, k: int, generator: torch.Generator) -> Operands:
    """Sums that only grow: where the drift of a truncating accumulator shows first."""
    return _uniform(m, k, generator), _uniform(n, k, generator)


def cancelling(m: int, n: int, k: int, generator: torch.Generator) -> Operands:
    """The second half of each sum takes back the first, all but some thousandth of its terms."""
    x, weight = normal(m, n, k, generator)
    half = k // 2
    x[:, half : 2 * half] = x[:, :half]
    weight[:, half : 2 * half] = -weight[:, :half] * (1 + 1e-3 * _uniform(n, half, generator))
    return x, weight


def columns(m: int, n: int, k: int, generator: torch.Generator) -> Operands:
    """Columns of x spread over 10^-6 to 10^6, as unscaled features are."""
    x, weight = normal(m, n, k, generator)
    return x * _powers_of_ten(1, k, 6, generator), weight


def rows(m: int, n: int, k: int, generator: torch.Generator) -> Operands:
    """Rows of x spread over 10^-30 to 10^30; only the error of single rows tells much."""
    x, weight = normal(m, n, k, generator)
    return x * _powers_of_ten(m, 1, 30, generator), weight


def outlier(value: float) -> Family:
    """One entry of `value` in each row of x, the others normal."""

    def make(m: int, n: int, k: int, generator: torch.Generator) -> Operands:
        x, weight = normal(m, n, k, generator)
        where = torch.randint(k, (m, 1), device=generator.device, generator=generator)
        return x.scatter_(1, where, value), weight

    return make


def outlier_unused(value: float) -> Family:
    """One column of x is `value`, and its weights are zero: the result owes it nothing, but the
    scale of each row does."""

    def make(m: int, n: int, k: int, generator: torch.Generator) -> Operands:
        x, weight = normal(m, n, k, generator)
        x[:, k // 2] = value
        weight[:, k // 2] = 0
        return x, weight

    return make


def compensated(m: int, n: int, k: int, generator: torch.Generator) -> Operands:
    """Columns of x spread over 10^-6 to 10^6, and weights that undo it: every product counts alike,
    however far below its row's maximum either factor is."""
    x, weight = normal(m, n, k, generator)
    factors = _powers_of_ten(1, k, 6, generator)
    return x * factors, weight / factors


FAMILIES: dict[str, Family] = {
    "nn.Linear": linear,
    "normal": normal,
    "all positive": positive,
    "cancelling": cancelling,
    "columns over 10^±6": columns,
    "rows over 10^±30": rows,
    "outlier 1e5": outlier(1e5),
    "outlier 1e8": outlier(1e8),
    "outlier 1e8 on zero weights": outlier_unused(1e8),
    "columns undone by weights": compensated,
}
# Those outside of what the scheme of fp16x3 promises to keep (docs/accuracy.md).
WEAK = ("outlier 1e8 on zero weights", "columns undone by weights")
