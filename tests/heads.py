"""What each name of the table of epilogues means, written down a second time."""

from __future__ import annotations

import torch
from oracle import Head, gelu_eager, gelu_exact, plain_head, pool_max_head


def _gelu_head(approximate: str) -> Head:
    return Head(lambda z: gelu_exact(z, approximate), lambda z: gelu_eager(z, approximate))


_PLAIN = {
    "identity": plain_head(lambda z: z),
    "gelu": _gelu_head("none"),
    "gelu_tanh": _gelu_head("tanh"),
    "relu": plain_head(torch.relu),
    "row_sum": plain_head(lambda z: z.sum(-1), per_row=False),
}


def is_pooled(name: str) -> bool:
    return name.endswith("scale_max")


def head_of(name: str, params: list[float]) -> Head:
    if is_pooled(name):
        return pool_max_head(int(params[0]), params[1], "tanh" if "tanh" in name else "none")
    return _PLAIN[name]


def some_params(name: str, n: int) -> list[float]:
    """Parameters that fit n columns: windows of four, a negative scale."""
    return [4.0 if n >= 4 else 1.0, -2.0] if is_pooled(name) else []
