"""What the ONNX functions share: the operator set, element types, typed constants, torch's registry, and when a sum is long.

ONNX Runtime adds 32-bit floats one after the other, so that the error grows with their number: the mean of 4 million numbers is off in the
third digit. PyTorch adds in pairs. Here, a long reduction is done dimension by dimension, and what is long within one dimension in float64.
A symbolic size is compared with the limit as Dynamo's graph is traced: the first call that crosses it makes a new graph. A program serves
all sizes, so there a symbolic one is taken for long.
"""

from __future__ import annotations

import contextvars
import functools
import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import onnxscript
import torch
from torch.fx.experimental.symbolic_shapes import guard_or_true, statically_known_true

from ortlens import _torch
from ortlens._process import with_value
from ortlens.backend.basis import dtypes
from ortlens.backend.operators.facts import FACTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager


FLOAT, UINT8, INT32, INT64, BOOL, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 6, 7, 9, 10, 11, 16
"""Element types as `onnx.TensorProto` numbers them."""

FLOATS = (FLOAT, FLOAT16, DOUBLE, BFLOAT16)


class NotConvertibleError(NotImplementedError):
    """A function has no ONNX form for these arguments; the text is the reason that users read."""


op: Any = onnxscript.opset18
"""The operator set of the functions; its annotations are about scripts, and these functions are traced with symbolic values."""

device_type: contextvars.ContextVar[str] = contextvars.ContextVar("device_type", default="cpu")
"""The type of device on which the node that is being converted computes."""


def registered(target: Any) -> Callable[..., Any]:
    """Find the function of torch's registry that one of ours replaces."""
    function: Callable[..., Any] = _torch.shared_registry().get_decomps(target)[0].onnx_function
    return function


def own(target: Any) -> Callable[..., Any]:
    """Find our own function of another operator, of whichever family it is."""
    return FACTS[target].function  # type: ignore[return-value]  # a family names only operators that have one


def is_float(x: Any) -> bool:
    """Tell whether a value is known to have a floating-point element type, and so may be NaN."""
    return x.dtype is not None and int(x.dtype) in FLOATS


def is_half(x: Any) -> bool:
    """Tell whether a value is known to have 16-bit floats."""
    return x.dtype is not None and int(x.dtype) in (FLOAT16, BFLOAT16)


def is_value(x: Any) -> bool:
    """Tell whether an argument is computed by the model, as a tensor or a symbolic size, and is not known to the converter."""
    return x is not None and not isinstance(x, (bool, int, float, str, list, tuple))


def number(like: Any, value: Any) -> Any:
    """Convert a number to the element type of a tensor, without a detour through float32; a Python number becomes a constant."""
    if is_value(value):
        same = value.dtype is not None and like.dtype is not None and int(value.dtype) == int(like.dtype)
        return value if same else op.CastLike(value, like)
    kind = int(like.dtype)
    return dtypes.constant(value if is_float(like) else bool(value) if kind == BOOL else int(value), kind)


def scaled(x: Any, factor: Any, like: Any) -> Any:
    """Multiply a value by a factor of the type of `like`, unless the factor is known to be 1."""
    return x if not is_value(factor) and factor == 1 else op.Mul(x, number(like, factor))


def alike(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Return two operands, of which one may be a number, in one element type, and a value of that type."""
    like = x if is_value(x) else y
    return number(like, x), number(like, y), like


def typed(made: Any, dtype: int, like: Any) -> Any:
    """Set the type, and the shape of `like`, on an intermediate value, which the functions read; return it."""
    made.dtype, made.shape = type(like.dtype)(dtype), like.shape
    return made


def unless(wrong: Any, value: Any) -> Any:
    """Return a value bit for bit; the run fails if `wrong` holds, so that PyTorch computes the partition and raises its own error."""
    made = _item(value, op.Cast(wrong, to=INT64))
    made.dtype, made.shape = value.dtype, value.shape
    return made


def _item(value: Any, place: Any) -> Any:
    return op.Gather(op.Unsqueeze(value, op.Constant(value_ints=[0])), place)


def filled(x: Any, value: Any, axes: Sequence[int] | None, *, keepdim: bool) -> Any:
    """Fill the shape of a reduction of `x` over `axes` (None for all) with a value, in the element type of `x`."""
    rank = len(x.shape)
    reduced = set(range(rank)) if axes is None else {axis % rank for axis in axes}
    kept = [axis for axis in range(rank) if axis not in reduced]
    shape = op.Gather(op.Shape(x), op.Constant(value_ints=kept)) if kept else op.Constant(value_ints=[1])
    made = op.Expand(number(x, value), shape)
    if not kept:
        return op.Reshape(made, op.Constant(value_ints=[1] * rank)) if keepdim else op.Squeeze(made)
    return op.Unsqueeze(made, op.Constant(value_ints=sorted(reduced))) if keepdim and reduced else made


_WIDE = "ortlens.wide"
"""Key in `meta` of a 16-bit value: the float32 that it was converted from, for operators that compute in float32 as well."""


def in_float32(function: Callable[..., Any], *, jumps: bool = False) -> Callable[..., Any]:
    """Let a function compute in float32 for 16-bit floats, as PyTorch's kernels do, so that it rounds once.

    Its tensors and its result have one element type. If it `jumps`, rounding to whole numbers, it has to read rounded values.
    """

    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        halves = [arg for arg in args if is_value(arg) and is_half(arg)]
        if not halves:
            return function(*args, **kwargs)
        wide = [_widened(arg, jumps=jumps) if any(arg is half for half in halves) else arg for arg in args]
        return _narrowed(function(*wide, **kwargs), halves[0])

    return computed


def _widened(x: Any, *, jumps: bool) -> Any:
    """Convert to float32, or take the value it was converted from, which saves a conversion and a rounding, unless something `jumps`."""
    wide = None if jumps else x.meta.get(_WIDE)
    return typed(op.Cast(x, to=FLOAT) if wide is None else wide, FLOAT, x)


def _narrowed(wide: Any, like: Any) -> Any:
    made = op.Cast(wide, to=int(like.dtype))
    made.meta[_WIDE] = wide
    return made


def stays_wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function go on in float32 where its operand was computed so: when that, or a number, is rounded must not matter to it."""
    wide = in_float32(function)

    @functools.wraps(function)
    def computed(x: Any, *args: Any, **kwargs: Any) -> Any:
        return (wide if is_value(x) and _WIDE in x.meta else function)(x, *args, **kwargs)

    return computed


def with_exact_numbers(function: Callable[..., Any], *, jumps: bool = False) -> Callable[..., Any]:
    """Let a function of a tensor first compute in float32 where 16-bit floats meet another number, which PyTorch keeps in float32."""

    @functools.wraps(function)
    def computed(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_value(x) or not is_half(x) or not any(_is_wider(x, arg) for arg in (*args, *kwargs.values())):
            return function(x, *args, **kwargs)
        wide = [_widened(arg, jumps=jumps) if is_value(arg) else arg for arg in (x, *args)]
        return _narrowed(function(*wide, **kwargs), x)

    return computed


def kept_half(x: Any) -> Any:
    """Keep 16-bit floats rounded for the next operator, as kernels of PyTorch do that compute in them; see `optimize`."""
    return _item(x, op.Constant(value_int=0)) if is_half(x) else x


def rounded_step(value: Any, like: Any) -> Any:
    """Round a step as a 16-bit kernel does, with the element type of `like`; see `kept_half`."""
    value.dtype = like.dtype
    return kept_half(value)


def _is_wider(x: Any, arg: Any) -> bool:
    """Tell whether an argument is a number that the 16-bit element type of a tensor does not hold, or may be one."""
    if is_value(arg):
        return arg.dtype is None or int(arg.dtype) != int(x.dtype)
    return isinstance(arg, (int, float)) and dtypes.nearest(arg, int(x.dtype)) != arg


def size_vector(sizes: Sequence[Any]) -> Any:
    """Make one int64 vector of sizes: known sizes become one constant per run, concatenated with the symbolic sizes."""
    parts: list[Any] = []
    known: list[int] = []
    for size in sizes:
        if isinstance(size, int):
            known.append(size)
            continue
        if known:
            parts.append(op.Constant(value_ints=ir.AttrInt64s("value_ints", known)))
        known = []
        parts.append(op.Reshape(op.Cast(size, to=INT64), op.Constant(value_ints=[-1])))
    if known or not parts:
        parts.append(op.Constant(value_ints=ir.AttrInt64s("value_ints", known)))
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)


LARGEST_INDEX = {INT64: 2**63 - 1, INT32: 2**31 - 1}
"""Element type of indices -> what is out of range for any dimension."""


def not_from_the_end(index: Any) -> Any:
    """Put negative indices out of range for any dimension, among them the least of all, which NaN is converted to.

    In 64 bits, one operator does it: without bit 62, all of -1 to -2**62 are far below any dimension. The price is an index from 2**62 on,
    which is taken for the one that is 2**62 less. To compare and choose instead takes 0.9 us more of the 6 us of one row.

    On CUDA, where PyTorch ends the process' use of the device for such an index, ONNX Runtime does not look: it counts negative ones from
    the end, and would write outside of the tensor for one out of range. It has no kernel of BitwiseAnd there either.
    """
    if device_type.get() == "cuda" or index.dtype is None or int(index.dtype) not in LARGEST_INDEX:
        return index
    kind = int(index.dtype)
    if kind == INT64:
        return typed(op.BitwiseAnd(index, number(index, ~(1 << 62))), kind, index)
    return typed(op.Where(op.Less(index, number(index, 0)), number(index, LARGEST_INDEX[kind]), index), kind, index)


LONG = 4096
"""Elements from which a sum across memory is staged; up to here, equal addends are off by 3e-5 at most."""
LONG_IN_ROW = 32768
"""The same for the innermost dimensions, where ONNX Runtime adds with several accumulators."""
NARROW = (torch.float32, torch.float16, torch.bfloat16)
_SERVES_ALL_SIZES = contextvars.ContextVar("serves_all_sizes", default=False)


def is_long(x: torch.Tensor, dims: Sequence[int]) -> bool:
    """Tell whether a reduction is staged; False for usual sizes, and for element types that are added exactly enough."""
    if x.dtype not in NARROW or not dims:
        return False
    axes = {dim % x.dim() for dim in dims}
    trailing = axes == set(range(x.dim() - len(axes), x.dim()))
    count = math.prod(x.shape[axis] for axis in axes)
    if len(axes) > 1 and not isinstance(count, int):
        return True  # stages cost little, a guard on a product of sizes would cost graphs
    return is_more(count, LONG_IN_ROW if trailing else LONG)


def for_all_sizes() -> AbstractContextManager[None]:
    """Decompose for whatever size comes, without guards: no other graph is made for a size that is not as in tracing."""
    return with_value(_SERVES_ALL_SIZES, value=True)


def serves_all_sizes() -> bool:
    """Tell whether a graph is decomposed for whatever size comes."""
    return _SERVES_ALL_SIZES.get()


def is_more(count: Any, limit: int) -> bool:
    """Tell whether a size exceeds a limit; one that is known at run time only does."""
    if isinstance(count, int):
        return count > limit
    if _SERVES_ALL_SIZES.get():
        return not statically_known_true(count <= limit)
    return bool(guard_or_true(count > limit))


def reduced_dims(x: torch.Tensor, dim: Any) -> list[int]:
    """List the dimensions that a reduction names, from the outermost; all if it names none."""
    given = [dim] if isinstance(dim, int) else list(dim or ())
    return sorted(axis % x.dim() for axis in given) if given and x.dim() else list(range(x.dim()))


def count_of(x: torch.Tensor, axes: Sequence[int]) -> Any:
    """Count the numbers that make one result."""
    return math.prod(x.shape[axis] for axis in axes)
