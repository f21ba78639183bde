"""Sorting and searching; NaN is the largest value, as in PyTorch. Medians and other order statistics.

ONNX Runtime compares NaN as processors do, so that no order comes out. Floats of 16 and 32 bits are sorted by a key of a wider type, in
which infinity and NaN are large numbers. Of equal elements, TopK takes the first one first, also from the largest down.

A median is the largest of the k smallest elements, which TopK finds without sorting them. Of equal elements, PyTorch returns the index of
any. So a graph that reads an index keeps these operators in PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch

from ortlens import _torch
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op
from ortlens.backend.operators.facts import STAYS, Call, decomposes, torch_op

_aten = torch.ops.aten

_KEYS = {basics.FLOAT: (basics.DOUBLE, 1e39, 1e40), basics.FLOAT16: (basics.FLOAT, 1e5, 1e6), basics.BFLOAT16: (basics.DOUBLE, 1e39, 1e40)}
"""Element type -> the key's type, and what stands for infinity and NaN in it."""


def _key(x: Any) -> Any:
    """Make a value that ONNX Runtime orders as PyTorch orders `x`; float64 without NaN is its own key."""
    dtype = int(x.dtype)
    if dtype == basics.BOOL:
        return basics.typed(op.Cast(x, to=basics.INT64), basics.INT64, x)
    if dtype not in _KEYS:
        return x
    wide, infinity, nan = _KEYS[dtype]
    key = basics.typed(op.Cast(x, to=wide), wide, x)
    bounded = op.Clip(key, basics.number(key, -infinity), basics.number(key, infinity))
    return basics.typed(op.Where(op.IsNaN(x), basics.number(key, nan), bounded), wide, x)


@torch_op(_aten.topk.default)
def topk(x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    count = op.Reshape(op.Cast(k, to=basics.INT64), op.Constant(value_ints=[1])) if basics.is_value(k) else op.Constant(value_ints=[k])
    key = _key(x)
    values, indices = op.TopK(key, count, axis=dim, largest=int(largest), sorted=int(sorted))
    return values if key is x else op.GatherElements(x, indices, axis=dim), indices


@torch_op(_aten.sort.default)
def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """`aten.sort`; keeps the order of equal elements."""
    if not len(x.shape):
        return topk(x, 1)
    size = op.Gather(op.Shape(x), op.Constant(value_int=dim % len(x.shape)))
    return topk(x, x.shape[dim] if isinstance(x.shape[dim], int) else size, dim, largest=descending)


torch_op(_aten.sort.stable)(lambda x, *, stable=None, dim=-1, descending=False: sort(x, dim, descending))  # noqa: ARG005 - which `sort` is


@torch_op(_aten.argmax.default)
def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """`aten.argmax`; the first NaN is the largest."""
    return _arg_extreme("ArgMax", x, dim, keepdim=keepdim)


@torch_op(_aten.argmin.default)
def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """`aten.argmin`; the first NaN is also the smallest."""
    return _arg_extreme("ArgMin", x, dim, keepdim=keepdim)


def _arg_extreme(name: str, x: Any, dim: int | None, *, keepdim: bool) -> Any:
    rank = len(x.shape)
    if not rank:
        return op.Constant(value_int=0)
    if dim is None:
        flat = op.Reshape(x, op.Constant(value_ints=[-1]))
        flat.dtype, flat.shape = x.dtype, None
        found = _first_extreme(name, flat, 0, keepdim=False)
        return op.Reshape(found, op.Constant(value_ints=[1] * rank)) if keepdim else found
    return _first_extreme(name, x, dim, keepdim=keepdim)


def _first_extreme(name: str, x: Any, axis: int, *, keepdim: bool) -> Any:
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


_SORTED = (basics.FLOAT, basics.DOUBLE, basics.INT64, basics.INT32)  # the types of ONNX Runtime's TopK


@torch_op(_aten.median.dim)
def median_of(x: Any, dim: int, keepdim: bool = False) -> Any:
    """`aten.median.dim`: of an even number of elements, the lower one; NaN where an element is."""
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    size = _size(x, dim)
    middle = op.Add(op.Div(op.Sub(size, _vector(1)), _vector(2)), _vector(1))
    found, place = _smallest(x, middle, dim)
    if basics.is_float(x):
        found = op.Where(op.Greater(_nans(x, dim), _vector(0)), basics.number(x, float("nan")), found)
    return _without(found, dim, keepdim=keepdim), _without(place, dim, keepdim=keepdim)


@torch_op(_aten.nanmedian.dim)
def nanmedian_of(x: Any, dim: int, keepdim: bool = False) -> Any:
    """`aten.nanmedian.dim`: the median of what is not NaN, and NaN where nothing else is."""
    if not basics.is_float(x) or not len(x.shape):
        return median_of(x, dim, keepdim)
    size, nans = _size(x, dim), _nans(x, dim)
    ordered, places = op.TopK(_number_key(x), size, axis=dim, largest=0)
    last = op.Max(op.Div(op.Sub(op.Sub(size, nans), _vector(1)), _vector(2)), _vector(0))
    found, place = op.GatherElements(ordered, last, axis=dim), op.GatherElements(places, last, axis=dim)
    found = op.Where(op.Equal(nans, size), basics.number(x, float("nan")), op.CastLike(found, x))
    return _without(found, dim, keepdim=keepdim), _without(place, dim, keepdim=keepdim)


torch_op(_aten.median.default)(lambda x: median_of(_flat(x), 0)[0])
torch_op(_aten.nanmedian.default)(lambda x: nanmedian_of(_flat(x), 0)[0])


@torch_op(_aten.kthvalue.default)
def kthvalue(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """`aten.kthvalue`; NaN is larger than all numbers."""
    if not len(x.shape):
        return op.Identity(x), op.Constant(value_int=0)
    count = op.Reshape(op.Cast(k, to=basics.INT64), _vector(1)) if basics.is_value(k) else _vector(k)
    found, place = _smallest(x, count, dim)
    if basics.is_float(x):
        numbers = op.Sub(_size(x, dim), _nans(x, dim))
        found = op.Where(op.Greater(count, numbers), basics.number(x, float("nan")), found)
    return _without(found, dim, keepdim=keepdim), _without(place, dim, keepdim=keepdim)


def _smallest(x: Any, count: Any, dim: int) -> tuple[Any, Any]:
    lower, places = op.TopK(_number_key(x), count, axis=dim, largest=0, sorted=0)
    found, place = op.TopK(lower, _vector(1), axis=dim, largest=1)
    return op.CastLike(found, x), op.GatherElements(places, place, axis=dim)


def _number_key(x: Any) -> Any:
    """Convert to a type that TopK takes, in the same order, with infinity for NaN, whose place is computed apart."""
    dtype = int(x.dtype)
    wide = basics.FLOAT if basics.is_half(x) else dtype if dtype in _SORTED else basics.INT64
    key = basics.typed(op.Cast(x, to=wide), wide, x) if wide != dtype else x
    return op.Where(op.IsNaN(key), basics.number(key, float("inf")), key) if basics.is_float(x) else key


def _nans(x: Any, dim: int) -> Any:
    """Count the elements along a dimension that are NaN, with that dimension kept."""
    return op.ReduceSum(op.Cast(op.IsNaN(x), to=basics.INT64), _vector(dim), keepdims=1)


def _size(x: Any, dim: int) -> Any:
    """Return the size of a dimension; refuse tensors without elements, which have no median."""
    size = x.shape[dim]
    if 0 in list(x.shape):
        raise basics.NotConvertibleError("ONNX Runtime does not sort tensors without elements")
    if not isinstance(size, int) and not basics.is_float(x):
        raise basics.NotConvertibleError("of integers whose number is known at run time only, ONNX Runtime infers a result of another rank")
    return _vector(size) if isinstance(size, int) else op.Gather(op.Shape(x), _vector(dim % len(x.shape)))


def _flat(x: Any) -> Any:
    if not len(x.shape):
        return x
    flat = op.Reshape(x, _vector(-1))
    sizes = list(x.shape)
    flat.dtype = x.dtype
    whole = 0 if 0 in sizes else math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None
    flat.shape = ir.Shape([whole])
    return flat


def _without(made: Any, dim: int, *, keepdim: bool) -> Any:
    return made if keepdim else op.Squeeze(made, _vector(dim))


def _vector(value: int) -> Any:
    return op.Constant(value_ints=[value])


@decomposes(_aten.bucketize.Tensor)
def _bucketize(tensor: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """Decompose as torch does, which knows no numbers without dimensions and gives the wrong dtype without boundaries."""
    if any(value.dtype is torch.bool or value.is_complex() for value in (tensor, boundaries)):  # PyTorch refuses it
        return STAYS
    if not tensor.dim():
        return _aten.bucketize.Tensor(tensor.unsqueeze(0), boundaries, out_int32=out_int32, right=right).squeeze(0)
    if isinstance(boundaries.shape[0], int) and not boundaries.shape[0]:
        return torch.zeros_like(tensor, dtype=torch.int32 if out_int32 else torch.int64)
    return _torch.decomposition_of(_aten.bucketize.Tensor)(tensor, boundaries, out_int32=out_int32, right=right)


def _is_double(call: Call) -> bool:
    value = call.tensor(0)
    return value is not None and value.dtype is torch.float64 and bool(value.dim())


facts.leaves(_aten.bucketize.Tensor, when=facts.is_large_on_cpu)
_MEDIANS = (_aten.median.dim, _aten.nanmedian.dim)
facts.wrong(
    *(_aten.argmax.default, _aten.argmin.default, _aten.median.default, _aten.nanmedian.default, *_MEDIANS, _aten.topk.default),
    reason=f"takes booleans{facts.REFUSED}",
    when=facts.is_boolean,
)
facts.wrong(
    *(*_MEDIANS, _aten.kthvalue.default), reason="takes another of equal elements, and this graph reads its index", when=facts.reads_index
)
facts.wrong(*(_aten.sort.default, _aten.sort.stable, _aten.topk.default), reason="takes NaN in float64 for any value", when=_is_double)
