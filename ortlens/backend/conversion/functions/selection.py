"""Choices between two tensors, element by element.

ONNX Runtime's Where takes no booleans and no integers of 16 bits. Booleans are chosen by logic, the others in 32 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_INT32, _UINT16, _INT16 = 6, 4, 5  # as onnx.TensorProto numbers them


def where(condition: Any, x: Any, y: Any) -> Any:
    """`aten.where.self`."""
    return _chosen(basics.opset().Cast(condition, to=basics.BOOL), x, y, int(x.dtype))


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """`aten.masked_fill` with a number or a tensor without dimensions."""
    return _chosen(basics.opset().Cast(mask, to=basics.BOOL), basics.number(x, value), x, int(x.dtype))


def _chosen(condition: Any, x: Any, y: Any, dtype: int) -> Any:
    op = basics.opset()
    if dtype == basics.BOOL:
        return op.Or(op.And(condition, x), op.And(op.Not(condition), y))
    if dtype in (_INT16, _UINT16):
        return op.Cast(op.Where(condition, op.Cast(x, to=_INT32), op.Cast(y, to=_INT32)), to=dtype)
    return op.Where(condition, x, y)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.where.self: where,
    _aten.masked_fill.Scalar: masked_fill,
    _aten.masked_fill.Tensor: masked_fill,
}
"""Op overload -> function."""
