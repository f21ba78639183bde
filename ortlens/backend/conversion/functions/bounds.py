"""The larger and the smaller of two, what limits values, and choices between two tensors.

ONNX Runtime's Max and Min compare a part of the bits of two 64-bit integers: the larger of 0 and 2**31 + 1 is 0. Relu, Sign and Clip are
made of them. Here, 64-bit integers are compared with Greater and chosen with Where. Clip is avoided for floats with one bound only,
because it limits infinity to the largest finite number. Where takes no booleans and no integers of 16 bits: booleans are chosen by logic,
the others in 32 bits.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.basics import op, torch_op

_aten = torch.ops.aten


@torch_op(_aten.maximum.default, torch.ops.prims.maximum.default, _aten.clamp_min.default, _aten.clamp_min.Tensor)
@basics.stays_wide
def maximum(x: Any, y: Any) -> Any:
    """`aten.maximum` and `aten.clamp_min`."""
    y = basics.number(x, y)
    if int(x.dtype) == basics.BOOL:
        return op.Or(x, y)
    return op.Where(op.Greater(x, y), x, y) if int(x.dtype) == basics.INT64 else op.Max(x, y)


@torch_op(_aten.minimum.default, torch.ops.prims.minimum.default, _aten.clamp_max.default, _aten.clamp_max.Tensor)
@basics.stays_wide
def minimum(x: Any, y: Any) -> Any:
    """`aten.minimum` and `aten.clamp_max`."""
    y = basics.number(x, y)
    if int(x.dtype) == basics.BOOL:
        return op.And(x, y)
    return op.Where(op.Less(x, y), x, y) if int(x.dtype) == basics.INT64 else op.Min(x, y)


@torch_op(_aten.fmax.default, torch.ops.prims.fmax.default)
def fmax(x: Any, y: Any) -> Any:
    """`aten.fmax`: the larger number; NaN only where both are."""
    if not basics.is_float(x):
        return maximum(x, y)
    return op.Where(op.Or(op.Greater(x, y), op.IsNaN(y)), x, y)


@torch_op(_aten.fmin.default, torch.ops.prims.fmin.default)
def fmin(x: Any, y: Any) -> Any:
    """`aten.fmin`: the smaller number; NaN only where both are."""
    if not basics.is_float(x):
        return minimum(x, y)
    return op.Where(op.Or(op.Less(x, y), op.IsNaN(y)), x, y)


@torch_op(_aten.clamp.default, _aten.clamp.Tensor)
@basics.stays_wide
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """`aten.clamp`, with numbers or tensors as bounds; where they cross, the upper one holds."""
    if basics.is_float(x) and _is_number(min) and _is_number(max):
        return op.Clip(x, basics.number(x, min), basics.number(x, max))
    limited = x
    if min is not None:
        limited = basics.typed(maximum(limited, min), int(x.dtype), x)
    return limited if max is None else minimum(limited, max)


def _is_number(bound: Any) -> bool:
    """Tell whether a bound is known and a number: Clip ignores NaN, of which PyTorch makes every element NaN."""
    return bound is not None and not basics.is_value(bound) and not math.isnan(bound)


@torch_op(_aten.relu.default)
@basics.stays_wide
def relu(x: Any) -> Any:
    return op.Relu(x) if basics.is_float(x) else maximum(x, 0)


@torch_op(_aten.hardtanh.default)
def hardtanh(x: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    return clamp(x, min_val, max_val)


@torch_op(_aten.relu6.default)
def relu6(x: Any) -> Any:
    return clamp(x, 0, 6)


@torch_op(_aten.sign.default, torch.ops.prims.sign.default)
def sign(x: Any) -> Any:
    """`aten.sign`; PyTorch returns 0 for NaN."""
    if int(x.dtype) == basics.BOOL:
        return op.Identity(x)
    if int(x.dtype) == basics.INT64:
        zero = basics.number(x, 0)
        return op.Sub(op.CastLike(op.Greater(x, zero), x), op.CastLike(op.Less(x, zero), x))
    found = op.Sign(x)
    return op.Where(op.IsNaN(x), basics.number(x, 0.0), found) if basics.is_float(x) else found


_UINT16, _INT16 = 4, 5  # as onnx.TensorProto numbers them


@torch_op(_aten.where.self)
def where(condition: Any, x: Any, y: Any) -> Any:
    return _chosen(op.Cast(condition, to=basics.BOOL), x, y, int(x.dtype))


@torch_op(_aten.masked_fill.Scalar, _aten.masked_fill.Tensor)
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """`aten.masked_fill` with a number or a tensor without dimensions."""
    return _chosen(op.Cast(mask, to=basics.BOOL), basics.number(x, value), x, int(x.dtype))


def _chosen(condition: Any, x: Any, y: Any, dtype: int) -> Any:
    if dtype == basics.BOOL:
        return op.Or(op.And(condition, x), op.And(op.Not(condition), y))
    if dtype in (_INT16, _UINT16):
        return op.Cast(op.Where(condition, op.Cast(x, to=basics.INT32), op.Cast(y, to=basics.INT32)), to=dtype)
    return op.Where(condition, x, y)
