"""Reads and writes at indices: embeddings, gather, scatter and its reductions.

ONNX counts negative indices from the end, PyTorch's operators here refuse them. They become numbers out of range: the run fails, PyTorch
computes the partition, and raises its own error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_LARGEST = {basics.INT64: 2**63 - 1, basics.INT32: 2**31 - 1}
_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amin": "min", "amax": "max"}


def embedding(weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Any:  # noqa: FBT001, FBT002 - the schema
    """`aten.embedding`."""
    return basics.registered(_aten.embedding.default)(weight, _not_from_the_end(indices), padding_idx, scale_grad_by_freq, sparse)


def index_select(self: Any, dim: int, index: Any) -> Any:
    """`aten.index_select`."""
    return basics.registered(_aten.index_select.default)(self, dim, _not_from_the_end(index))


def gather(self: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:  # noqa: FBT001, FBT002 - the schema
    """`aten.gather`."""
    return basics.registered(_aten.gather.default)(self, dim, _not_from_the_end(index), sparse_grad)


def scatter(self: Any, dim: int, index: Any, src: Any) -> Any:
    """`aten.scatter.src`."""
    return _scattered(self, dim, index, src, "none")


def scatter_add(self: Any, dim: int, index: Any, src: Any) -> Any:
    """`aten.scatter_add`."""
    return _scattered(self, dim, index, src, "add")


def scatter_by(self: Any, dim: int, index: Any, src: Any, reduce: str) -> Any:
    """`aten.scatter.reduce`, the older form with its own names of reductions."""
    return _scattered(self, dim, index, src, {"add": "add", "multiply": "mul"}[reduce])


def scatter_value(self: Any, dim: int, index: Any, value: Any) -> Any:
    """`aten.scatter.value`: one number in all places."""
    op = basics.opset()
    src = basics.typed(op.Expand(basics.number(self, value), op.Shape(index)), int(self.dtype), index)
    return scatter(self, dim, index, src)


def scatter_value_by(self: Any, dim: int, index: Any, value: Any, reduce: str) -> Any:
    """`aten.scatter.value_reduce`: the same with one number."""
    op = basics.opset()
    src = basics.typed(op.Expand(basics.number(self, value), op.Shape(index)), int(self.dtype), index)
    return scatter_by(self, dim, index, src, reduce)


def scatter_reduce(self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:  # noqa: FBT001, FBT002, PLR0913, PLR0917 - the schema
    """`aten.scatter_reduce.two`, with NaN wherever one takes part."""
    op = basics.opset()
    base = self
    if not include_self:
        base = op.Where(_touched(self, dim, index), basics.number(self, _neutral(self, reduce)), self)
        base = basics.typed(base, int(self.dtype), self)
    reduced = _scattered(base, dim, index, src, _REDUCTIONS[reduce])
    if reduce == "mean":
        return op.Div(reduced, _counted(self, dim, index, include_self=include_self))
    if reduce == "amin" or reduce == "amax":  # noqa: PLR1714 - as a Literal
        return _with_nan(reduced, base, dim, index, src)
    return reduced


def index_reduce(self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:  # noqa: FBT001, FBT002, PLR0913, PLR0917 - the schema
    """`aten.index_reduce`: one index per slice."""
    op = basics.opset()
    rank = len(source.shape)
    sizes = [-1 if place == dim % rank else 1 for place in range(rank)]
    whole = op.Expand(op.Cast(op.Reshape(index, op.Constant(value_ints=sizes)), to=basics.INT64), op.Shape(source))
    return scatter_reduce(self, dim, basics.typed(whole, basics.INT64, source), source, reduce, include_self)


def _scattered(self: Any, dim: int, index: Any, src: Any, reduction: str) -> Any:
    """ScatterElements, which wants at least one dimension, and as many updates as indices; PyTorch ignores the others."""
    op = basics.opset()
    flat = op.Constant(value_ints=[-1])
    index = _not_from_the_end(index)
    if basics.is_half(self) and reduction != "none":  # ONNX Runtime refuses these when it runs
        wide = [basics.typed(op.Cast(value, to=basics.FLOAT), basics.FLOAT, value) for value in (self, src)]
        return op.CastLike(_scattered(wide[0], dim, index, wide[1], reduction), self)
    if len(self.shape) == 0 or len(index.shape) == 0:
        rows = [op.Reshape(value, flat) for value in (self, index, src)]
        first = op.Slice(rows[2], op.Constant(value_ints=[0]), op.Shape(rows[1]))
        made = op.ScatterElements(rows[0], op.Cast(rows[1], to=basics.INT64), first, axis=0, reduction=reduction)
        return op.Reshape(made, op.Shape(self))
    if len(index.shape) != len(self.shape):
        return op.Identity(self)  # PyTorch takes only an index without elements then
    if list(index.shape) != list(src.shape):
        src = op.Slice(src, op.Constant(value_ints=[0] * len(index.shape)), op.Shape(index))
    return op.ScatterElements(self, op.Cast(index, to=basics.INT64), src, axis=dim, reduction=reduction)


def _not_from_the_end(index: Any) -> Any:
    """An index without its sign, which makes negative ones too large for any dimension."""
    if index.dtype is None or int(index.dtype) not in _LARGEST:
        return index
    return basics.typed(basics.opset().BitwiseAnd(index, basics.number(index, _LARGEST[int(index.dtype)])), int(index.dtype), index)


def _touched(self: Any, dim: int, index: Any) -> Any:
    """Where an index points."""
    op = basics.opset()
    nowhere = basics.typed(op.Expand(op.Constant(value_int=0), op.Shape(self)), basics.INT64, self)
    ones = basics.typed(op.Expand(op.Constant(value_int=1), op.Shape(index)), basics.INT64, index)
    return op.Cast(_scattered(nowhere, dim, index, ones, "none"), to=basics.BOOL)


def _counted(self: Any, dim: int, index: Any, *, include_self: bool) -> Any:
    """How many values are summed up in each place, at least one."""
    op = basics.opset()
    start = op.CastLike(op.Constant(value_int=int(include_self)), self)
    ones = basics.typed(op.Expand(op.CastLike(op.Constant(value_int=1), self), op.Shape(index)), int(self.dtype), index)
    base = basics.typed(op.Expand(start, op.Shape(self)), int(self.dtype), self)
    return op.Max(_scattered(base, dim, index, ones, "add"), op.CastLike(op.Constant(value_int=1), self))


def _with_nan(reduced: Any, base: Any, dim: int, index: Any, src: Any) -> Any:
    """Replace what was made of a NaN; ONNX Runtime's minimum and maximum drop it at some positions."""
    if not basics.is_float(base):
        return reduced
    op = basics.opset()
    own, new = (basics.typed(op.Cast(op.IsNaN(value), to=basics.FLOAT), basics.FLOAT, value) for value in (base, src))
    found = op.Cast(_scattered(own, dim, index, new, "max"), to=basics.BOOL)
    return op.Where(found, basics.number(base, float("nan")), reduced)


def _neutral(self: Any, reduce: str) -> float:
    """The number that a reduction ignores."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    info = None if basics.is_float(self) else torch.iinfo(getattr(torch, str(self.dtype).lower()))
    if reduce == "amin":
        return torch.inf if info is None else info.max
    return -torch.inf if info is None else info.min


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.embedding.default: embedding,
    _aten.gather.default: gather,
    _aten.index_reduce.default: index_reduce,
    _aten.index_select.default: index_select,
    _aten.scatter.reduce: scatter_by,
    _aten.scatter.src: scatter,
    _aten.scatter.value: scatter_value,
    _aten.scatter.value_reduce: scatter_value_by,
    _aten.scatter_add.default: scatter_add,
    _aten.scatter_reduce.two: scatter_reduce,
}
"""Op overload -> function."""
