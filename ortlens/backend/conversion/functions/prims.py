"""Primitive operators, which decompositions leave, with the functions of the ATen operators that they are made of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import arithmetic, basics, bounds, special
from ortlens.backend.conversion.functions.shapes import size_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten, _prims = torch.ops.aten, torch.ops.prims


def collapse(x: Any, start: int, end: int) -> Any:
    """`prims.collapse`: the dimensions from `start` to `end`, both included, as one."""
    sizes = list(x.shape)
    if not all(isinstance(size, int) for size in sizes):
        raise basics.NotConvertibleError("the collapsed sizes are known at run time only")
    return basics.opset().Reshape(x, size_vector([*sizes[:start], math.prod(sizes[start : end + 1]), *sizes[end + 1 :]]), allowzero=1)


def rev(x: Any, dims: Sequence[int]) -> Any:
    """`prims.rev`: the order of elements reversed."""
    return basics.registered(_aten.flip.default)(x, list(dims))


def iota(length: Any, *, start: Any, step: Any, dtype: int, **_: Any) -> Any:
    """`prims.iota`: evenly spaced integers."""
    op = basics.opset()
    first, gap, many = (op.Squeeze(size_vector([number])) for number in (start, step, length))
    return op.Cast(op.Range(first, op.Add(first, op.Mul(gap, many)), gap), to=int(dtype))


def fma(x: Any, y: Any, z: Any) -> Any:
    """`prims.fma`: a product and a sum, rounded twice; the kernel rounds once, which differs in the last place of the product."""
    op = basics.opset()
    return op.Add(op.Mul(x, y), z)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _prims.collapse.default: collapse,
    _prims.fmax.default: bounds.fmax,
    _prims.fmin.default: bounds.fmin,
    _prims.hypot.default: arithmetic.hypot,
    _prims.iota.default: iota,
    _prims.log1p.default: special.log1p,
    _prims.expm1.default: special.expm1,
    _prims.maximum.default: bounds.maximum,
    _prims.minimum.default: bounds.minimum,
    _prims.rev.default: rev,
    _prims.sign.default: bounds.sign,
    _prims.trunc.default: arithmetic.trunc,
}
"""Op overload -> function."""
