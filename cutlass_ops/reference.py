"""Plain PyTorch twins of every op: what the ops compute, and how they do it without a GPU.

Every function is a composition of differentiable torch ops and keeps leading dimensions. It works
in the dtype of its inputs and does no validation beyond what the maths needs; the functional API
(:mod:`cutlass_ops.functional`) does the rest. The maths of each step stands in its docstring.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# The constants of GELU stand as literals in the functions: torch.compile(dynamic=True) makes graph
# inputs of global floats, and dynamo fails on those in the second autograd function of a graph.


def _gelu_unknown(approximate: str) -> ValueError:
    return ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")


def _unsaturated(z: Tensor) -> Tensor:
    """Beyond 40 the tanh form has long saturated, in float64 too; the cube would overflow later."""
    return z.clamp(-40.0, 40.0)


def _twice_u(c: Tensor) -> Tensor:
    """``2 sqrt(2 / pi) (c + 0.044715 c^3)``."""
    return 1.5957691216057308 * (c + 0.044715 * c * c * c)


def gelu(z: Tensor, approximate: str = "none") -> Tensor:
    """GELU without cancellation in the negative tail.

    ``"none"``: ``z / 2 * erfc(-z / sqrt(2))``. ``"tanh"``: ``z * sigmoid(2 u)`` with
    ``u = sqrt(2 / pi) * (z + 0.044715 z^3)``, which is ``z / 2 * (1 + tanh(u))``.
    Both give GELU(+inf) = +inf, GELU(-inf) = NaN and GELU(NaN) = NaN.

    Args:
        z: any shape, floating.
        approximate: ``"none"`` or ``"tanh"``; anything else raises ValueError.
    """
    if approximate == "none":
        return 0.5 * z * torch.erfc(z * -0.7071067811865476)
    if approximate == "tanh":
        return z * torch.sigmoid(_twice_u(_unsaturated(z)))
    raise _gelu_unknown(approximate)


def gelu_derivative(z: Tensor, approximate: str = "none") -> Tensor:
    """dGELU/dz, from the same forms as :func:`gelu`, itself differentiable.

    ``"none"``: ``erfc(-z / sqrt(2)) / 2 + z exp(-z^2 / 2) / sqrt(2 pi)``.
    ``"tanh"``: ``s + 2 z s (1 - s) du/dz`` with ``s = sigmoid(2 u)``; ``1 - s = sigmoid(-2 u)``.
    """
    if approximate == "none":
        density = torch.exp(-0.5 * z * z) * 0.3989422804014327
        return 0.5 * torch.erfc(z * -0.7071067811865476) + z * density
    if approximate == "tanh":
        c = _unsaturated(z)
        v = _twice_u(c)
        dv = 1.5957691216057308 * (1.0 + (3.0 * 0.044715) * c * c)
        s = torch.sigmoid(v)
        return s + z * (s * torch.sigmoid(-v) * dv)
    raise _gelu_unknown(approximate)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: x ``[..., K]``, weight ``[N, K]``, bias ``[N]`` or None.

    With K = 0 it is the bias (or zero) in every row.
    """
    if weight.shape[1] == 0:  # backends have returned uninitialised memory from an empty F.linear
        z = torch.matmul(x, weight.t())
        return z if bias is None else z + bias
    return F.linear(x, weight, bias)


def avg_pool(z: Tensor, kernel_size: int) -> Tensor:
    """Means of ``kernel_size`` neighbouring columns: ``[..., N] -> [..., N // kernel_size]``.

    The remaining columns are cut off first, so that not even their NaN plays a part. Raises
    ValueError unless ``1 <= kernel_size <= N``.
    """
    columns = z.shape[-1]
    if not 1 <= kernel_size <= columns:
        raise ValueError(
            f"kernel_size must be between 1 and the number of columns, "
            f"got kernel_size {kernel_size} for {columns} columns"
        )
    if kernel_size == 1:
        return z
    windows = columns // kernel_size
    kept = z.narrow(-1, 0, windows * kernel_size)
    pooled: Tensor = kept.unflatten(-1, (windows, kernel_size)).mean(-1)
    return pooled


def softmax(z: Tensor) -> Tensor:
    """Softmax over the last dimension, ``[..., N] -> [..., N]``; NaN or +inf takes its row.

    Not torch.softmax, which on the CPU adds up a row one vector lane at a time: its rows sum to 1
    within 1.6e-5 at N = 16 384 and within 6e-3 at 2^24. torch.sum is pairwise: 2e-7 at either.
    """
    if z.shape[-1] == 0:
        return z.clone()
    e = (z - z.detach().amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def gelu_softmax(z: Tensor, bias: Tensor | None = None, *, approximate: str = "none") -> Tensor:
    """``softmax(gelu(z + bias), -1)``: ``[..., N] -> [..., N]``."""
    return softmax(gelu(z if bias is None else z + bias, approximate))


def gelu_scale_max(
    z: Tensor, bias: Tensor | None = None, *, scale: float = 1.0, approximate: str = "none"
) -> Tensor:
    """``max(scale * gelu(z + bias), -1)``: ``[..., N] -> [...]``; NaN wins, the first of equals."""
    activated = gelu(z if bias is None else z + bias, approximate)
    return (activated * scale).max(-1).values


def linear_gelu_softmax(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, approximate: str = "none"
) -> Tensor:
    """``softmax(gelu(x @ weight.T + bias), -1)``: ``[..., K] -> [..., N]``."""
    return gelu_softmax(linear(x, weight, bias), approximate=approximate)


def linear_gelu_softmax_training(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, approximate: str = "none"
) -> tuple[Tensor, Tensor]:
    """linear_gelu_softmax and, for its backward, the linear part: both ``[..., N]``."""
    z = linear(x, weight, bias)
    return gelu_softmax(z, approximate=approximate), z


def linear_avgpool_gelu_scale_max(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    kernel_size: int,
    scale: float = 1.0,
    approximate: str = "none",
) -> Tensor:
    """``max(scale * gelu(avg_pool(x @ weight.T + bias, kernel_size)), -1)``: ``[..., K] -> [...]``.

    This is the composition as written, with no folding of weights, so an infinite input gives the
    NaN (``inf - inf`` inside a window) that the definition gives.
    """
    pooled = avg_pool(linear(x, weight, bias), kernel_size)
    return gelu_scale_max(pooled, scale=scale, approximate=approximate)


def fold_rows(weight: Tensor, kernel_size: int) -> Tensor:
    """Means of ``kernel_size`` consecutive rows: ``[N, ...] -> [N // kernel_size, ...]``.

    The sum runs in float64 (where the backend has it), so that large weights do not overflow.
    Remaining rows play no part. Raises ValueError unless ``1 <= kernel_size <= N``.
    """
    rows = weight.shape[0]
    if not 1 <= kernel_size <= rows:
        raise ValueError(
            f"kernel_size must be between 1 and the number of rows, "
            f"got kernel_size {kernel_size} for {rows} rows"
        )
    windows = rows // kernel_size
    kept = weight.narrow(0, 0, windows * kernel_size).unflatten(0, (windows, kernel_size))
    wide = weight.dtype if weight.device.type == "mps" else torch.float64
    folded: Tensor = kept.mean(1, dtype=wide).to(weight.dtype)
    return folded


def fold_linear(
    weight: Tensor, bias: Tensor | None, kernel_size: int
) -> tuple[Tensor, Tensor | None]:
    """The linear layer whose outputs are the pooled outputs of ``(weight, bias)``.

    ``avg_pool(x @ W.T + b, k) = x @ fold_rows(W, k).T + fold_rows(b, k)``, pooling being linear.
    """
    return fold_rows(weight, kernel_size), None if bias is None else fold_rows(bias, kernel_size)
