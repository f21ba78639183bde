"""Reads and writes at indices: embeddings, gather, scatter and its reductions.

ONNX counts negative indices from the end, PyTorch's operators here refuse them. They become numbers out of range: the run fails, PyTorch
computes the partition, and raises its own error.

Sums are made by ScatterElements, which adds one number after the other. ScatterND adds several rows at once where a session has several
threads, and then loses some. Bags of embeddings, which only deployed models contain, are summed without torchlib's loops over bags that
grow a sequence: ScatterElements adds each row to its bag, in order, as PyTorch does. Rejected: blocks padded to the longest bag, which have
no bound in memory.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.basis import provenance
from ortlens.backend.basis.dtypes import fits
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import LARGEST_INDEX, not_from_the_end, op, size_vector
from ortlens.backend.operators.facts import STAYS, Call, decomposes, decomposes_each, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_aten = torch.ops.aten

_MAX_PLACES = 1 << 14  # numbers in a constant that names the rows of a tensor
_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amin": "min", "amax": "max"}


def _refusing(target: Any, place: int) -> Callable[..., Any]:
    """Let the registry's function refuse negative indices in an argument."""
    return lambda *args, **kwargs: basics.registered(target)(*args[:place], not_from_the_end(args[place]), *args[place + 1 :], **kwargs)


@torch_op(_aten.scatter.src, _aten.scatter.reduce)
def scatter(self: Any, dim: int, index: Any, src: Any, reduce: str = "none") -> Any:
    """`aten.scatter`, whose older form has its own names of reductions."""
    return _scattered(self, dim, index, src, {"multiply": "mul"}.get(reduce, reduce))


@torch_op(_aten.scatter_add.default)
def scatter_add(self: Any, dim: int, index: Any, src: Any) -> Any:
    return _scattered(self, dim, index, src, "add")


@torch_op(_aten.scatter.value, _aten.scatter.value_reduce)
def scatter_value(self: Any, dim: int, index: Any, value: Any, reduce: str = "none") -> Any:
    """`aten.scatter` with one number in all places."""
    src = basics.typed(op.Expand(basics.number(self, value), op.Shape(index)), int(self.dtype), index)
    return scatter(self, dim, index, src, reduce)


@torch_op(_aten.scatter_reduce.two)
def scatter_reduce(self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    """`aten.scatter_reduce.two`, with NaN wherever one takes part."""
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


@torch_op(_aten.index_reduce.default)
def index_reduce(self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    """`aten.index_reduce`: one index per slice."""
    rows = _for_rows(index, source, dim % len(source.shape)) if len(source.shape) else index
    return scatter_reduce(self, dim, rows, source, reduce, include_self)


@torch_op(_aten.index_add.default)
def index_add(self: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    """`aten.index_add`: the same as a sum."""
    added = source if not basics.is_value(alpha) and alpha == 1 else _times(source, alpha)
    if len(self.shape) == 0:
        return scatter_add(self, dim, index, added)
    return scatter_add(self, dim, _for_rows(not_from_the_end(index), added, dim % len(self.shape)), added)


@torch_op(_aten._unsafe_index_put.default, _aten.index_put.default)
def index_put(self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """`aten.index_put`: sums at neighbouring dimensions, as at one that runs through them; rows where they lie; all else as registered."""
    given = {place: index for place, index in enumerate(indices) if index is not None}
    if not accumulate and _are_rows(self, given):
        return _put_rows(self, *given.popitem(), values)
    if not accumulate or any(int(index.dtype) == basics.BOOL for index in given.values()):
        return basics.registered(_aten.index_put.default)(self, indices, values, accumulate)
    first = min(given)
    shape = op.Shape(self)
    ahead, behind = op.Shape(self, start=0, end=first), op.Shape(self, start=max(given) + 1)
    whole = op.Constant(value_ints=[-1])
    index = _running_index(given, shape)
    rows = op.Reshape(op.Expand(values, op.Concat(ahead, op.Shape(index), behind, axis=0)), op.Concat(ahead, whole, behind, axis=0))
    table = op.Reshape(self, op.Concat(ahead, whole, behind, axis=0)) if len(given) > 1 else self
    places = _repeated(index, rows, first, len(self.shape) - len(given) + 1)
    made = op.ScatterElements(table, places, rows, axis=first, reduction="add")
    return op.Reshape(made, shape) if len(given) > 1 else made


def _are_rows(self: Any, given: Mapping[int, Any]) -> bool:
    """Tell whether one 1-D index names rows behind dimensions of known sizes, as a position in a key-value cache does."""
    if len(given) != 1:
        return False
    ((place, index),) = given.items()
    ahead = list(self.shape)[:place]
    known = place > 0 and all(isinstance(size, int) and size > 0 for size in ahead)
    return known and int(index.dtype) in LARGEST_INDEX and len(index.shape) == 1 and math.prod(ahead) * (place + 1) <= _MAX_PLACES


def _put_rows(self: Any, place: int, index: Any, values: Any) -> Any:
    """Apply ScatterND with the whole place of each row: with the last index alone the tensor would be transposed, there and back."""
    import numpy as np

    ahead = list(self.shape)[:place]
    every = np.moveaxis(np.indices(ahead), 0, -1).reshape(*ahead, 1, place)
    fixed: Any = op.Constant(value=ir.tensor(every.astype(np.int64)))
    wide = op.Reshape(op.Cast(index, to=basics.INT64), op.Constant(value_ints=[1] * place + [-1, 1]))
    rows = op.Expand(wide, op.Constant(value_ints=[*ahead, 1, 1]))
    if list(index.shape) != [1]:
        fixed = op.Expand(fixed, op.Concat(op.Constant(value_ints=[1] * place), op.Shape(index), op.Constant(value_ints=[1]), axis=0))
    shape = [*ahead, *index.shape, *list(self.shape)[place + 1 :]]
    if list(values.shape) != shape:
        values = op.Expand(values, op.Concat(op.Constant(value_ints=ahead), op.Shape(index), op.Shape(self, start=place + 1), axis=0))
    return op.ScatterND(self, op.Concat(fixed, rows, axis=-1), values)


def embedding_dense_backward(grad: Any, indices: Any, num_weights: Any, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    """`aten.embedding_dense_backward`: the gradient of each row is the sum of those of its uses, and zero for the padding."""
    if scale_grad_by_freq:
        raise basics.NotConvertibleError("divides by how often a row is used")
    zero = basics.number(grad, 0)
    ids = op.Unsqueeze(op.Cast(indices, to=basics.INT64), op.Constant(value_ints=[-1]))
    if padding_idx >= 0:
        grad = op.Where(op.Equal(ids, op.Constant(value_int=padding_idx)), zero, grad)
    width = op.Shape(grad, start=-1)
    rows = op.Reshape(grad, op.Concat(op.Constant(value_ints=[-1]), width, axis=0))
    count = op.Reshape(num_weights, op.Constant(value_ints=[1])) if basics.is_value(num_weights) else op.Constant(value_ints=[num_weights])
    table = op.Expand(zero, op.Concat(count, width, axis=0))
    return op.ScatterElements(table, _repeated(ids, rows, 0, 2), rows, axis=0, reduction="add")


def _times(source: Any, alpha: Any) -> Any:
    """Multiply as PyTorch does: booleans are and-ed, and unsigned numbers wrap around."""
    kind = int(source.dtype)
    if kind == basics.BOOL:
        return basics.typed(op.And(source, basics.number(source, alpha)), kind, source)
    factor = basics.number(source, alpha % 256 if kind == basics.UINT8 and not basics.is_value(alpha) else alpha)
    return basics.typed(op.Mul(source, factor), kind, source)


def _running_index(given: Mapping[int, Any], shape: Any) -> Any:
    """Compute the index into neighbouring dimensions as if they were one; out of range where a single one is."""
    wide = {place: op.Cast(index, to=basics.INT64) for place, index in given.items()}
    if len(wide) == 1:
        return next(iter(wide.values()))
    zero = op.Constant(value_int=0)
    running: Any = zero
    inside: list[Any] = []
    for place, index in wide.items():
        size = op.Gather(shape, op.Constant(value_int=place))
        counted = op.Where(op.Less(index, zero), op.Add(index, size), index)
        inside += [op.GreaterOrEqual(counted, zero), op.Less(counted, size)]
        running = op.Add(op.Mul(running, size), counted)
    return op.Where(functools.reduce(op.And, inside), running, op.Constant(value_int=LARGEST_INDEX[basics.INT64]))


def _for_rows(index: Any, source: Any, dim: int) -> Any:
    """Expand an index of slices along a dimension to one of their elements."""
    return basics.typed(_repeated(index, source, dim, len(source.shape)), basics.INT64, source)


def _repeated(index: Any, source: Any, dim: int, rank: int) -> Any:
    """Expand an index as `_for_rows` does, for a source whose type and shape are not known."""
    sizes = [-1 if place == dim else 1 for place in range(rank)]
    return op.Expand(op.Cast(op.Reshape(index, op.Constant(value_ints=sizes)), to=basics.INT64), op.Shape(source))


def _scattered(self: Any, dim: int, index: Any, src: Any, reduction: str) -> Any:
    """Apply ScatterElements, which wants at least one dimension and as many updates as indices; PyTorch ignores the others."""
    flat = op.Constant(value_ints=[-1])
    index = not_from_the_end(index)
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


@torch_op(_aten.one_hot.default)
def one_hot(index: Any, num_classes: Any) -> Any:
    """`aten.one_hot` of a known number of classes. The run fails for a class that is none of them."""
    place = op.Unsqueeze(not_from_the_end(index), op.Constant(value_ints=[-1]))
    zeros = op.Expand(op.Constant(value_int=0), op.Concat(op.Shape(index), size_vector([num_classes]), axis=0))
    return op.ScatterElements(zeros, place, op.Expand(op.Constant(value_int=1), op.Shape(place)), axis=-1)


def _touched(self: Any, dim: int, index: Any) -> Any:
    nowhere = basics.typed(op.Expand(op.Constant(value_int=0), op.Shape(self)), basics.INT64, self)
    ones = basics.typed(op.Expand(op.Constant(value_int=1), op.Shape(index)), basics.INT64, index)
    return op.Cast(_scattered(nowhere, dim, index, ones, "none"), to=basics.BOOL)


def _counted(self: Any, dim: int, index: Any, *, include_self: bool) -> Any:
    """Count the values that are summed up in each place, at least one."""
    start = op.CastLike(op.Constant(value_int=int(include_self)), self)
    ones = basics.typed(op.Expand(op.CastLike(op.Constant(value_int=1), self), op.Shape(index)), int(self.dtype), index)
    base = basics.typed(op.Expand(start, op.Shape(self)), int(self.dtype), self)
    return op.Max(_scattered(base, dim, index, ones, "add"), op.CastLike(op.Constant(value_int=1), self))


def _with_nan(reduced: Any, base: Any, dim: int, index: Any, src: Any) -> Any:
    """Replace what was made of a NaN; ONNX Runtime's minimum and maximum drop it at some positions."""
    if not basics.is_float(base):
        return reduced
    own, new = (basics.typed(op.Cast(op.IsNaN(value), to=basics.FLOAT), basics.FLOAT, value) for value in (base, src))
    found = op.Cast(_scattered(own, dim, index, new, "max"), to=basics.BOOL)
    return op.Where(found, basics.number(base, float("nan")), reduced)


def _neutral(self: Any, reduce: str) -> float:
    """Return the number that a reduction ignores."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    info = None if basics.is_float(self) else torch.iinfo(getattr(torch, str(self.dtype).lower()))
    if reduce == "amin":
        return torch.inf if info is None else info.max
    return -torch.inf if info is None else info.min


torch_op(_aten.embedding.default)(_refusing(_aten.embedding.default, 1))
torch_op(_aten.index_select.default)(_refusing(_aten.index_select.default, 2))
torch_op(_aten.gather.default)(_refusing(_aten.gather.default, 2))
torch_op(_aten.take.default)(lambda x, index: op.Gather(op.Reshape(x, op.Constant(value_ints=[-1])), index))  # both count from the end
torch_op(_aten.embedding_dense_backward.default)(basics.in_float32(embedding_dense_backward))
_SUM, _MEAN = 0, 1


@torch_op(_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default, _aten.embedding_bag.default)
@facts.named(_aten._embedding_bag.default)
def embedding_bag(given: Any) -> list[Any]:
    """`aten._embedding_bag`; only its first output, the others serve the backward."""
    ids, starts = (basics.typed(op.Cast(value, to=basics.INT64), basics.INT64, value) for value in (given.indices, given.offsets))
    ids = not_from_the_end(ids)
    per_row = [ids] if given.per_sample_weights is None else [ids, given.per_sample_weights]
    if given.include_last_offset:
        end = op.Slice(starts, op.Constant(value_ints=[-1]), op.Shape(starts))
        starts = op.Slice(starts, op.Constant(value_ints=[0]), op.Constant(value_ints=[-1]))
        per_row = [op.Slice(value, op.Constant(value_ints=[0]), end) for value in per_row]
    per_row.append(_bag_of_each(per_row[0], starts))
    if given.padding_idx >= 0:
        kept = op.Not(op.Equal(per_row[0], op.Constant(value_int=given.padding_idx)))
        per_row = [op.Compress(value, kept, axis=0) for value in per_row]
    rows = op.Gather(given.weight, per_row[0])
    rows = op.Cast(rows, to=basics.FLOAT) if basics.is_half(given.weight) else rows
    if given.per_sample_weights is not None:
        rows = op.Mul(rows, op.Unsqueeze(op.CastLike(per_row[1], rows), op.Constant(value_ints=[1])))
    made = _sums(rows, per_row[-1], starts, mean=given.mode == _MEAN) if given.mode in (_SUM, _MEAN) else _maxima(rows, per_row[-1], starts)
    return [op.CastLike(made, given.weight)]


@torch_op(_aten.embedding_bag.padding_idx)
def embedding_bag_with_padding(*args: Any, padding_idx: int | None = None, **kwargs: Any) -> list[Any]:
    """`aten.embedding_bag.padding_idx`, which counts a negative padding from the end."""
    given = args[8] if len(args) > 8 else padding_idx  # noqa: PLR2004 - its place in the schema
    if given is not None and given < 0:
        raise basics.NotConvertibleError("counts padding_idx from the end of the table")
    return embedding_bag(*args[:8], **{**kwargs, "padding_idx": -1 if given is None else given})


def _bag_of_each(ids: Any, starts: Any) -> Any:
    """Compute the bag of each row: how many bags have begun, without the first."""
    size, zero, one = op.Shape(ids), op.Constant(value_int=0), op.Constant(value_int=1)
    nothing = op.Expand(zero, op.Add(size, one))  # one more: the last bags may begin behind the last row, and are empty
    begun = op.ScatterElements(nothing, starts, op.Expand(one, op.Shape(starts)), axis=0, reduction="add")
    return op.Sub(op.Slice(op.CumSum(begun, zero), op.Constant(value_ints=[0]), size), one)


def _sums(rows: Any, bags: Any, starts: Any, *, mean: bool) -> Any:
    zero, one = (op.CastLike(op.Constant(value_int=number), rows) for number in (0, 1))
    nothing = op.Expand(zero, op.Concat(op.Shape(starts), op.Shape(rows, start=1), axis=0))
    sums = op.ScatterElements(nothing, _for_all_columns(bags, rows), rows, axis=0, reduction="add")
    if not mean:
        return sums
    counts = op.ScatterElements(op.Expand(zero, op.Shape(starts)), bags, op.Expand(one, op.Shape(bags)), axis=0, reduction="add")
    return op.Div(sums, op.Unsqueeze(op.Max(counts, one), op.Constant(value_ints=[1])))


def _maxima(rows: Any, bags: Any, starts: Any) -> Any:
    """Begin with the first row of each bag: as in PyTorch, a NaN there stays, and one further on is never the larger."""
    size, zero, one = op.Shape(bags), op.Constant(value_int=0), op.Constant(value_int=1)
    places = op.Range(zero, op.Squeeze(size), one)
    firsts = op.ScatterElements(op.Expand(size, op.Shape(starts)), bags, places, axis=0, reduction="min")
    empty = op.Expand(op.CastLike(zero, rows), op.Concat(op.Constant(value_ints=[1]), op.Shape(rows, start=1), axis=0))
    begun = op.Gather(op.Concat(rows, empty, axis=0), firsts)
    lowest = op.Where(op.IsNaN(rows), op.CastLike(op.Constant(value_float=float("-inf")), rows), rows)
    largest = op.ScatterElements(begun, _for_all_columns(bags, rows), lowest, axis=0, reduction="max")
    return op.Where(op.IsNaN(begun), begun, largest)


def _for_all_columns(bags: Any, rows: Any) -> Any:
    return op.Expand(op.Unsqueeze(bags, op.Constant(value_ints=[1])), op.Shape(rows))


@decomposes(_aten.index_copy.default)
def _index_copy(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    """Decompose as torch does, but with no index that counts from the end: `index_put` takes it, this operator refuses it."""
    if index.dtype is not torch.int64:  # PyTorch refuses it
        return STAYS
    places = torch.where(index < 0, torch.iinfo(index.dtype).max, index)
    return _torch.decomposition_of(_aten.index_copy.default)(tensor, dim, places, source)


@decomposes_each(_aten.index_fill.int_Scalar, _aten.index_fill.int_Tensor)
def _index_fill(target: Any, tensor: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    """Fill a copy: torch's decomposition keeps strides of dense memory only, checks unused indices, and refuses ones from the end."""
    checked = tensor.dtype is torch.float16 and not (
        isinstance(value, (int, float)) and fits(value, torch.float16)
    )  # `scalar_tensor` is infinite
    if index.dtype is not torch.int64 or checked:  # PyTorch refuses it
        return STAYS
    filled: torch.Tensor = _aten.clone.default(tensor)
    if not facts.is_empty(tensor):
        size = tensor.shape[dim] if tensor.dim() else 1
        filled = _torch.decomposition_of(target)(filled, dim, torch.where(index < 0, index + size, index), value)
    return filled


@decomposes(_aten.masked_scatter.default)
def _masked_scatter(tensor: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """Give a number a dimension: ONNX's ScatterND takes none without."""
    if tensor.dim() or mask.dim() or mask.dtype is not torch.bool:
        return STAYS
    return _aten.masked_scatter.default(tensor.unsqueeze(0), mask.unsqueeze(0), source).squeeze(0)


@decomposes(_aten.slice_scatter.default)
def _slice_scatter(tensor: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any) -> Any:
    """Copy the tensor where there is nothing to write: ONNX Runtime then refuses to scatter."""
    return _aten.clone.default(tensor) if facts.is_empty(source) else STAYS


_ONE_HOT = _aten.one_hot.default
facts.keeps_whole(_ONE_HOT)


@decomposes(_ONE_HOT)
def _one_hot(index: torch.Tensor, num_classes: Any = -1) -> Any:
    """Leave what eager checks, and then writes the ones into zeros, to the operator: PyTorch's decomposition compares, without a check."""
    is_checked = index.device.type == "cpu" and index.dtype is torch.int64 and not (isinstance(num_classes, int) and num_classes < 0)
    return STAYS if is_checked else _torch.decomposition_of(_ONE_HOT)(index.contiguous(), num_classes)


facts.knows_result(_ONE_HOT, made=lambda index, num_classes: index.new_empty((*index.shape, num_classes)))


def _is_known_nothing(size: Any) -> bool:
    return isinstance(size, int) and not size


def _broadcasts_slices(call: Call) -> bool:
    added, to = list(call["source"].shape), list(call["self"].shape)
    if not to:
        return False
    place = call["dim"] % len(to)
    sizes = zip(to, added, strict=False)
    return len(added) != len(to) or not all(statically_known_true(size == other) for dim, (size, other) in enumerate(sizes) if dim != place)


def _sums_at_indices(call: Call) -> str | None:
    if any(map(_is_known_nothing, (*call["values"].shape, *call["self"].shape))):
        return "fails where there is nothing to write"
    if not call["accumulate"]:
        return None
    places = [place for place, index in enumerate(call["indices"]) if index is not None]
    if places != list(range(places[0], places[-1] + 1)):
        return "adds at indices of neighbouring dimensions only"
    return "adds no floats of 16 bits" if call["self"].dtype in (torch.float16, torch.bfloat16) else None


def _takes_any_index(call: Call) -> bool:
    index = call.tensor(2)
    return index is not None and (index.dtype not in (torch.int64, torch.int32) or index.dim() > 1)


_PUTS = (_aten.index_put.default, _aten._unsafe_index_put.default)
_BAGS = (
    *(_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default),
    *(_aten.embedding_bag.default, _aten.embedding_bag.padding_idx),
)
facts.wrong(_aten.gather.default, reason="does not check an index into a number", when=facts.is_number)
facts.wrong(
    _aten.gather.default,
    reason="needs an index of as many dimensions",
    when=lambda call: call["index"].dim() and call["self"].dim() != call["index"].dim(),
)
facts.wrong(_aten.take.default, reason="fails on tensors without elements", when=facts.lacks_elements("self"))
facts.wrong(
    _aten.index_reduce.default, reason=f"broadcasts slices{facts.REFUSED}", when=lambda call: call["source"].dim() != call["self"].dim()
)
facts.wrong(_aten.index_add.default, _aten.index_reduce.default, reason=f"broadcasts slices{facts.REFUSED}", when=_broadcasts_slices)
for _reducing in (_aten.index_reduce.default, _aten.scatter_reduce.two):
    facts.wrong(_reducing, reason="has no reductions of booleans", when=lambda call: call["self"].dtype is torch.bool)
    facts.wrong(
        _reducing, reason="rounds the mean of integers otherwise", when=lambda call: call["reduce"] == "mean" and facts.is_whole(call)
    )
facts.wrong(*_PUTS, when=_sums_at_indices)
facts.wrong(_aten.nonzero.default, reason="gives one number a dimension", when=facts.is_number)
facts.wrong(
    _aten.masked_scatter.default,
    reason=f"takes masks that are not boolean{facts.REFUSED}",
    when=lambda call: call["mask"].dtype is not torch.bool,
)
facts.wrong(_aten.embedding_renorm.default, reason=f"takes whole numbers{facts.REFUSED}", when=facts.is_whole)
facts.wrong(_aten.index_select.default, _aten.index_add.default, reason=f"takes any index{facts.REFUSED}", when=_takes_any_index)
facts.lacks_outputs(*_BAGS, count=4)

_SUMS = {
    _aten._unsafe_index_put.default: 1,
    _aten.embedding_dense_backward.default: 0,
    _aten.index_add.default: 1,
    _aten.index_put.default: 1,
    _aten.scatter_add.default: 1,
    _aten.scatter_reduce.two: 1,
}
"""Sums at indices -> the first of the tensors that are added and of their indices."""


def _adds_rows(call: Call) -> bool:
    node = call.node
    if node.target not in _SUMS or (node.target in (_aten.scatter_add.default, _aten.scatter_reduce.two) and not _has_row_index(node)):
        return False
    if node.target in _PUTS and not (len(node.args) > 3 and node.args[3]):  # noqa: PLR2004 - its place in the schema
        return False
    added = [tensor for source in node.all_input_nodes[_SUMS[node.target] :] for tensor in provenance.tensors_in(source.meta.get("val"))]
    return any(map(provenance.is_large, added))


def _writes_into_constant(call: Call) -> bool:
    source, table = call.node.args[0], call.result
    is_constant = call.node.target is _ONE_HOT or (isinstance(source, torch.fx.Node) and source.target is _aten.full.default)
    return is_constant and table is not None and table.device.type == "cpu" and provenance.is_large(table)


def _has_row_index(scatter: torch.fx.Node) -> bool:
    """Tell whether an operator of the family of `scatter` takes whole rows of a table."""
    table, dim, index = scatter.args[:3]
    is_view = isinstance(index, torch.fx.Node) and index.target is _aten.expand.default
    return is_view and isinstance(table, torch.fx.Node) and dim in (0, -table.meta["val"].dim())


def _serves(call: Call, targets: Sequence[Any]) -> bool:
    """Tell whether all that reads a node are rows of the table for some operators."""
    users = list(call.node.users)
    return bool(users) and all(user.target in targets for user in users)


def _serves_sums(call: Call) -> bool:
    return _serves(call, tuple(_SUMS)) and all(_adds_rows(Call(user)) for user in call.node.users)


# One thread, 1024 bags of 8 rows of 64: PyTorch 60 us, Gather and ReduceSum 310 us, padded to the longest bag 850 us, ScatterElements
# 4.1 ms.
facts.slow(*_BAGS, reason="PyTorch adds the rows where they lie, ONNX Runtime would copy them first and take 3 to 60 times as long")
# One thread, 3000 rows of 64 numbers: PyTorch 45 us, ScatterElements 680 us, ScatterND 41 us, but it loses rows with several threads.
facts.slow(*_SUMS, reason="it adds whole rows, ONNX Runtime single numbers, in 5 to 15 times as long", when=_adds_rows)
# One thread, the one-hot rows of 1024 of 1024 classes: PyTorch 115 us, ScatterElements 560 us, comparisons 740 us.
facts.slow(
    *(_aten.scatter.src, _aten.scatter.value, _ONE_HOT),
    reason="PyTorch writes into the constant itself, ONNX Runtime into a copy of it",
    when=_writes_into_constant,
)
# What `embedding_bag` makes of a table of ids: the offsets of its rows, and one row.
facts.serves(
    *(_aten.arange.default, _aten.arange.start, _aten.arange.start_step, _aten.view.default),
    reason="a bag of embeddings, which stays in PyTorch: a partition of its own would take longer",
    when=functools.partial(_serves, targets=_BAGS),
)
# An index of rows: PyTorch adds whole rows where it sees that all numbers of a row have the same index.
facts.serves(_aten.expand.default, reason="sums of rows, which stay in PyTorch and need its view of the index", when=_serves_sums)
