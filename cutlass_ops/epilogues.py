"""The table of epilogues: what may follow the linear part inside one kernel.

``torch.ops.cutlass_ops.linear_epilogue(x, weight, bias, name, params)`` runs any row of it. A new
epilogue is a description in ``include/cutlass_ops``, one instantiation in ``csrc`` under the same
name, and one row here, which holds its shape rule and its plain PyTorch reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from . import reference


@dataclass(frozen=True)
class Epilogue:
    """One row of the table.

    Attributes:
        name: the name under which the binary registers its kernels.
        parameters: names of the numbers in ``params``, in order.
        columns: maps ``(n, params)`` to the number of output columns, ``[..., N] -> [..., n_out]``;
            None where each row is reduced to one number, ``[..., N] -> [...]``.
        reference: maps ``(z, params)`` to the result, z ``[..., N]`` being the linear part with
            its bias; differentiable torch ops.
        needs_columns: whether N = 0 is an error, as for a maximum.
    """

    name: str
    parameters: tuple[str, ...]
    columns: Callable[[int, Sequence[float]], int] | None
    reference: Callable[[Tensor, Sequence[float]], Tensor]
    needs_columns: bool = False

    def check(self, n: int, params: Sequence[float]) -> None:
        """Raise ValueError where ``params`` or N does not fit this epilogue."""
        if len(params) != len(self.parameters):
            raise ValueError(
                f"linear_epilogue: {self.name!r} takes {len(self.parameters)} params "
                f"{self.parameters}, got {list(params)}"
            )
        if self.needs_columns and n < 1:
            raise ValueError(f"linear_epilogue: {self.name!r} needs N >= 1, got N = {n}")
        if "kernel_size" in self.parameters:
            kernel_size = params[self.parameters.index("kernel_size")]
            if not 1 <= kernel_size <= n or kernel_size != int(kernel_size):
                raise ValueError(
                    f"linear_epilogue: kernel_size of {self.name!r} must be a whole number "
                    f"between 1 and N, got {kernel_size} for N = {n}"
                )


def _same(n: int, params: Sequence[float]) -> int:
    return n


def _pooled(approximate: str) -> Callable[[Tensor, Sequence[float]], Tensor]:
    def run(z: Tensor, params: Sequence[float]) -> Tensor:
        pooled = reference.avg_pool(z, int(params[0]))
        return reference.gelu_scale_max(pooled, scale=params[1], approximate=approximate)

    return run


_POOLED_PARAMETERS = ("kernel_size", "scale")

EPILOGUES: dict[str, Epilogue] = {
    row.name: row
    for row in (
        Epilogue("identity", (), _same, lambda z, params: z),
        Epilogue("gelu", (), _same, lambda z, params: reference.gelu(z)),
        Epilogue("gelu_tanh", (), _same, lambda z, params: reference.gelu(z, "tanh")),
        Epilogue("avgpool_gelu_scale_max", _POOLED_PARAMETERS, None, _pooled("none"), True),
        Epilogue("avgpool_gelu_tanh_scale_max", _POOLED_PARAMETERS, None, _pooled("tanh"), True),
        Epilogue("relu", (), _same, lambda z, params: z.relu()),
        Epilogue("row_sum", (), None, lambda z, params: z.sum(-1)),
    )
}


def lookup(name: str) -> Epilogue:
    """The row called ``name``; ValueError with the known names where there is none."""
    row = EPILOGUES.get(name)
    if row is None:
        known = ", ".join(EPILOGUES)
        raise ValueError(f"linear_epilogue: no epilogue is called {name!r}; known: {known}")
    return row


def _form(approximate: str, erf: str, tanh: str) -> str:
    if approximate == "none":
        return erf
    if approximate == "tanh":
        return tanh
    raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")


def gelu_name(approximate: str) -> str:
    """The epilogue that applies GELU in this form and stores the matrix."""
    return _form(approximate, "gelu", "gelu_tanh")


def pooled_name(approximate: str) -> str:
    """The epilogue that pools, applies GELU in this form, scales and takes the row maximum."""
    return _form(approximate, "avgpool_gelu_scale_max", "avgpool_gelu_tanh_scale_max")
