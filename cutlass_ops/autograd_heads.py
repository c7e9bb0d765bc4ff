"""The autograd functions of the two heads; what autograd.py says of its own holds of them, but that
one saves more than inputs and outputs.

A straight one is for operands of which ``calls.straight`` holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import Function

from . import calls
from ._torch_private import below_autograd, release_saved, transforms_active
from .autograd import (
    Gradients,
    fold_rows,
    linear,
    linear_gradients_of,
    row_gradient,
    save_linear,
)
from .dispatch import run_softmax_head
from .gradients import (
    entry,
    linear_gradients,
    max_gradient,
    no_autocast,
    spread_rows,
    straight_entry,
    wants_operations,
)
from .winner_gradients import run_gradients
from .winners import run_training


class LinearGeluSoftmax(Function):
    """Op A: (y, z) with z = x @ weight.T + bias and y = softmax(gelu(z), -1), both ``[M, N]``.

    z is an output, and not merely saved, so that a graph of backward knows what it depends on.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, precision: str
    ) -> tuple[Tensor, Tensor]:
        return calls.linear_gelu_softmax_training(x, weight, bias, approximate, precision)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, ctx.approximate, ctx.precision = inputs
        save_linear(ctx, x, weight, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        """dz of GELU and softmax, plus what z itself received; then as a linear layer."""
        gy, gz = grads
        x, weight, y, z = ctx.saved_tensors
        with no_autocast(y):
            if gy is None and gz is None:
                return None, None, None, None, None
            needed = ctx.needs_input_grad[:3]
            dz, dbias = _gradient_of_linear(gy, gz, y, z, ctx.approximate, needed[2])
        del y, z
        # z has the size of dz, and the products need memory of their own. Where they run out of it,
        # as in a compiled backward, the graph is gone: only forward can be tried again.
        release_saved(ctx)
        with no_autocast(dz):
            return *_gradients_of_operands(dz, dbias, x, weight, needed, ctx.precision), None, None


def _gradient_of_linear(
    gy: Tensor | None,
    gz: Tensor | None,
    y: Tensor,
    z: Tensor,
    approximate: str,
    need_bias: bool,
) -> tuple[Tensor, Tensor | None]:
    """From the gradient of y, that of z, or both; and the sums of its columns, where they are
    needed and come with it."""
    if gy is None:
        assert gz is not None
        return gz, None
    dz, dbias = row_gradient(gy, z, None, y, approximate, need_bias and gz is None)
    return dz if gz is None else dz + gz, dbias


def _gradients_of_operands(
    dz: Tensor,
    dbias: Tensor | None,
    x: Tensor | None,
    weight: Tensor | None,
    needed: tuple[bool, ...],
    precision: str,
) -> Gradients:
    needed = (*needed[:2], needed[2] and dbias is None)
    dx, dweight, rest = linear_gradients_of(dz, x, weight, needed, precision)
    return dx, dweight, rest if dbias is None else dbias


class StraightLinearGeluSoftmax(LinearGeluSoftmax):
    """The same where ``calls.straight`` holds, past the checks that it has made."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, precision: str
    ) -> tuple[Tensor, Tensor]:
        op, fp16x3 = "linear_gelu_softmax_training", precision == "fp16x3"
        with below_autograd():
            y, z = run_softmax_head(op, x, weight, bias, approximate, fp16x3, keep_linear=True)
        assert z is not None
        return y, z


class RecomputedLinearGeluSoftmax(Function):
    """Op A that keeps its inputs and nothing of size ``[M, N]``: backward computes z and y anew."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, precision: str
    ) -> Tensor:
        return calls.linear_gelu_softmax(x, weight, bias, approximate, precision)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, *ctx.options = inputs
        ctx.save_for_backward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (g,) = grads
        x, weight, bias = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        with no_autocast(g):
            approximate, precision = ctx.options
            y, z = linear_gelu_softmax(x, weight, bias, approximate, precision)
            dz, dbias = _gradient_of_linear(g, None, y, z, approximate, needed[2])
            del y, z
            gradients = _gradients_of_operands(dz, dbias, x, weight, needed, precision)
        return *gradients, None, None


class LinearAvgPoolGeluScaleMax(Function):
    """Op B on x ``[M, K]``, weight ``[N, K]``, bias ``[N]`` or None: y ``[M]``, and with it what
    winner_gradients.py needs: the winning window and the slope there of each row, and the folded
    weight, a k-th of the weight. Nothing of size ``[M, N]`` is kept.

    A graph of backward is made of the dense products, from the inputs, which are kept for it
    whatever needs a gradient. In a row with an infinite x the maximum may be in another window than
    the unfolded weights have it; the gradient is NaN in either, and the dense products spread it
    over the columns of the weight's.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kernel_size: int,
        scale: float,
        approximate: str,
        precision: str,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return calls.linear_avgpool_gelu_scale_max_training(
            x, weight, bias, kernel_size, scale, approximate, precision
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, bias, *ctx.options = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, weight, bias, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        g = grads[0]
        if g is None:
            return None, None, None, None, None, None, None
        gradients = _pooled_gradients(g, ctx.saved_tensors, ctx.needs_input_grad[:3], ctx.options)
        return *gradients, None, None, None, None


class StraightLinearAvgPoolGeluScaleMax(Function):
    """The same where ``calls.straight`` holds: y alone, and the options as one tuple. No transform
    is there to ask for what backward needs, so it is saved without being an output; three outputs
    less are 5 us less a step, on a CPU with stand-ins for the kernels, where the step of a function
    that computes nothing takes 40. What was checked is not checked again, which is another 16.

    It saves what the other one saves: a checkpoint may compute it again the other way. Of what is
    no output, a graph of backward is made of the winners alone, which are integers.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        options: tuple[int, float, str, str],
    ) -> Tensor:
        kernel_size, scale, approximate, precision = ctx.options = options
        fp16x3 = precision == "fp16x3"
        with below_autograd():
            y, *kept = run_training(x, weight, bias, kernel_size, scale, approximate, fp16x3)
        ctx.save_for_backward(x, weight, bias, *kept)
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        (g,) = grads
        if g is None:
            return None, None, None, None
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad[:3]
        if not calls.straight_back(g, saved):
            return *_pooled_gradients(g, saved, needed, ctx.options), None
        with below_autograd():
            found = run_gradients(*_winner_operands(g, saved, ctx.options[0]), needed)
        return *found, None


def _pooled_gradients(
    g: Tensor,
    saved: tuple[Any, ...],
    needed: tuple[bool, ...],
    options: tuple[Any, ...],
) -> Gradients:
    """By the registered op, or, where a graph of backward is wanted and under a transform, by
    operations that differentiate."""
    with no_autocast(g):
        if wants_operations(g) or transforms_active():
            x, weight, bias, winners, *_ = saved
            return _dense_pooled_gradients(g, x, weight, bias, winners, needed, *options)
        sparse = calls.winner_gradients(*_winner_operands(g, saved, options[0]), *needed)
    return tuple(one if need else None for one, need in zip(sparse, needed, strict=True))


def _winner_operands(
    g: Tensor, saved: tuple[Any, ...], kernel_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int, int]:
    """The arguments of winner_gradients but for what is needed, from what forward saved."""
    x, weight, _, winners, slopes, folded = saved
    windows = weight if kernel_size == 1 else folded
    return g, winners, slopes, x, windows, weight.shape[0], kernel_size


def _dense_pooled_gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    winners: Tensor,
    needed: tuple[bool, ...],
    kernel_size: int,
    scale: float,
    approximate: str,
    precision: str,
) -> Gradients:
    """dx = dh Wf, dW = spread(dh.T x), db = spread(column sums of dh), with folded weights Wf, bf
    and dh the gradient of the maximum, where forward found it, at h = x Wf.T + bf."""
    folded, folded_bias = weight, bias
    if kernel_size != 1:
        folded = fold_rows(weight, kernel_size)
        folded_bias = None if bias is None else fold_rows(bias, kernel_size)
    h = linear(x, folded, folded_bias, precision)
    dh = max_gradient(g, h, scale, approximate, winners)
    dx, dweight, dbias = linear_gradients(dh, x, folded, needed)
    rows = weight.shape[0]
    return (
        dx,
        None if dweight is None else spread_rows(dweight, kernel_size, rows),
        None if dbias is None else spread_rows(dbias, kernel_size, rows),
    )


linear_gelu_softmax: Callable[..., tuple[Tensor, Tensor]] = entry(LinearGeluSoftmax)
recomputed_linear_gelu_softmax: Callable[..., Tensor] = entry(RecomputedLinearGeluSoftmax)
linear_avgpool_gelu_scale_max: Callable[..., tuple[Tensor, ...]] = entry(LinearAvgPoolGeluScaleMax)
straight_linear_gelu_softmax: Callable[..., tuple[Tensor, Tensor]]
straight_linear_gelu_softmax = straight_entry(StraightLinearGeluSoftmax)
straight_linear_avgpool_gelu_scale_max: Callable[..., Tensor]
straight_linear_avgpool_gelu_scale_max = straight_entry(StraightLinearAvgPoolGeluScaleMax)
