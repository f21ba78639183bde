"""Losses, with the checks of PyTorch's kernels, which torch's decompositions leave out: classes exist, and probabilities are some."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import not_from_the_end, op
from ortlens.backend.operators.facts import STAYS, Call, decomposes, decomposes_each, torch_op

_aten = torch.ops.aten
_NLL = (_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default)

_LEAST = -100.0  # PyTorch's least logarithm


@torch_op(*_NLL)
def nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any) -> tuple[Any, Any]:
    """`aten.nll_loss_forward` and `aten.nll_loss2d_forward`, one loss per row or pixel; decompositions make the others of it."""
    if reduction or len(x.shape) < 2:  # noqa: PLR2004 - rows of classes
        raise basics.NotConvertibleError("gives one loss per row of classes only")
    place = op.Constant(value_ints=[1])
    wide = target if int(target.dtype) == basics.INT64 else basics.typed(op.Cast(target, to=basics.INT64), basics.INT64, target)
    ignored = op.Equal(wide, basics.number(wide, ignore_index))
    classes = not_from_the_end(basics.typed(op.Where(ignored, basics.number(wide, 0), wide), basics.INT64, wide))
    losses = op.Neg(op.Squeeze(op.GatherElements(x, op.Unsqueeze(classes, place), axis=1), place))
    if weight is not None:
        losses = op.Mul(losses, op.Gather(weight, classes))
    return op.Where(ignored, basics.number(x, 0.0), losses), op.Constant(value_int=0)


@torch_op(_aten.binary_cross_entropy.default)
@basics.in_float32
def binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    """`aten.binary_cross_entropy`, one loss per element; a decomposition makes the others of it. The run fails for no probabilities.

    Their logarithms are NaN, and so is the square root of `target * (1 - target)` beyond 0 and 1.
    """
    if weight is not None or reduction:
        raise basics.NotConvertibleError("gives one loss per element, without weights, only")
    least = basics.number(x, _LEAST)
    negative = basics.typed(op.Neg(x), int(x.dtype), x)
    of_one, of_zero = (basics.typed(made, int(x.dtype), x) for made in (op.Log(x), basics.own(_aten.log1p.default)(negative)))
    rest = op.Sub(target, basics.number(x, 1.0))
    losses = op.Sub(op.Mul(rest, op.Max(of_zero, least)), op.Mul(target, op.Max(of_one, least)))
    if 0 in list(x.shape):
        return losses
    checked = op.Sub(op.Add(of_one, of_zero), op.Sqrt(op.Neg(op.Mul(target, rest))))  # no infinities of two signs, which add up to NaN
    return basics.unless(op.IsNaN(op.ReduceSum(checked, keepdims=0)), basics.typed(losses, int(x.dtype), x))


@torch_op(_aten.mse_loss.default)
def mse_loss(x: Any, target: Any, reduction: int = 1) -> Any:
    """`aten.mse_loss`, one loss per element; a decomposition makes the others of it. The kernel rounds the difference to 16 bits."""
    _expect_one_per_element(x, reduction)
    difference = basics.rounded_step(op.Sub(x, target), x)
    return op.Mul(difference, difference)


@torch_op(_aten.smooth_l1_loss.default)
def smooth_l1_loss(x: Any, target: Any, reduction: int = 1, beta: Any = 1.0) -> Any:
    """`aten.smooth_l1_loss`, likewise; the kernel rounds each step and the number to 16 bits."""
    _expect_one_per_element(x, reduction)
    half, beta = basics.number(x, 0.5), basics.number(x, beta)
    distance = basics.rounded_step(op.Abs(op.Sub(x, target)), x)
    near = op.Div(basics.rounded_step(op.Mul(op.Mul(half, distance), distance), x), beta)
    return op.Where(op.Less(distance, beta), near, op.Sub(distance, basics.rounded_step(op.Mul(half, beta), x)))


@torch_op(_aten.huber_loss.default)
@basics.in_float32
def huber_loss(x: Any, target: Any, reduction: int = 1, delta: Any = 1.0) -> Any:
    """`aten.huber_loss`, likewise; the kernel rounds once."""
    _expect_one_per_element(x, reduction)
    half, delta = basics.number(x, 0.5), basics.number(x, delta)
    distance = op.Abs(op.Sub(x, target))
    distance.dtype = x.dtype
    near, far = op.Mul(op.Mul(half, distance), distance), op.Mul(delta, op.Sub(distance, op.Mul(half, delta)))
    return op.Where(op.LessOrEqual(distance, delta), near, far)


def _expect_one_per_element(x: Any, reduction: int) -> None:
    if reduction or not basics.is_float(x):
        raise basics.NotConvertibleError("gives one loss per element, of floats, only")


@decomposes(_aten.binary_cross_entropy.default)
def _binary_cross_entropy(tensor: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1) -> Any:
    """Compute the losses by the operator, which checks that they are probabilities; then apply the weights and the reduction."""
    if weight is None and not reduction:
        return STAYS
    losses: torch.Tensor = _aten.binary_cross_entropy.default(tensor, target, None, 0)
    return _reduced(losses if weight is None else losses * weight, reduction)


# Torch's decompositions of losses of differences round 16-bit floats otherwise than their kernels.
@decomposes_each(_aten.huber_loss.default, _aten.mse_loss.default, _aten.smooth_l1_loss.default)
def _loss(target: Any, tensor: torch.Tensor, other: torch.Tensor, reduction: int = 1, *number: float) -> Any:
    """Compute one loss per element by the operator itself, then the reduction; what PyTorch refuses stays."""
    if not tensor.is_floating_point() or any(each < 0 for each in number) or (not reduction and tensor.dtype is other.dtype):
        return STAYS
    dtype = torch.result_type(tensor, other)
    return _reduced(target(tensor.to(dtype), other.to(dtype), 0, *number), reduction)


@decomposes(_aten.smooth_l1_loss_backward.default)
def _smooth_l1_loss_backward(grad: torch.Tensor, tensor: torch.Tensor, target: torch.Tensor, reduction: int, beta: float) -> torch.Tensor:
    """Decompose as torch does, but keep NaN, of which its decomposition makes 0 by the sign."""
    dtype = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    apart, grads = tensor.to(dtype) - target.to(dtype), grad.to(dtype)
    grads = grads / tensor.numel() if reduction == 1 else grads
    return torch.where(apart.abs() >= beta, grads * apart.sign(), grads * apart / beta).to(tensor.dtype)


def _reduced(losses: torch.Tensor, reduction: int) -> torch.Tensor:
    return losses.mean() if reduction == 1 else losses.sum() if reduction else losses


@decomposes_each(*_NLL)
def _nll_loss(
    target: Any, tensor: torch.Tensor, classes: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: Any
) -> Any:
    """Compute one loss per row of classes by the operator itself, which checks that the classes exist; then reduce as torch does."""
    if tensor.dim() == 1:
        return target(tensor.unsqueeze(0), classes.reshape(1), weight, reduction or 2, ignore_index)
    if not reduction:
        return STAYS
    losses = target(tensor, classes, weight, 0, ignore_index)[0].sum()
    kept = classes != ignore_index
    weights = kept if weight is None else torch.where(kept, weight[torch.where(kept, classes, 0).long()], 0)
    total = weights.sum().to(tensor.dtype)
    return (losses / total if reduction == 1 else losses), total


@decomposes(_aten.nll_loss_backward.default, _aten.nll_loss2d_backward.default)
@facts.named(_aten.nll_loss_backward.default)
def _nll_loss_backward(given: Any) -> torch.Tensor:
    """Scatter the gradients of the classes; torch's decomposition multiplies all by it, and an infinite one makes NaN of the others."""
    tensor, classes = given.self, given.target
    dim = min(tensor.dim() - 1, 1)
    places = (classes.reshape(()) if tensor.dim() == 1 else classes).unsqueeze(dim)
    kept = places != given.ignore_index
    known = torch.where(kept, places, 0).long()
    grads = given.grad_output / given.total_weight if given.reduction == 1 else given.grad_output
    grads = -(grads.unsqueeze(dim) if grads.dim() else grads)
    if given.weight is not None:
        grads = grads * given.weight[known]
    return torch.scatter(torch.zeros_like(tensor), dim, known, torch.where(kept, grads, 0).expand(known.shape))


facts.as_torch(_aten.soft_margin_loss.default, unless=lambda _, tensor, *__: not tensor.is_floating_point())


def _is_large_loss(_: Any, tensor: torch.Tensor, target: torch.Tensor, *__: Any, **___: Any) -> bool:
    same = tensor.dim() == target.dim() and all(statically_known_true(a == b) for a, b in zip(tensor.shape, target.shape, strict=True))
    return same and tensor.dtype is target.dtype and facts.is_large_on_cpu(_, tensor)


def _converts_classes(call: Call) -> bool:
    classes = call.tensor(1)
    return classes is not None and classes.dtype not in (torch.int64, torch.uint8)


def _converts_weights(call: Call) -> bool:
    value, weight = call.tensor(0), call.tensor(2)
    return value is not None and weight is not None and weight.dtype is not value.dtype


facts.leaves(_aten.huber_loss.default, _aten.smooth_l1_loss.default, when=_is_large_loss)
facts.wrong(*_NLL, _aten.mse_loss.default, reason=f"takes whole numbers{facts.REFUSED}", when=facts.is_whole)
facts.wrong(*_NLL, reason=f"converts classes{facts.REFUSED}", when=_converts_classes)
facts.wrong(*_NLL, reason=f"converts weights{facts.REFUSED}", when=_converts_weights)
facts.lacks_outputs(_aten.nll_loss_forward.default, count=2)
