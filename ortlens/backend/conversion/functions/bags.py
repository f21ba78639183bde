"""Sums, means and maxima of bags of embeddings, without a loop; torchlib's functions are loops over bags that grow a sequence.

Only deployed models contain them, see `partitioning/slow_functions.py`. Each row is added to its bag by ScatterElements, which runs
through the rows in order, as PyTorch does. Rejected: blocks padded to the longest bag, which have no bound in memory, and ScatterND,
whose reductions lose rows when ONNX Runtime has several threads.
"""

from __future__ import annotations

from typing import Any

import torch

from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.basics import op, torch_op
from ortlens.backend.conversion.functions.indexing import not_from_the_end

_aten = torch.ops.aten
_SUM, _MEAN = 0, 1


@torch_op(_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default, _aten.embedding_bag.default)
def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[Any]:
    """`aten._embedding_bag`; only its first output, the others serve the backward."""
    del scale_grad_by_freq, sparse  # they concern gradients
    ids, starts = (basics.typed(op.Cast(value, to=basics.INT64), basics.INT64, value) for value in (indices, offsets))
    ids = not_from_the_end(ids)
    per_row = [ids] if per_sample_weights is None else [ids, per_sample_weights]
    if include_last_offset:
        end = op.Slice(starts, op.Constant(value_ints=[-1]), op.Shape(starts))
        starts = op.Slice(starts, op.Constant(value_ints=[0]), op.Constant(value_ints=[-1]))
        per_row = [op.Slice(value, op.Constant(value_ints=[0]), end) for value in per_row]
    per_row.append(_bag_of_each(per_row[0], starts))
    if padding_idx >= 0:
        kept = op.Not(op.Equal(per_row[0], op.Constant(value_int=padding_idx)))
        per_row = [op.Compress(value, kept, axis=0) for value in per_row]
    rows = op.Gather(weight, per_row[0])
    rows = op.Cast(rows, to=basics.FLOAT) if basics.is_half(weight) else rows
    if per_sample_weights is not None:
        rows = op.Mul(rows, op.Unsqueeze(op.CastLike(per_row[1], rows), op.Constant(value_ints=[1])))
    made = _sums(rows, per_row[-1], starts, mean=mode == _MEAN) if mode in (_SUM, _MEAN) else _maxima(rows, per_row[-1], starts)
    return [op.CastLike(made, weight)]


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
