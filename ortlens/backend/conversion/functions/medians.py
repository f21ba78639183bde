"""Medians and other order statistics: the largest of the k smallest elements, which TopK finds without sorting them.

Of equal elements, PyTorch returns the index of any. So a graph that reads an index keeps these operators in PyTorch, see
`partitioning/wrong_values.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_SORTED = (basics.FLOAT, basics.DOUBLE, basics.INT64, 6)  # 6 is INT32 in onnx.TensorProto: the types of ONNX Runtime's TopK


def median(x: Any) -> Any:
    """`aten.median` of all elements; NaN if one is."""
    return median_of(_flat(x), 0)[0]


def nanmedian(x: Any) -> Any:
    """`aten.nanmedian` of all elements."""
    return nanmedian_of(_flat(x), 0)[0]


def median_of(x: Any, dim: int, keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.median.dim`: of an even number of elements, the lower one; NaN where an element is."""
    op = basics.opset()
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    size = _size(x, dim)
    middle = op.Add(op.Div(op.Sub(size, _vector(1)), _vector(2)), _vector(1))
    found, place = _smallest(x, middle, dim)
    if basics.is_float(x):
        found = op.Where(op.Greater(_nans(x, dim), _vector(0)), basics.number(x, float("nan")), found)
    return _without(found, dim, keepdim=keepdim), _without(place, dim, keepdim=keepdim)


def nanmedian_of(x: Any, dim: int, keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.nanmedian.dim`: the median of what is not NaN, and NaN where nothing else is."""
    if not basics.is_float(x) or not len(x.shape):
        return median_of(x, dim, keepdim)
    op, size, nans = basics.opset(), _size(x, dim), _nans(x, dim)
    ordered, places = op.TopK(_key(x), size, axis=dim, largest=0)
    last = op.Max(op.Div(op.Sub(op.Sub(size, nans), _vector(1)), _vector(2)), _vector(0))
    found, place = op.GatherElements(ordered, last, axis=dim), op.GatherElements(places, last, axis=dim)
    found = op.Where(op.Equal(nans, size), basics.number(x, float("nan")), op.CastLike(found, x))
    return _without(found, dim, keepdim=keepdim), _without(place, dim, keepdim=keepdim)


def kthvalue(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.kthvalue`; NaN is larger than all numbers."""
    op = basics.opset()
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    count = op.Reshape(op.Cast(k, to=basics.INT64), _vector(1)) if basics.is_value(k) else _vector(k)
    found, place = _smallest(x, count, dim)
    if basics.is_float(x):
        numbers = op.Sub(_size(x, dim), _nans(x, dim))
        found = op.Where(op.Greater(count, numbers), basics.number(x, float("nan")), found)
    return _without(found, dim, keepdim=keepdim), _without(place, dim, keepdim=keepdim)


def _smallest(x: Any, count: Any, dim: int) -> tuple[Any, Any]:
    """Find the largest of the `count` smallest elements, and its index."""
    op = basics.opset()
    lower, places = op.TopK(_key(x), count, axis=dim, largest=0, sorted=0)
    found, place = op.TopK(lower, _vector(1), axis=dim, largest=1)
    return op.CastLike(found, x), op.GatherElements(places, place, axis=dim)


def _key(x: Any) -> Any:
    """Convert to a type that TopK takes, in the same order, with infinity for NaN, whose place is computed apart."""
    op, dtype = basics.opset(), int(x.dtype)
    wide = basics.FLOAT if basics.is_half(x) else dtype if dtype in _SORTED else basics.INT64
    key = basics.typed(op.Cast(x, to=wide), wide, x) if wide != dtype else x
    return op.Where(op.IsNaN(key), basics.number(key, float("inf")), key) if basics.is_float(x) else key


def _nans(x: Any, dim: int) -> Any:
    """Count the elements along a dimension that are NaN, with that dimension kept."""
    op = basics.opset()
    return op.ReduceSum(op.Cast(op.IsNaN(x), to=basics.INT64), _vector(dim), keepdims=1)


def _size(x: Any, dim: int) -> Any:
    """Return the size of a dimension; refuse tensors without elements, which have no median."""
    size = x.shape[dim]
    if 0 in list(x.shape):
        raise basics.NotConvertibleError("ONNX Runtime does not sort tensors without elements")
    if not isinstance(size, int) and not basics.is_float(x):
        raise basics.NotConvertibleError("of integers whose number is known at run time only, ONNX Runtime infers a result of another rank")
    return _vector(size) if isinstance(size, int) else basics.opset().Gather(basics.opset().Shape(x), _vector(dim % len(x.shape)))


def _flat(x: Any) -> Any:
    import onnx_ir as ir

    if not len(x.shape):
        return x
    flat = basics.opset().Reshape(x, _vector(-1))
    sizes = list(x.shape)
    flat.dtype = x.dtype
    whole = 0 if 0 in sizes else math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None
    flat.shape = ir.Shape([whole])
    return flat


def _without(made: Any, dim: int, *, keepdim: bool) -> Any:
    return made if keepdim else basics.opset().Squeeze(made, _vector(dim))


def _vector(value: int) -> Any:
    return basics.opset().Constant(value_ints=[value])


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.median.default: median,
    _aten.median.dim: median_of,
    _aten.nanmedian.default: nanmedian,
    _aten.nanmedian.dim: nanmedian_of,
    _aten.kthvalue.default: kthvalue,
}
"""Op overload -> function."""
