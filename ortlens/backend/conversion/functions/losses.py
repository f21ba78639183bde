"""Losses with the checks of PyTorch's kernels, which torch's decompositions leave out: classes exist, and probabilities are some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.indexing import not_from_the_end
from ortlens.backend.conversion.functions.special import log1p

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_LEAST = -100.0  # PyTorch's least logarithm


def nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any) -> tuple[Any, Any]:
    """`aten.nll_loss_forward` and `aten.nll_loss2d_forward`, one loss per row or pixel; decompositions make the others of it."""
    if reduction or len(x.shape) < 2:  # noqa: PLR2004 - rows of classes
        raise basics.NotConvertibleError("gives one loss per row of classes only")
    op = basics.opset()
    place = op.Constant(value_ints=[1])
    wide = target if int(target.dtype) == basics.INT64 else basics.typed(op.Cast(target, to=basics.INT64), basics.INT64, target)
    ignored = op.Equal(wide, basics.number(wide, ignore_index))
    classes = not_from_the_end(basics.typed(op.Where(ignored, basics.number(wide, 0), wide), basics.INT64, wide))
    losses = op.Neg(op.Squeeze(op.GatherElements(x, op.Unsqueeze(classes, place), axis=1), place))
    if weight is not None:
        losses = op.Mul(losses, op.Gather(weight, classes))
    return op.Where(ignored, basics.number(x, 0.0), losses), op.Constant(value_int=0)


@basics.in_float32
def binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    """`aten.binary_cross_entropy`, one loss per element; a decomposition makes the others of it. Logarithms of no probability are NaN."""
    if weight is not None or reduction:
        raise basics.NotConvertibleError("gives one loss per element, without weights, only")
    op, least = basics.opset(), basics.number(x, _LEAST)
    negative = basics.typed(op.Neg(x), int(x.dtype), x)
    of_one, of_zero = (basics.typed(made, int(x.dtype), x) for made in (op.Log(x), log1p(negative)))
    losses = op.Sub(op.Mul(op.Sub(target, basics.number(x, 1.0)), op.Max(of_zero, least)), op.Mul(target, op.Max(of_one, least)))
    if 0 in list(x.shape):
        return losses
    return basics.unless(op.IsNaN(op.ReduceSum(op.Add(of_one, of_zero), keepdims=0)), basics.typed(losses, int(x.dtype), x))


def mse_loss(x: Any, target: Any, reduction: int = 1) -> Any:
    """`aten.mse_loss`, one loss per element; a decomposition makes the others of it. The kernel rounds the difference to 16 bits."""
    _expect_one_per_element(x, reduction)
    difference = basics.rounded_step(basics.opset().Sub(x, target), x)
    return basics.opset().Mul(difference, difference)


def smooth_l1_loss(x: Any, target: Any, reduction: int = 1, beta: Any = 1.0) -> Any:
    """`aten.smooth_l1_loss`, likewise; the kernel rounds each step and the number to 16 bits."""
    _expect_one_per_element(x, reduction)
    op, half, beta = basics.opset(), basics.number(x, 0.5), basics.number(x, beta)
    distance = basics.rounded_step(op.Abs(op.Sub(x, target)), x)
    near = op.Div(basics.rounded_step(op.Mul(op.Mul(half, distance), distance), x), beta)
    return op.Where(op.Less(distance, beta), near, op.Sub(distance, basics.rounded_step(op.Mul(half, beta), x)))


@basics.in_float32
def huber_loss(x: Any, target: Any, reduction: int = 1, delta: Any = 1.0) -> Any:
    """`aten.huber_loss`, likewise; the kernel rounds once."""
    _expect_one_per_element(x, reduction)
    op, half, delta = basics.opset(), basics.number(x, 0.5), basics.number(x, delta)
    distance = op.Abs(op.Sub(x, target))
    distance.dtype = x.dtype
    near, far = op.Mul(op.Mul(half, distance), distance), op.Mul(delta, op.Sub(distance, op.Mul(half, delta)))
    return op.Where(op.LessOrEqual(distance, delta), near, far)


def _expect_one_per_element(x: Any, reduction: int) -> None:
    if reduction or not basics.is_float(x):
        raise basics.NotConvertibleError("gives one loss per element, of floats, only")


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.binary_cross_entropy.default: binary_cross_entropy,
    _aten.huber_loss.default: huber_loss,
    _aten.mse_loss.default: mse_loss,
    _aten.nll_loss2d_forward.default: nll_loss,
    _aten.nll_loss_forward.default: nll_loss,
    _aten.smooth_l1_loss.default: smooth_l1_loss,
}
"""Op overload -> function."""
