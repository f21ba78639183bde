"""Reductions, running sums and running products.

ONNX Runtime ignores NaN in maxima and minima, PyTorch does not: a model whose values overflow would look correct. It adds 64-bit integers
as floats, which is exact up to 2**53 only. Its means of nothing raise, PyTorch's are NaN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import LONG, NARROW, count_of, is_long, is_more, op, reduced_dims
from ortlens.backend.operators.facts import STAYS, Call, decomposes, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten

_SMALL_INTEGERS = (2, 3, 4, 5, 6, 9)  # UINT8, INT8, UINT16, INT16, INT32, BOOL in onnx.TensorProto
_MANY = 1 << 20  # as many integers of 32 bits add up to less than 2**53


def _axes(x: Any, dim: Any) -> list[int] | None:
    """Return the dimensions to reduce; None for all."""
    given = [dim] if isinstance(dim, int) else list(dim or ())
    return given if given and len(x.shape) else None


def _reduce(name: str, x: Any, axes: Sequence[int] | None, *, keepdim: bool) -> Any:
    if x.shape is not None and 0 in list(x.shape):  # for which ONNX Runtime returns another shape
        return basics.filled(x, 1 if name == "ReduceProd" else 0, axes, keepdim=keepdim)
    reduce = getattr(op, name)
    return reduce(x, keepdims=int(keepdim)) if axes is None else reduce(x, op.Constant(value_ints=list(axes)), keepdims=int(keepdim))


def _count(x: Any, axes: Sequence[int] | None) -> int | None:
    """Count the elements that make one result; None if that is known at run time only."""
    sizes = [x.shape[axis] for axis in (range(len(x.shape)) if axes is None else axes)]
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None


def _cast(x: Any, dtype: int) -> Any:
    if dtype in (-1, int(x.dtype)):
        return x
    return basics.typed(op.Cast(x, to=dtype), dtype, x)


def _with_nan(x: Any, reduced: Any, axes: Sequence[int] | None, *, keepdim: bool) -> Any:
    """Make a maximum or minimum NaN where one of its elements was."""
    if not basics.is_float(x):
        return reduced
    marks = basics.typed(op.Cast(op.IsNaN(x), to=basics.FLOAT), basics.FLOAT, x)
    found = _reduce("ReduceMax", marks, axes, keepdim=keepdim)
    return op.Where(op.Cast(found, to=basics.BOOL), basics.number(x, math.nan), reduced)


def _extreme(name: str, x: Any, dim: Sequence[int], *, keepdim: bool) -> Any:
    if not len(x.shape):
        return op.Identity(x)
    axes = _axes(x, dim)
    if int(x.dtype) == basics.INT64:
        return _integer_extreme(x, axes, largest=name == "ReduceMax", keepdim=keepdim)
    wide = _cast(x, basics.INT64) if int(x.dtype) == basics.BOOL else x  # ONNX does not reduce bools
    return _with_nan(x, op.CastLike(_reduce(name, wide, axes, keepdim=keepdim), x), axes, keepdim=keepdim)


def _integer_extreme(x: Any, axes: Sequence[int] | None, *, largest: bool, keepdim: bool) -> Any:
    """Reduce 64-bit integers by TopK, which compares them whole; ReduceMax and ReduceMin compare a part of the bits."""
    rank = len(x.shape)
    every = sorted(range(rank) if axes is None else {axis % rank for axis in axes})
    if 0 in list(x.shape):
        return basics.filled(x, 0, axes, keepdim=keepdim)
    one = op.Constant(value_ints=[1])
    for axis in every:
        x, _ = op.TopK(x, one, axis=axis, largest=int(largest), sorted=0)
    return op.Identity(x) if keepdim else op.Squeeze(x, op.Constant(value_ints=every))


@torch_op(_aten.amax.default, _aten.max.default)
def amax(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """`aten.amax`; propagates NaN, as PyTorch does."""
    return _extreme("ReduceMax", x, dim, keepdim=keepdim)


@torch_op(_aten.amin.default, _aten.min.default)
def amin(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """`aten.amin`; propagates NaN, as PyTorch does."""
    return _extreme("ReduceMin", x, dim, keepdim=keepdim)


# Values and indices, of the first NaN if there is one.
torch_op(_aten.max.dim)(lambda x, dim, keepdim=False: (amax(x, (dim,), keepdim), basics.own(_aten.argmax.default)(x, dim, keepdim)))
torch_op(_aten.min.dim)(lambda x, dim, keepdim=False: (amin(x, (dim,), keepdim), basics.own(_aten.argmin.default)(x, dim, keepdim)))


@torch_op(_aten.any.default, _aten.any.dim, _aten.any.dims)
def any_(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """`aten.any`; false for nothing. Of uint8, the result is uint8."""
    return _truth(x, _some(op.Cast(x, to=basics.BOOL), x, dim, keepdim=keepdim))


@torch_op(_aten.all.default, _aten.all.dim, _aten.all.dims)
def all_(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """`aten.all`; true for nothing. Of uint8, the result is uint8."""
    return _truth(x, op.Not(_some(op.Not(op.Cast(x, to=basics.BOOL)), x, dim, keepdim=keepdim)))


def _some(truths: Any, x: Any, dim: Any, *, keepdim: bool) -> Any:
    if isinstance(dim, (list, tuple)) and not dim:
        return truths  # no dimension, where other reductions take all
    ones = basics.typed(op.Cast(truths, to=basics.FLOAT), basics.FLOAT, x)
    counted = _reduce("ReduceSum", ones, _axes(x, dim), keepdim=keepdim)
    return op.Cast(counted, to=basics.BOOL)


def _truth(x: Any, found: Any) -> Any:
    return op.Cast(found, to=basics.UINT8) if int(x.dtype) == basics.UINT8 else found


@torch_op(_aten.sum.dim_IntList, _aten.sum.default)
def sum_(x: Any, dim: Any = None, keepdim: bool = False, dtype: int = -1) -> Any:
    x = _cast(x, dtype)
    if not len(x.shape):
        return op.Identity(x)
    axes = _axes(x, dim)
    if int(x.dtype) == basics.INT64 and not _adds_exactly(x, axes):
        return _integer_sum(x, axes, keepdim=keepdim)
    if int(x.dtype) in _SMALL_INTEGERS:  # which wrap in their own type
        return op.CastLike(_integer_sum(_cast(x, basics.INT64), axes, keepdim=keepdim), x)
    return _reduce("ReduceSum", x, axes, keepdim=keepdim)


def _adds_exactly(x: Any, axes: Sequence[int] | None) -> bool:
    """Tell whether float64 holds the sum of 64-bit integers: they are few, and were made of smaller ones."""
    cast, count = x.producer(), _count(x, axes)
    if cast is None or cast.op_type != "Cast" or cast.inputs[0].dtype is None:
        return False
    source = int(cast.inputs[0].dtype)
    return source == basics.BOOL or (source in _SMALL_INTEGERS and count is not None and count < _MANY)


def _integer_sum(x: Any, axes: Sequence[int] | None, *, keepdim: bool) -> Any:
    """Add 64-bit integers in parts so small that ONNX Runtime adds each exactly; the sum of the parts wraps as PyTorch's does."""
    count = _count(x, axes)
    width = 32 if count is not None and count < _MANY else 16
    total, rest = None, x
    for shift in range(0, 64, width):
        last = shift + width == 64  # noqa: PLR2004 - bits
        part = rest if last else op.BitwiseAnd(rest, basics.number(x, (1 << width) - 1))
        part = basics.typed(part, basics.INT64, x)
        added = _reduce("ReduceSum", part, axes, keepdim=keepdim)
        scaled = added if not shift else op.Mul(added, basics.number(x, 1 << shift))
        total = scaled if total is None else op.Add(total, scaled)
        rest = rest if last else op.Div(op.Sub(rest, part), basics.number(x, 1 << width))
    return total


@torch_op(_aten.mean.dim, _aten.mean.default)
def mean(x: Any, dim: Any = None, keepdim: bool = False, dtype: int = -1) -> Any:
    """`aten.mean`; NaN for nothing."""
    x = _cast(x, dtype)
    if not len(x.shape):
        return op.Identity(x)
    axes = _axes(x, dim)
    if _count(x, axes):
        return _reduce("ReduceMean", x, axes, keepdim=keepdim)
    return op.Div(_reduce("ReduceSum", x, axes, keepdim=keepdim), _number_of(x, axes))


def _number_of(x: Any, axes: Sequence[int] | None) -> Any:
    count = _count(x, axes)
    if count is not None:
        return basics.number(x, count)
    sizes = op.Shape(x)
    chosen = sizes if axes is None else op.Gather(sizes, op.Constant(value_ints=[axis % len(x.shape) for axis in axes]))
    return op.CastLike(op.ReduceProd(chosen, keepdims=0), x)


def _spread_of(*, root: bool, center: bool) -> Callable[..., Any]:
    """Make the function of a variance or its root, in float64 as in PyTorch: that of a constant is 0, and squares do not overflow."""

    def spread(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        found, middle = _moments(_cast(x, basics.DOUBLE), dim, correction=correction, keepdim=keepdim)
        found = op.CastLike(op.Sqrt(found) if root else found, x)
        return (found, op.CastLike(middle, x)) if center else found

    return spread


torch_op(_aten.var.correction)(_spread_of(root=False, center=False))
torch_op(_aten.std.correction)(_spread_of(root=True, center=False))
torch_op(_aten.var_mean.correction)(_spread_of(root=False, center=True))
torch_op(_aten.std_mean.correction)(_spread_of(root=True, center=True))


def _moments(x: Any, dim: Any, *, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Return variance and mean; the variance is NaN where the correction leaves nothing to divide by."""
    axes = _axes(x, dim)
    center = mean(x, dim, keepdim=True) if len(x.shape) else op.Identity(x)
    away = op.Sub(x, center)
    squares = _reduce("ReduceSum", basics.typed(op.Mul(away, away), int(x.dtype), x), axes, keepdim=keepdim)
    spread = op.Div(squares, _left_over(x, axes, 1 if correction is None else correction))
    if keepdim or not len(x.shape):
        return spread, center
    every = op.Constant(value_ints=list(range(len(x.shape))) if axes is None else list(axes))
    return spread, op.Squeeze(center, every)


def _left_over(x: Any, axes: Sequence[int] | None, correction: Any) -> Any:
    count = _count(x, axes)
    if count is not None and not basics.is_value(correction):
        return basics.number(x, float(max(count - correction, 0)))
    count = _number_of(x, axes) if count is None else basics.number(x, float(count))
    nothing = op.CastLike(op.Constant(value_float=0.0), x)  # a constant of the model: Max takes a number beside typed values only
    return op.Max(op.Sub(count, basics.number(x, correction)), nothing)


@torch_op(_aten.prod.dim_int, _aten.prod.default)
def prod(x: Any, dim: int | None = None, keepdim: bool = False, dtype: int = -1) -> Any:
    """`aten.prod`; products of integers wrap."""
    x = _cast(x, dtype if dtype != -1 or basics.is_float(x) else basics.INT64)
    if not basics.is_float(x) and len(x.shape):
        return _integer_product(x, dim, keepdim=keepdim)
    return _reduce("ReduceProd", x, _axes(x, dim), keepdim=keepdim) if len(x.shape) else op.Identity(x)


def _integer_product(x: Any, dim: int | None, *, keepdim: bool) -> Any:
    """Multiply halves by each other until one element is left: ReduceProd multiplies integers as floats."""
    rank, sizes = len(x.shape), list(x.shape)
    if not all(isinstance(size, int) for size in sizes):
        raise basics.NotConvertibleError("multiplies a number of integers that is known at run time only")
    if 0 in sizes:
        return basics.filled(x, 1, _axes(x, dim), keepdim=keepdim)
    axis, left = (0, math.prod(sizes)) if dim is None else (dim % rank, sizes[dim])
    rest = op.Reshape(x, op.Constant(value_ints=[-1])) if dim is None else x
    while left > 1:
        half = left // 2
        bounds = [op.Constant(value_ints=[bound]) for bound in (0, half, 2 * half, left)]
        along = op.Constant(value_ints=[axis])
        product = op.Mul(op.Slice(rest, bounds[0], bounds[1], along), op.Slice(rest, bounds[1], bounds[2], along))
        rest = product if left % 2 == 0 else op.Concat(product, op.Slice(rest, bounds[2], bounds[3], along), axis=axis)
        left -= half
    return op.Identity(rest) if keepdim and dim is not None else op.Squeeze(rest, op.Constant(value_ints=[axis]))


@torch_op(_aten.linalg_vector_norm.default)
def vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: int = -1) -> Any:
    if basics.is_value(ord):
        raise basics.NotConvertibleError("the order of the norm is known at run time only")
    x = _cast(x, dtype)
    if basics.is_half(x):
        return op.CastLike(vector_norm(_cast(x, basics.FLOAT), ord, dim, keepdim), x)
    axes, size = _axes(x, dim), op.Abs(x)
    if math.isinf(ord):
        extreme = amax if ord > 0 else amin
        return extreme(basics.typed(size, int(x.dtype), x), axes or (), keepdim)
    if ord == 0:
        filled = op.CastLike(op.Not(op.Equal(x, basics.number(x, 0.0))), x)
        return _reduce("ReduceSum", basics.typed(filled, int(x.dtype), x), axes, keepdim=keepdim)
    if not len(x.shape):
        return size
    if ord in (1, 2):
        return _reduce("ReduceL1" if ord == 1 else "ReduceL2", x, axes, keepdim=keepdim)
    powers = basics.typed(op.Pow(size, basics.number(x, ord)), int(x.dtype), x)
    return op.Pow(_reduce("ReduceSum", powers, axes, keepdim=keepdim), basics.number(x, 1 / ord))


@torch_op(_aten.logsumexp.default)
@basics.in_float32
def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """`aten.logsumexp`, written out: ONNX Runtime's ReduceLogSumExp subtracts no largest number if the first is minus infinity."""
    axes = _axes(x, dim)
    if not len(x.shape):
        return op.Identity(x)
    largest = amax(x, axes or (), keepdim=True)
    finite = op.Where(op.IsInf(largest), basics.number(x, 0.0), largest)
    powers = basics.typed(op.Exp(op.Sub(x, finite)), int(x.dtype), x)
    total = op.Add(op.Log(_reduce("ReduceSum", powers, axes, keepdim=True)), finite)
    every = op.Constant(value_ints=list(range(len(x.shape))) if axes is None else list(axes))
    return total if keepdim else op.Squeeze(total, every)


@torch_op(_aten._log_softmax.default)
def log_softmax(x: Any, dim: int, half_to_float: Any = False) -> Any:
    """`aten._log_softmax`; of float64, ONNX Runtime's operator loses NaN."""
    if int(x.dtype) != basics.DOUBLE or not len(x.shape):
        return basics.registered(_aten._log_softmax.default)(x, dim, half_to_float)
    away = basics.typed(op.Sub(x, amax(x, (dim,), keepdim=True)), int(x.dtype), x)
    total = _reduce("ReduceSum", basics.typed(op.Exp(away), int(x.dtype), x), [dim], keepdim=True)
    return op.Sub(away, op.Log(total))


_MOST_PRODUCTS = 32
_PRODUCT_TYPES = {basics.FLOAT: basics.DOUBLE, basics.FLOAT16: basics.FLOAT, basics.BFLOAT16: basics.FLOAT}
"""Element type -> the type in which PyTorch multiplies."""


@torch_op(_aten.cumsum.default)
def cumsum(x: Any, dim: int, dtype: int = -1) -> Any:
    """`aten.cumsum`; 16-bit floats are added in float32, as PyTorch does."""
    wanted = int(x.dtype) if dtype == -1 else dtype
    added = op.Cast(x, to=wanted) if wanted != int(x.dtype) else x
    if not len(x.shape):
        return op.Identity(added)
    axis = op.Constant(value_int=dim)
    if wanted in (basics.FLOAT16, basics.BFLOAT16):
        return op.Cast(op.CumSum(op.Cast(added, to=basics.FLOAT), axis), to=wanted)
    return op.CumSum(added, axis)


@torch_op(_aten.cumprod.default)
def cumprod(x: Any, dim: int, dtype: int = -1) -> Any:
    """`aten.cumprod` of few elements, one after the other: products of parts may overflow. Multiplies in a wider type, as PyTorch."""
    rank = len(x.shape)
    wanted = dtype if dtype != -1 else int(x.dtype) if basics.is_float(x) else basics.INT64
    whole = op.Cast(x, to=wanted)
    if not rank or 0 in list(x.shape):
        return whole
    size = x.shape[dim]
    if not isinstance(size, int) or size > _MOST_PRODUCTS:
        raise basics.NotConvertibleError(
            f"multiplies more than {_MOST_PRODUCTS} elements, or a number of them that is known at run time only"
        )
    wide = _PRODUCT_TYPES.get(wanted)
    factors = op.Cast(whole, to=wide) if wide is not None else whole
    axis = op.Constant(value_ints=[dim % rank])
    product, products = None, []
    for place in range(size):
        factor = op.Slice(factors, op.Constant(value_ints=[place]), op.Constant(value_ints=[place + 1]), axis)
        product = factor if product is None else op.Mul(product, factor)
        products.append(product)
    made = op.Concat(*products, axis=dim)
    return op.Cast(made, to=wanted) if wide is not None else made


def _staged(x: torch.Tensor, axes: Sequence[int], *, keepdim: bool) -> torch.Tensor:
    """Add up one dimension after the other, from the innermost one; a long one in float64."""
    dtype = x.dtype
    if dtype is not torch.float32:
        x = x.to(torch.float32)
    for axis in reversed(axes):
        wide = torch.float64 if is_long(x, [axis]) else torch.float32
        x = x.sum([axis], keepdim=True, dtype=wide).to(torch.float32)
    x = x.to(dtype) if dtype is not torch.float32 else x
    return x if keepdim else x.squeeze(tuple(axes))


@decomposes(_aten.sum.dim_IntList)
def _sum(x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    axes = reduced_dims(x, dim)
    if dtype not in (None, x.dtype) or not is_long(x, axes):
        return STAYS
    return _staged(x, axes, keepdim=keepdim)


@decomposes(_aten.mean.dim)
def _mean(x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    axes = reduced_dims(x, dim)
    if dtype not in (None, x.dtype) or not is_long(x, axes):
        return STAYS
    wide = x.to(torch.float32)
    mean: torch.Tensor = _staged(wide, axes, keepdim=keepdim) / count_of(x, axes)
    return mean.to(x.dtype)


@decomposes(_aten.linalg_vector_norm.default)
def _vector_norm(x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    axes = reduced_dims(x, dim)
    if dtype is not None or ord in (0, math.inf, -math.inf) or not is_long(x, axes):
        return STAYS
    size = x.to(torch.float32).abs()
    powers = size if ord == 1 else size * size if ord == 2 else size**ord  # noqa: PLR2004 - the usual norms
    added = powers.sum(axes, keepdim=keepdim)
    return (added if ord == 1 else added.sqrt() if ord == 2 else added ** (1 / ord)).to(x.dtype)  # noqa: PLR2004 - same


@decomposes(_aten.cumsum.default)
def _cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    wanted = x.dtype if dtype is None else dtype
    if wanted not in NARROW or not x.dim() or not is_more(x.shape[dim], LONG):
        return STAYS
    added: torch.Tensor = _aten.cumsum.default(torch.ops.prims.convert_element_type(x.to(wanted), torch.float64), dim)
    return added.to(wanted)


decomposes(_aten.sum.default)(lambda x, *, dtype=None: _sum(x, None, dtype=dtype))
decomposes(_aten.mean.default)(lambda x, *, dtype=None: _mean(x, None, dtype=dtype))
facts.as_torch(_aten.trace.default, unless=lambda _, tensor: tensor.dtype is torch.bool)
facts.as_torch(_aten.nansum.default, _aten.aminmax.default, unless=lambda _, tensor, *__, **___: tensor.is_complex())


def _is_large_norm(_: Any, tensor: torch.Tensor, order: Any = 2, dim: Any = None, *__: Any, **named: Any) -> bool:
    return order == 2 and dim is None and not named.get("dtype") and facts.is_large_on_cpu(_, tensor)  # noqa: PLR2004 - the usual norm


def _has_many_products(call: Call) -> bool:
    shape = call["self"].shape
    return bool(shape) and not (isinstance(shape[call["dim"]], int) and shape[call["dim"]] <= _MOST_PRODUCTS)


def _bins(call: Call) -> str | None:
    if not (math.isfinite(call["min"]) and math.isfinite(call["max"])):
        return "takes infinite bounds, which PyTorch refuses"
    return "needs bounds, which here follow from the data" if call["min"] == call["max"] else None


def _may_take_nothing(call: Call) -> bool:
    value, dim = call.tensor(0), call.node.args[1]
    size = value.shape[dim] if value is not None and value.dim() and isinstance(dim, int) else 1
    return _torch.depends_on_data(size) or (isinstance(size, int) and not size)


def _spreads_over_all(call: Call) -> bool:
    """Tell whether a variance is that of all numbers: PyTorch then rounds their mean to float32, which shows beside a large mean."""
    result = call.result
    is_narrow = result is not None and result.dtype is torch.float32 and result.device.type == "cpu"
    return is_narrow and statically_known_true(result.numel() == 1)  # type: ignore[union-attr]  # narrow ones are tensors


facts.leaves(_aten.linalg_vector_norm.default, when=_is_large_norm)
facts.needs_known(_aten.linalg_vector_norm.default, argument="ord")
facts.wrong(_aten.cumprod.default, reason=f"multiplies at most {_MOST_PRODUCTS} elements, whose number is known", when=_has_many_products)
facts.wrong(_aten.histc.default, reason="counts floats only", when=facts.is_whole)
for _name in ("min", "max", "bins"):
    facts.needs_known(_aten.histc.default, argument=_name)
facts.wrong(_aten.histc.default, when=_bins)
facts.wrong(
    *(_aten.max.default, _aten.min.default), reason=f"gives a number for no elements{facts.REFUSED}", when=facts.may_lack_elements("self")
)
facts.wrong(_aten.max.dim, _aten.min.dim, reason=f"may take nothing{facts.REFUSED}", when=_may_take_nothing)
_SPREADS = (_aten.var.correction, _aten.std.correction)
facts.wrong(
    *(*_SPREADS, _aten.var_mean.correction, _aten.std_mean.correction), reason=f"takes whole numbers{facts.REFUSED}", when=facts.is_whole
)
# One thread, 1000 x 1000: PyTorch 590 us, in float64 990 us.
facts.slow(*_SPREADS, reason="of all numbers ONNX Runtime takes 1.7 times as long, and rounds their mean otherwise", when=_spreads_over_all)
facts.wrong(_aten.prod.dim_int, _aten.prod.default, reason="multiplies no booleans", when=facts.makes_booleans)
facts.wrong(_aten.logcumsumexp.default, reason="overflows, or loses what is small beside the largest")
