"""Operators that only change shapes, splits, and tensors that are made of numbers.

The registry's functions make a constant and a cast for every size, which the optimiser then folds. Here, known sizes become one
constant at once. This saves a quarter of the time for converting a transformer.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true

from ortlens import _torch
from ortlens.backend.basis import dtypes
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op, size_vector
from ortlens.backend.operators.facts import STAYS, Call, decomposes, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_END = sys.maxsize


@torch_op(_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)
def view(self: Any, size: Sequence[Any]) -> Any:
    """`aten.view`, `aten._unsafe_view` and `aten.reshape`."""
    may_be_empty = any(not isinstance(part, int) or part == 0 for part in size)
    return op.Reshape(self, size_vector(size), allowzero=int(may_be_empty))


@torch_op(_aten.expand.default)
def expand(self: Any, size: Sequence[Any], implicit: bool = False) -> Any:
    """`aten.expand`; PyTorch keeps a size given as -1, ONNX one given as 1."""
    del implicit  # whether the user or PyTorch's broadcasting expands makes no difference
    return op.Expand(self, size_vector([1 if isinstance(part, int) and part == -1 else part for part in size]))


@torch_op(_aten.slice.Tensor)
def slice_(self: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    """`aten.slice.Tensor`; ONNX clamps bounds and treats negative ones as PyTorch does."""
    bounds = [size_vector([0 if start is None else start]), size_vector([_END if end is None else end])]
    return op.Slice(self, *bounds, size_vector([dim]), size_vector([1 if step is None else step]))


@torch_op(_aten.copy.default)
def copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """`aten.copy`: the source, in the dtype and shape of what it is written to."""
    del non_blocking  # says when, not what
    made = basics.registered(_aten.copy.default)(self, src)
    return made if list(self.shape) == list(src.shape) else op.Expand(made, op.Shape(self))


@torch_op(_aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: Any, output_size: Any = None) -> Any:
    """`aten.repeat_interleave.Tensor`: the index of each repeated element. The run fails on negative repeats, and on another sum."""
    made = basics.registered(_aten.repeat_interleave.Tensor)(repeats)
    if output_size is None:
        return made
    wide = op.Cast(repeats, to=basics.INT64)
    negative = op.ReduceSum(op.Cast(op.Less(wide, op.Constant(value_int=0)), to=basics.INT64), keepdims=0)
    differs = op.Not(op.Equal(op.ReduceSum(wide, keepdims=0), op.Squeeze(size_vector([output_size]))))
    made.dtype = type(repeats.dtype)(basics.INT64)
    return basics.unless(op.Add(negative, op.Cast(differs, to=basics.INT64)), made)


@torch_op(_aten.squeeze.dims)
def squeeze_dims(self: Any, dim: Sequence[int]) -> Any:
    """`aten.squeeze.dims`; keeps dimensions larger than 1, for which ONNX would raise."""
    single = [d for d in dim if self.shape is None or self.shape[d] == 1]
    return op.Squeeze(self, _vector(single)) if single else op.Identity(self)


@torch_op(_aten.cat.default)
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """`aten.cat`; PyTorch leaves out vectors of no elements, whatever the rank of the others."""
    joined = [tensor for tensor in tensors if list(tensor.shape) != [0]]
    return basics.registered(_aten.cat.default)(joined, dim) if joined else op.Identity(tensors[-1])


@torch_op(_aten.select_scatter.default)
def select_scatter(self: Any, src: Any, dim: int, index: Any) -> Any:
    """`aten.select_scatter`, at a known index as one concatenation: ScatterElements takes some twenty times as long."""
    size = self.shape[dim]
    if not isinstance(index, int) or not isinstance(size, int):
        return basics.registered(_aten.select_scatter.default)(self, src, dim, index)
    return _with_part(self, op.Unsqueeze(src, _vector([dim])), dim, index % size, index % size + 1)


@torch_op(_aten.slice_scatter.default)
def slice_scatter(self: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    """`aten.slice_scatter`, of neighbours at known places as one concatenation."""
    size = self.shape[dim]
    if step != 1 or not all(isinstance(number, int) for number in (size, 0 if start is None else start, 0 if end is None else end)):
        return basics.registered(_aten.slice_scatter.default)(self, src, dim, start, end, step)
    return _with_part(self, src, dim, *slice(start, end).indices(size)[:2])


def _with_part(whole: Any, part: Any, dim: int, start: int, end: int) -> Any:
    """Put a part, which is not empty, in the place of another."""
    ahead = [slice_(whole, dim, 0, start)] if start else []
    behind = [slice_(whole, dim, end)] if end < whole.shape[dim] else []
    return op.Concat(*ahead, part, *behind, axis=dim)


@torch_op(_aten.diagonal.default, _aten.diagonal_copy.default)
def diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """`aten.diagonal`: picks its elements. The registry's multiplies by a mask and adds up, so that any NaN or infinity beside it shows."""
    rank = len(self.shape)
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


@torch_op(_aten.split_with_sizes.default)
def split_with_sizes(x: Any, split_sizes: Sequence[Any], dim: int = 0) -> Sequence[Any]:
    """`aten.split_with_sizes` without an ONNX sequence, on which the optimiser fails for symbolic sizes."""
    parts = op.Split(x, split_sizes, axis=dim, num_outputs=len(split_sizes))  # the recorder needs the number of outputs
    parts = parts if isinstance(parts, list | tuple) else [parts]
    parts[0].producer().attributes.pop("num_outputs")  # ONNX accepts the sizes or their number, not both
    return list(parts)


@torch_op(_aten.roll.default)
def roll(self: Any, shifts: Any, dims: Sequence[int] = ()) -> Any:
    """`aten.roll`, also by a number that is known at run time only."""
    amounts = list(shifts) if isinstance(shifts, (list, tuple)) else [shifts]
    if not any(basics.is_value(amount) for amount in amounts):
        return basics.registered(_aten.roll.default)(self, amounts, dims)
    if not len(self.shape) or 0 in list(self.shape):
        return op.Identity(self)
    made = self if dims else op.Reshape(self, _vector([-1]))
    for amount, dim in zip(amounts, dims or (0,), strict=True):
        size = op.Gather(op.Shape(made), _vector([dim % max(len(self.shape), 1)])) if dims else op.Shape(made)
        start = op.Mod(op.Neg(size_vector([amount])), size)  # with the sign of the size; a dimension of size 0 never comes here
        made = op.Concat(op.Slice(made, start, size, _vector([dim])), op.Slice(made, _vector([0]), start, _vector([dim])), axis=dim)
    return made if dims else op.Reshape(made, op.Shape(self))


def _scalar(number: int) -> Any:
    return op.Constant(value_int=number)


def _vector(numbers: Sequence[int]) -> Any:
    return op.Constant(value_ints=ir.AttrInt64s("value_ints", list(numbers)))


@torch_op(torch.ops.prims.collapse.default)
def collapse(x: Any, start: int, end: int) -> Any:
    """Make one of the dimensions from `start` to `end`, both included."""
    sizes = list(x.shape)
    if not all(isinstance(size, int) for size in sizes):
        raise basics.NotConvertibleError("the collapsed sizes are known at run time only")
    return op.Reshape(x, size_vector([*sizes[:start], math.prod(sizes[start : end + 1]), *sizes[end + 1 :]]), allowzero=1)


torch_op(torch.ops.prims.rev.default)(lambda x, dims: basics.registered(_aten.flip.default)(x, list(dims)))

_MANY = 1 << 16  # longer ranges are not put into the model as constants


@torch_op(_aten.arange.start, _aten.arange.start_step)
def arange(start: Any, end: Any, step: Any = 1, dtype: Any = None, **more: Any) -> Any:
    """`aten.arange`; of floats, ONNX Runtime's Range rounds their count otherwise, and adds the step again and again."""
    numbers = tuple(int(number) if isinstance(number, bool) else number for number in (start, end, step))  # PyTorch counts with bools
    given = dtype not in (None, -1)
    wanted = int(dtype) if given else basics.FLOAT
    whole = all(not basics.is_float(number) if basics.is_value(number) else isinstance(number, int) for number in numbers)
    if whole:
        return basics.registered(_aten.arange.start_step)(*numbers, **({"dtype": dtype} if given else {}), **more)
    known = not any(basics.is_value(number) for number in numbers)
    if wanted not in basics.FLOATS:
        if not known:
            raise basics.NotConvertibleError("a range of whole numbers between fractions is known at run time only")
        return _constant(torch.arange(*numbers, dtype=_TORCH_DTYPES[wanted]))
    if not known:
        return op.Cast(_multiples(*(_double(number) for number in numbers)), to=wanted)
    return op.Cast(_constant(torch.arange(*numbers, dtype=torch.float64)), to=wanted)


_TORCH_DTYPES = {types.onnx: dtype for dtype, types in dtypes.ELEMENT_TYPES.items()}


def _double(number: Any) -> Any:
    return op.Cast(number, to=basics.DOUBLE) if basics.is_value(number) else _constant(torch.tensor(number, dtype=torch.float64))


def _multiples(start: Any, end: Any, step: Any) -> Any:
    """Compute `start + i * step` in float64, for as many `i` as fit."""
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    count = op.Cast(op.Ceil(op.Div(op.Sub(end, start), step)), to=basics.INT64)
    return op.Add(start, op.Mul(op.Cast(op.Range(zero, count, one), to=basics.DOUBLE), step))


def _window_of(make: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Make a window as PyTorch does: ONNX has other factors for a Hamming window, and no ones for a window of length 1."""

    def window(window_length: Any, dtype: Any = None, **_: Any) -> Any:
        if not isinstance(window_length, int):
            raise basics.NotConvertibleError(f"the length of a {make.__name__} is known at run time only")
        wanted = basics.FLOAT if dtype in (None, -1) else int(dtype)
        return op.Cast(_constant(make(window_length, dtype=torch.float64)), to=wanted)

    return window


@torch_op(_aten.full.default)
def full(size: Sequence[Any], fill_value: Any, dtype: Any = None, **_: Any) -> Any:
    """`aten.full`; the registry's function rounds the number to float32."""
    kind = {bool: basics.BOOL, int: basics.INT64}.get(type(fill_value), basics.FLOAT)
    if dtype in (None, -1) and basics.is_value(fill_value):
        kind = basics.INT64  # a symbolic integer; symbolic floats stay in PyTorch
    wanted = kind if dtype in (None, -1) else int(dtype)
    return op.Expand(_number(fill_value, ir.DataType(wanted)), size_vector(size))


@torch_op(_aten.fill.Scalar, _aten.full_like.default)
def full_like(self: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Any:
    """`aten.full_like` and `aten.fill` with a number."""
    return op.Expand(_number(fill_value, _type_like(self, dtype)), op.Shape(self))


@torch_op(_aten.new_full.default)
def new_full(self: Any, size: Sequence[Any], fill_value: Any, dtype: Any = None, **_: Any) -> Any:
    return op.Expand(_number(fill_value, _type_like(self, dtype)), size_vector(size))


def _type_like(tensor: Any, dtype: Any) -> Any:
    return tensor.dtype if dtype in (None, -1) else type(tensor.dtype)(int(dtype))


def _number(value: Any, dtype: Any) -> Any:
    if basics.is_value(value):
        return op.Cast(value, to=int(dtype))
    exact = bool(value) if int(dtype) == basics.BOOL else value if int(dtype) in basics.FLOATS else int(value)
    return op.Constant(value=ir.tensor(exact, dtype=dtype))


@torch_op(_aten.linspace.default)
def linspace(start: Any, end: Any, steps: Any, dtype: Any = None, **more: Any) -> Any:
    """`aten.linspace`; between known numbers a constant, which PyTorch computes."""
    given = dtype not in (None, -1)
    wanted = int(dtype) if given else basics.FLOAT
    if any(basics.is_value(number) for number in (start, end, steps)) or steps > _MANY:
        return basics.registered(_aten.linspace.default)(start, end, steps, **({"dtype": dtype} if given else {}), **more)
    return _constant(torch.linspace(start, end, steps, dtype=_TORCH_DTYPES[wanted]))


def _constant(values: torch.Tensor) -> Any:
    return op.Constant(value=ir.tensor(values.numpy()))


torch_op(_aten.arange.default)(lambda end, **more: arange(0, end, **more))
torch_op(_aten.blackman_window.default)(_window_of(torch.blackman_window))
torch_op(_aten.hamming_window.default)(_window_of(torch.hamming_window))
torch_op(_aten.hann_window.default)(_window_of(torch.hann_window))


@torch_op(torch.ops.prims.iota.default)
def iota(length: Any, *, start: Any, step: Any, dtype: int, **_: Any) -> Any:
    first, gap, many = (op.Squeeze(size_vector([number])) for number in (start, step, length))
    return op.Cast(op.Range(first, op.Add(first, op.Mul(gap, many)), gap), to=int(dtype))


@decomposes(_aten.squeeze.dim)
def _squeeze_dim(tensor: torch.Tensor, dim: int) -> Any:
    """Drop a dimension only if its size is 1: PyTorch ignores a squeeze of another one, ONNX refuses it."""
    return _squeeze_dims(tensor, [dim])


@decomposes(_aten.squeeze.dims)
def _squeeze_dims(tensor: torch.Tensor, dim: Sequence[int]) -> Any:
    if any(map(facts.is_known_at_run_time, tensor.shape)):
        return STAYS
    kept = [d for d in dim if tensor.dim() and guard_or_false(tensor.shape[d] == 1)]
    if len(kept) == len(dim) or len({d % max(tensor.dim(), 1) for d in dim}) < len(dim):  # PyTorch refuses the same dimension twice
        return STAYS
    return _aten.squeeze.dims(tensor, kept) if kept else _aten.alias.default(tensor)


@decomposes(_aten.split.Tensor)
def _split(tensor: torch.Tensor, split_size: int, dim: int = 0) -> Any:
    """Split with one size per chunk where the size is known only at run time: ONNX would make a sequence of unknown length.

    The number of chunks is known, because the graph has a node for each. Where there is nothing to split, PyTorch makes one chunk, ONNX
    Runtime none; it also ends the process where the chunks have no elements.
    """
    whole: Any = tensor.shape[dim]
    if isinstance(whole, int) and not whole:
        return _aten.split_with_sizes.default(tensor, [0], dim)
    if isinstance(split_size, int) and isinstance(whole, int):
        return STAYS
    count = int((whole + split_size - 1) // split_size)  # fixes the count; the size stays symbolic
    sizes = [split_size] * (count - 1) + [whole - split_size * (count - 1)]
    return _aten.split_with_sizes.default(tensor, sizes, dim)


@decomposes(_aten.copy.default)
def _copy(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    """Write out the broadcast of a copy's source: torchlib's function returns the source in its own shape."""
    sizes = zip(tensor.shape, source.shape, strict=False)
    if tensor.dim() == source.dim() and all(statically_known_true(wanted == given) for wanted, given in sizes):
        return STAYS
    return _aten.copy.default(tensor, source.expand(tensor.shape), non_blocking)


@decomposes(_aten.block_diag.default)
def _block_diag(tensors: Sequence[torch.Tensor]) -> Any:
    """Decompose as torch does, in the dtype of the kernel: the decomposition makes no difference between a number and a row of one."""
    kinds = ([tensor.dtype for tensor in tensors if tensor.dim()], [tensor.dtype for tensor in tensors if not tensor.dim()])
    whole, single = (functools.reduce(torch.promote_types, kind) if kind else None for kind in kinds)
    dtype = whole or single
    if whole is not None and single is not None:
        dtype = torch.result_type(torch.empty((1,), dtype=whole), torch.empty((), dtype=single))
    return _torch.decomposition_of(_aten.block_diag.default)([tensor.to(dtype) for tensor in tensors])


def _takes_a_dimension_twice(call: Call) -> bool:
    given: Any = call.node.args[1]
    value, dims = call.tensor(0), [dim for dim in given if isinstance(dim, int)]
    return value is not None and len({dim % max(value.dim(), 1) for dim in dims}) < len(dims)


_RANGES = (_aten.arange.default, _aten.arange.start, _aten.arange.start_step)
facts.needs_known(*(_aten.blackman_window.default, _aten.hamming_window.default, _aten.hann_window.default), argument="window_length")
facts.wrong(_aten.flip.default, reason="fails for tensors without dimensions", when=facts.is_number)
facts.wrong(
    _aten.repeat_interleave.Tensor,
    reason="gives nothing for no repeats, whatever size is asked for",
    when=facts.may_lack_elements("repeats"),
)
facts.wrong(*_RANGES, reason=f"takes booleans{facts.REFUSED}", when=facts.makes_booleans)
facts.wrong(_aten.squeeze.dims, reason=f"takes a dimension twice{facts.REFUSED}", when=_takes_a_dimension_twice)
for _target in (
    *(_aten.copy.default, _aten.fill.Scalar, _aten.fill.Tensor, _aten.zeros_like.default, _aten.ones_like.default),
    *(_aten.full_like.default, _aten.empty_like.default, _aten.new_zeros.default, _aten.new_ones.default),
    *(_aten.new_full.default, _aten.new_empty.default),
):
    facts.FACTS[_target].reads_sizes_alone = True
facts.leaves(_aten.diag_embed.default, when=facts.is_large_on_cpu)
# One thread, 64 x 1024: PyTorch 111 ms, Where 151 ms.
facts.slow(_aten.diag_embed.default, reason="PyTorch writes the diagonal alone, ONNX Runtime chooses each number, in 1.4 times as long")
