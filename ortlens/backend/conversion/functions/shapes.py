"""Operators that only change shapes, and splits.

The registry's functions make a constant and a cast for every size, which the optimiser then folds. Here, known sizes become one
constant at once. This saves a quarter of the time for converting a transformer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_END = sys.maxsize


def view(self: Any, size: Sequence[Any]) -> Any:
    """`aten.view`, `aten._unsafe_view` and `aten.reshape`."""
    may_be_empty = any(not isinstance(part, int) or part == 0 for part in size)
    return basics.opset().Reshape(self, size_vector(size), allowzero=int(may_be_empty))


def expand(self: Any, size: Sequence[Any], implicit: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's
    """`aten.expand`; PyTorch keeps a size given as -1, ONNX one given as 1."""
    del implicit  # whether the user or PyTorch's broadcasting expands makes no difference
    return basics.opset().Expand(self, size_vector([1 if isinstance(part, int) and part == -1 else part for part in size]))


def slice_(self: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    """`aten.slice.Tensor`; ONNX clamps bounds and treats negative ones as PyTorch does."""
    bounds = [size_vector([0 if start is None else start]), size_vector([_END if end is None else end])]
    return basics.opset().Slice(self, *bounds, size_vector([dim]), size_vector([1 if step is None else step]))


def copy(self: Any, src: Any, non_blocking: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's
    """`aten.copy`: the source, in the dtype and shape of what it is written to."""
    del non_blocking  # says when, not what
    op = basics.opset()
    made = basics.registered(_aten.copy.default)(self, src)
    return made if list(self.shape) == list(src.shape) else op.Expand(made, op.Shape(self))


def repeat_interleave(repeats: Any, output_size: Any = None) -> Any:
    """`aten.repeat_interleave.Tensor`: the index of each repeated element. The run fails on negative repeats, and on another sum."""
    op, made = basics.opset(), basics.registered(_aten.repeat_interleave.Tensor)(repeats)
    if output_size is None:
        return made
    wide = op.Cast(repeats, to=basics.INT64)
    negative = op.ReduceSum(op.Cast(op.Less(wide, op.Constant(value_int=0)), to=basics.INT64), keepdims=0)
    differs = op.Not(op.Equal(op.ReduceSum(wide, keepdims=0), op.Squeeze(size_vector([output_size]))))
    made.dtype = type(repeats.dtype)(basics.INT64)
    return basics.unless(op.Add(negative, op.Cast(differs, to=basics.INT64)), made)


def squeeze_dims(self: Any, dim: Sequence[int]) -> Any:
    """`aten.squeeze.dims`; keeps dimensions larger than 1, for which ONNX would raise."""
    single = [d for d in dim if self.shape is None or self.shape[d] == 1]
    return basics.opset().Squeeze(self, _vector(single)) if single else basics.opset().Identity(self)


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """`aten.cat`; PyTorch leaves out vectors of no elements, whatever the rank of the others."""
    joined = [tensor for tensor in tensors if list(tensor.shape) != [0]]
    return basics.registered(_aten.cat.default)(joined, dim) if joined else basics.opset().Identity(tensors[-1])


def diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """`aten.diagonal`: picks its elements. The registry's multiplies by a mask and adds up, so that any NaN or infinity beside it shows."""
    op, rank = basics.opset(), len(self.shape)
    first, second = dim1 % rank, dim2 % rank
    others = [axis for axis in range(rank) if axis not in (first, second)]
    rows, columns = (op.Gather(op.Shape(self), _vector([axis])) for axis in (first, second))
    count = op.Mul(rows, columns)
    kept = op.Concat(op.Gather(op.Shape(self), _vector(others)), count, axis=0) if others else count
    flat = op.Reshape(op.Transpose(self, perm=[*others, first, second]), kept, allowzero=1)
    below, right = _vector([max(-offset, 0)]), _vector([max(offset, 0)])
    length = op.Max(op.Min(op.Sub(rows, below), op.Sub(columns, right)), _vector([0]))
    numbers = op.Range(_scalar(0), op.Squeeze(length), _scalar(1))
    start, step = op.Add(op.Mul(below, columns), right), op.Add(columns, _vector([1]))
    return op.Gather(flat, op.Add(start, op.Mul(numbers, step)), axis=len(others))


def split_with_sizes(x: Any, split_sizes: Sequence[Any], dim: int = 0) -> Sequence[Any]:
    """`aten.split_with_sizes` without an ONNX sequence, on which the optimiser fails for symbolic sizes."""
    parts = basics.opset().Split(x, split_sizes, axis=dim, num_outputs=len(split_sizes))  # the recorder needs the number of outputs
    parts = parts if isinstance(parts, list | tuple) else [parts]
    parts[0].producer().attributes.pop("num_outputs")  # ONNX accepts the sizes or their number, not both
    return list(parts)


def size_vector(sizes: Sequence[Any]) -> Any:
    """Make one int64 vector of sizes: known sizes become one constant per run, concatenated with the symbolic sizes."""
    op = basics.opset()
    parts: list[Any] = []
    known: list[int] = []
    for size in sizes:
        if isinstance(size, int):
            known.append(size)
            continue
        if known:
            parts.append(_vector(known))
        known = []
        parts.append(op.Reshape(op.Cast(size, to=basics.INT64), _vector([-1])))
    if known or not parts:
        parts.append(_vector(known))
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)


def roll(self: Any, shifts: Any, dims: Sequence[int] = ()) -> Any:
    """`aten.roll`, also by a number that is known at run time only."""
    amounts = list(shifts) if isinstance(shifts, (list, tuple)) else [shifts]
    if not any(basics.is_value(amount) for amount in amounts):
        return basics.registered(_aten.roll.default)(self, amounts, dims)
    op = basics.opset()
    if not len(self.shape) or 0 in list(self.shape):
        return op.Identity(self)
    made = self if dims else op.Reshape(self, _vector([-1]))
    for amount, dim in zip(amounts, dims or (0,), strict=True):
        size = op.Gather(op.Shape(made), _vector([dim % max(len(self.shape), 1)])) if dims else op.Shape(made)
        start = op.Mod(op.Neg(size_vector([amount])), size)  # with the sign of the size; a dimension of size 0 never comes here
        made = op.Concat(op.Slice(made, start, size, _vector([dim])), op.Slice(made, _vector([0]), start, _vector([dim])), axis=dim)
    return made if dims else op.Reshape(made, op.Shape(self))


def _scalar(number: int) -> Any:
    return basics.opset().Constant(value_int=number)


def _vector(numbers: Sequence[int]) -> Any:
    import onnx_ir as ir

    return basics.opset().Constant(value_ints=ir.AttrInt64s("value_ints", list(numbers)))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.repeat_interleave.Tensor: repeat_interleave,
    _aten.copy.default: copy,
    _aten.cat.default: cat,
    _aten.diagonal.default: diagonal,
    _aten.diagonal_copy.default: diagonal,
    _aten.view.default: view,
    _aten._unsafe_view.default: view,  # noqa: SLF001 - an operator's name
    _aten.reshape.default: view,
    _aten.expand.default: expand,
    _aten.slice.Tensor: slice_,
    _aten.roll.default: roll,
    _aten.squeeze.dims: squeeze_dims,
    _aten.split_with_sizes.default: split_with_sizes,
}
"""Op overload -> function."""
