"""Sorting and searching; NaN is the largest value, as in PyTorch.

ONNX Runtime compares NaN as processors do, so that no order comes out. Floats of 16 and 32 bits are sorted by a key of a wider type, in
which infinity and NaN are large numbers. Of equal elements, TopK takes the first one first, also from the largest down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_KEYS = {basics.FLOAT: (basics.DOUBLE, 1e39, 1e40), basics.FLOAT16: (basics.FLOAT, 1e5, 1e6), basics.BFLOAT16: (basics.DOUBLE, 1e39, 1e40)}
"""Element type -> the key's type, and what stands for infinity and NaN in it."""


def _key(x: Any) -> Any:
    """Make a value that ONNX Runtime orders as PyTorch orders `x`; float64 without NaN is its own key."""
    op, dtype = basics.opset(), int(x.dtype)
    if dtype == basics.BOOL:
        return basics.typed(op.Cast(x, to=basics.INT64), basics.INT64, x)
    if dtype not in _KEYS:
        return x
    wide, infinity, nan = _KEYS[dtype]
    key = basics.typed(op.Cast(x, to=wide), wide, x)
    bounded = op.Clip(key, basics.number(key, -infinity), basics.number(key, infinity))
    return basics.typed(op.Where(op.IsNaN(x), basics.number(key, nan), bounded), wide, x)


def topk(x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002, FBT001, FBT002 - the schema
    """`aten.topk`."""
    op = basics.opset()
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    count = op.Reshape(op.Cast(k, to=basics.INT64), op.Constant(value_ints=[1])) if basics.is_value(k) else op.Constant(value_ints=[k])
    key = _key(x)
    values, indices = op.TopK(key, count, axis=dim, largest=int(largest), sorted=int(sorted))
    return values if key is x else op.GatherElements(x, indices, axis=dim), indices


def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.sort`; keeps the order of equal elements."""
    if not len(x.shape):
        return topk(x, 1)
    op = basics.opset()
    size = op.Gather(op.Shape(x), op.Constant(value_int=dim % len(x.shape)))
    return topk(x, x.shape[dim] if isinstance(x.shape[dim], int) else size, dim, largest=descending)


def stable_sort(x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """`aten.sort` that keeps the order of equal elements."""
    del stable
    return sort(x, dim, descending)


def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.argmax`; the first NaN is the largest."""
    return _arg_extreme("ArgMax", x, dim, keepdim=keepdim)


def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.argmin`; the first NaN is also the smallest."""
    return _arg_extreme("ArgMin", x, dim, keepdim=keepdim)


def _arg_extreme(name: str, x: Any, dim: int | None, *, keepdim: bool) -> Any:
    op, rank = basics.opset(), len(x.shape)
    if not rank:
        return op.Constant(value_int=0)
    if dim is None:
        flat = op.Reshape(x, op.Constant(value_ints=[-1]))
        flat.dtype, flat.shape = x.dtype, None
        found = _first_extreme(name, flat, 0, keepdim=False)
        return op.Reshape(found, op.Constant(value_ints=[1] * rank)) if keepdim else found
    return _first_extreme(name, x, dim, keepdim=keepdim)


def _first_extreme(name: str, x: Any, axis: int, *, keepdim: bool) -> Any:
    op = basics.opset()
    if x.shape is not None and 0 in list(x.shape):  # for which ONNX Runtime returns another shape
        return op.Cast(basics.filled(x, 0, [axis], keepdim=keepdim), to=basics.INT64)
    if int(x.dtype) == basics.BOOL:
        return getattr(op, name)(op.Cast(x, to=basics.UINT8), axis=axis, keepdims=int(keepdim))
    found = getattr(op, name)(x, axis=axis, keepdims=int(keepdim))
    if not basics.is_float(x):
        return found
    marks = op.Cast(op.IsNaN(x), to=basics.FLOAT)
    some = op.Cast(op.ReduceMax(marks, op.Constant(value_ints=[axis]), keepdims=int(keepdim)), to=basics.BOOL)
    return op.Where(some, op.ArgMax(marks, axis=axis, keepdims=int(keepdim)), found)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.sort.default: sort,
    _aten.sort.stable: stable_sort,
    _aten.topk.default: topk,
    _aten.argmax.default: argmax,
    _aten.argmin.default: argmin,
}
"""Op overload -> function."""
