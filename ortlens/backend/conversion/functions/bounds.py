"""The larger and the smaller of two, and what limits values.

ONNX Runtime's Max and Min compare a part of the bits of two 64-bit integers: the larger of 0 and 2**31 + 1 is 0. Relu, Sign and Clip are
made of them. Here, 64-bit integers are compared with Greater and chosen with Where. Clip is avoided for floats with one bound only,
because it limits infinity to the largest finite number.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten


@basics.stays_wide
def maximum(x: Any, y: Any) -> Any:
    """`aten.maximum` and `aten.clamp_min`."""
    op, y = basics.opset(), basics.number(x, y)
    if int(x.dtype) == basics.BOOL:
        return op.Or(x, y)
    return op.Where(op.Greater(x, y), x, y) if int(x.dtype) == basics.INT64 else op.Max(x, y)


@basics.stays_wide
def minimum(x: Any, y: Any) -> Any:
    """`aten.minimum` and `aten.clamp_max`."""
    op, y = basics.opset(), basics.number(x, y)
    if int(x.dtype) == basics.BOOL:
        return op.And(x, y)
    return op.Where(op.Less(x, y), x, y) if int(x.dtype) == basics.INT64 else op.Min(x, y)


def fmax(x: Any, y: Any) -> Any:
    """`aten.fmax`: the larger number; NaN only where both are."""
    op = basics.opset()
    if not basics.is_float(x):
        return maximum(x, y)
    return op.Where(op.Or(op.Greater(x, y), op.IsNaN(y)), x, y)


def fmin(x: Any, y: Any) -> Any:
    """`aten.fmin`: the smaller number; NaN only where both are."""
    op = basics.opset()
    if not basics.is_float(x):
        return minimum(x, y)
    return op.Where(op.Or(op.Less(x, y), op.IsNaN(y)), x, y)


@basics.stays_wide
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - the operator's names
    """`aten.clamp`, with numbers or tensors as bounds; where they cross, the upper one holds."""
    if basics.is_float(x) and _is_number(min) and _is_number(max):
        return basics.opset().Clip(x, basics.number(x, min), basics.number(x, max))
    limited = x
    if min is not None:
        limited = basics.typed(maximum(limited, min), int(x.dtype), x)
    return limited if max is None else minimum(limited, max)


def _is_number(bound: Any) -> bool:
    """Tell whether a bound is known and a number: Clip ignores NaN, of which PyTorch makes every element NaN."""
    return bound is not None and not basics.is_value(bound) and not math.isnan(bound)


@basics.stays_wide
def relu(x: Any) -> Any:
    """`aten.relu`."""
    return basics.opset().Relu(x) if basics.is_float(x) else maximum(x, 0)


def hardtanh(x: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    """`aten.hardtanh`."""
    return clamp(x, min_val, max_val)


def relu6(x: Any) -> Any:
    """`aten.relu6`."""
    return clamp(x, 0, 6)


def sign(x: Any) -> Any:
    """`aten.sign`; PyTorch returns 0 for NaN."""
    op = basics.opset()
    if int(x.dtype) == basics.BOOL:
        return op.Identity(x)
    if int(x.dtype) == basics.INT64:
        zero = basics.number(x, 0)
        return op.Sub(op.CastLike(op.Greater(x, zero), x), op.CastLike(op.Less(x, zero), x))
    found = op.Sign(x)
    return op.Where(op.IsNaN(x), basics.number(x, 0.0), found) if basics.is_float(x) else found


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.maximum.default: maximum,
    _aten.minimum.default: minimum,
    _aten.fmax.default: fmax,
    _aten.fmin.default: fmin,
    _aten.clamp.default: clamp,
    _aten.clamp.Tensor: clamp,
    _aten.clamp_min.default: maximum,
    _aten.clamp_min.Tensor: maximum,
    _aten.clamp_max.default: minimum,
    _aten.clamp_max.Tensor: minimum,
    _aten.relu.default: relu,
    _aten.relu6.default: relu6,
    _aten.hardtanh.default: hardtanh,
    _aten.sign.default: sign,
}
"""Op overload -> function."""
