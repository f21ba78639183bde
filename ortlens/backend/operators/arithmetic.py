"""Functions of single elements; bits of integers and logic of booleans with a number that is known at run time only; lists of tensors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from ortlens.backend.basis import dtypes
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op
from ortlens.backend.operators.facts import STAYS, Call, decomposes, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten


@torch_op(_aten.add.Tensor, _aten.add.Scalar)
def add(x: Any, y: Any, alpha: Any = 1) -> Any:
    """`aten.add`; of booleans, whether either is true."""
    if (step := _known_step(x, y, alpha)) is not None:
        return basics.in_float32(op.Add)(x, step)
    x, y, _ = basics.alike(x, y)
    if int(x.dtype) == basics.BOOL:
        return op.Or(x, y) if alpha else op.Identity(x)
    return op.Add(x, basics.scaled(y, alpha, x))


@torch_op(_aten.sub.Tensor, _aten.sub.Scalar)
def sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    if (step := _known_step(x, y, alpha)) is not None:
        return basics.in_float32(op.Sub)(x, step)
    x, y, _ = basics.alike(x, y)
    return op.Sub(x, basics.scaled(y, alpha, x))


def _known_step(x: Any, y: Any, alpha: Any) -> float | None:
    """Compute what is added to 16-bit floats where both factors are numbers: PyTorch rounds these, and not their product."""
    if not basics.is_value(x) or not basics.is_half(x) or basics.is_value(y) or basics.is_value(alpha) or alpha == 1:
        return None
    return dtypes.nearest(y, int(x.dtype)) * dtypes.nearest(alpha, int(x.dtype))


def _add_of(operator: str) -> Callable[..., Any]:
    """`aten.addcmul`, whose factor the registry rounds to float32, and `aten.addcdiv`, where it multiplies after the division."""

    @basics.in_float32
    def add_of(x: Any, first: Any, second: Any, value: Any = 1) -> Any:
        return op.Add(x, getattr(op, operator)(basics.scaled(first, value, x), second))

    return add_of


torch_op(_aten.addcmul.default)(_add_of("Mul"))
torch_op(_aten.addcdiv.default)(_add_of("Div"))


@torch_op(_aten.lerp.Scalar, _aten.lerp.Tensor)
@basics.in_float32
def lerp(x: Any, end: Any, weight: Any) -> Any:
    """`aten.lerp`, from the nearer end as in PyTorch; of a known weight, one of both forms."""
    way, part = op.Sub(end, x), basics.number(x, weight)
    if not basics.is_value(weight) and abs(weight) < _NEARER:
        return op.Add(x, op.Mul(part, way))
    from_end = op.Sub(end, op.Mul(way, op.Sub(basics.number(x, 1.0), part)))
    if not basics.is_value(weight):
        return from_end
    return op.Where(op.Less(op.Abs(part), basics.number(x, _NEARER)), op.Add(x, op.Mul(part, way)), from_end)


_NEARER = 0.5


@torch_op(_aten.isnan.default)
def isnan(x: Any) -> Any:
    """`aten.isnan`; whole numbers are none."""
    return op.IsNaN(x) if basics.is_float(x) else op.Expand(op.Cast(op.Constant(value_int=0), to=basics.BOOL), op.Shape(x))


@torch_op(torch.ops.prims.scalar_tensor.default, _aten.scalar_tensor.default)
def scalar_tensor(number: Any, dtype: int = basics.FLOAT, **_: Any) -> Any:
    if basics.is_value(number):
        return op.Cast(number, to=dtype)
    return op.Constant(value=ir.tensor(number, dtype=ir.DataType(dtype)))


@torch_op(_aten.signbit.default, torch.ops.prims.signbit.default)
def signbit(x: Any) -> Any:
    """`aten.signbit`; true for -0.0."""
    if int(x.dtype) == basics.BOOL:
        return op.And(x, basics.number(x, 0))
    return _below_zero(x) if basics.is_float(x) else op.Less(x, op.CastLike(op.Constant(value_int=0), x))


def _below_zero(x: Any) -> Any:
    zero = op.CastLike(op.Constant(value_float=0.0), x)
    one = op.CastLike(op.Constant(value_float=1.0), x)
    return op.Or(op.Less(x, zero), op.Less(op.Div(one, x), zero))  # the quotient is -inf for -0.0, and -0.0 for -inf


@torch_op(_aten.atan2.default)
@basics.in_float32
def atan2(y: Any, x: Any) -> Any:
    """`aten.atan2`; respects the sign of zeros and of two infinities, as IEEE 754 defines."""
    signs = [basics.number(x, sign) for sign in (-1.0, 1.0)]
    unbounded = op.And(op.IsInf(x), op.IsInf(y))  # the angles are those of the signs
    y, x = op.Where(unbounded, op.Sign(y), y), op.Where(unbounded, op.Sign(x), x)
    pi = op.CastLike(op.Constant(value_float=torch.pi), x)
    zero = op.CastLike(op.Constant(value_float=0.0), x)
    half = op.Div(pi, op.CastLike(op.Constant(value_float=2.0), x))
    negative_y, negative_x = _below_zero(y), _below_zero(x)
    both_zero = op.And(op.Equal(x, zero), op.Equal(y, zero))
    upright = op.Equal(x, zero)
    # The angle from the nearer half of the horizontal axis. Division by zero is replaced before the quotient is used.
    quotient = op.Div(y, op.Where(upright, op.CastLike(op.Constant(value_float=1.0), x), x))
    angle = op.Where(both_zero, zero, op.Where(upright, half, op.Abs(op.Atan(quotient))))
    behind = op.And(negative_x, op.Or(both_zero, op.Not(upright)))
    turned = op.Where(behind, op.Sub(pi, angle), angle)
    sign = op.Where(negative_y, *signs)  # a choice between angles would lose the sign of a zero
    return op.Mul(op.Where(op.Or(op.IsNaN(x), op.IsNaN(y)), op.Add(x, y), turned), sign)


@torch_op(_aten.copysign.Scalar, _aten.copysign.Tensor)
def copysign(x: Any, y: Any) -> Any:
    """`aten.copysign`; the sign of NaN counts as positive."""
    sign = op.Where(_below_zero(basics.number(x, y)), basics.number(x, -1.0), basics.number(x, 1.0))
    return op.Mul(op.Abs(x), sign)


@torch_op(_aten.hypot.default, torch.ops.prims.hypot.default)
def hypot(x: Any, y: Any) -> Any:
    """`aten.hypot`; infinite where one side is, also beside NaN. Squares of float32 neither overflow nor vanish in float64."""
    dtype = int(x.dtype)
    infinite = op.Or(_is_infinite()(x), _is_infinite()(y))
    if dtype == basics.DOUBLE:
        length = _scaled_length(op.Abs(x), op.Abs(y), x)
    else:
        first, second = op.Cast(x, to=basics.DOUBLE), op.Cast(y, to=basics.DOUBLE)
        length = op.Cast(op.Sqrt(op.Add(op.Mul(first, first), op.Mul(second, second))), to=dtype)
    return op.Where(infinite, basics.number(x, torch.inf), length)


def _scaled_length(first: Any, second: Any, like: Any) -> Any:
    """Compute the length of a vector, divided by its longer side before the squares are added."""
    zero, one = basics.number(like, 0.0), basics.number(like, 1.0)
    first, second = (basics.typed(side, int(like.dtype), like) for side in (first, second))
    longer, shorter = op.Max(first, second), op.Min(first, second)
    ratio = op.Div(shorter, op.Where(op.Equal(longer, zero), one, longer))
    return op.Mul(longer, op.Sqrt(op.Add(op.Mul(ratio, ratio), one)))


@torch_op(_aten.heaviside.default)
def heaviside(x: Any, values: Any) -> Any:
    """`aten.heaviside`; 0 for NaN."""
    zero = basics.number(x, 0)
    if int(x.dtype) == basics.BOOL:
        return op.Or(x, values)
    return op.Where(op.Equal(x, zero), values, op.CastLike(op.Greater(x, zero), x))


@torch_op(_aten.angle.default)
def angle(x: Any) -> Any:
    """`aten.angle` of real numbers: pi below zero, NaN for NaN."""
    if not basics.is_float(x):
        raise basics.NotConvertibleError("it takes floats only")
    zero = basics.number(x, 0.0)
    return op.Where(op.IsNaN(x), x, op.Where(op.Less(x, zero), basics.number(x, torch.pi), zero))


def _times(factor: float) -> Callable[..., Any]:
    @basics.in_float32
    def times(x: Any) -> Any:
        return op.Mul(x, basics.number(x, factor))

    return times


def _is_infinite(*, positive: bool = True, negative: bool = True) -> Callable[..., Any]:
    """`aten.isinf` and its halves, without a conversion to float32, in which large float64 numbers are infinite."""

    def is_infinite(x: Any) -> Any:
        if not basics.is_float(x):
            return op.Expand(op.Cast(op.Constant(value_int=0), to=basics.BOOL), op.Shape(x))
        wide = op.Cast(x, to=basics.FLOAT) if basics.is_half(x) else x
        return op.IsInf(wide, detect_positive=int(positive), detect_negative=int(negative))

    return is_infinite


def _rounded(name: str) -> Callable[..., Any]:
    def rounded(x: Any) -> Any:
        return getattr(op, name)(x) if basics.is_float(x) else op.Identity(x)

    return rounded


@torch_op(_aten.round.decimals)
@functools.partial(basics.in_float32, jumps=True)
def round_decimals(x: Any, *, decimals: int = 0) -> Any:
    """`aten.round` to decimal places."""
    return basics.registered(_aten.round.decimals)(x, decimals=decimals)


@torch_op(_aten.trunc.default, torch.ops.prims.trunc.default)
def trunc(x: Any) -> Any:
    """`aten.trunc`; keeps -0.0, which ONNX Runtime's Where takes over from its last operand only."""
    if not basics.is_float(x):
        return op.Identity(x)
    return op.Where(op.Greater(x, basics.number(x, 0.0)), op.Floor(x), op.Ceil(x))


_RECIPROCAL = "ortlens.reciprocal"
"""Key in `meta` of a reciprocal: `number / x` is one, times the number, and PyTorch rounds it to 16 bits in between."""


@torch_op(_aten.reciprocal.default)
def reciprocal(x: Any) -> Any:
    made = basics.registered(_aten.reciprocal.default)(x)
    made.meta[_RECIPROCAL] = basics.is_half(x)
    return made


@torch_op(_aten.mul.Tensor, _aten.mul.Scalar)
def mul(x: Any, y: Any) -> Any:
    if basics.is_value(x) and x.meta.get(_RECIPROCAL) and not (basics.is_value(y) and len(y.shape)):
        x = basics.typed(basics.kept_half(x), int(x.dtype), x)
    return _product(x, y)


@basics.with_exact_numbers
def _product(x: Any, y: Any) -> Any:
    return basics.registered(_aten.mul.Tensor)(x, y)


@torch_op(_aten.div.Tensor, _aten.div.Scalar)
@basics.with_exact_numbers
def div(x: Any, y: Any) -> Any:
    return basics.registered(_aten.div.Tensor)(x, y)


torch_op(_aten.deg2rad.default)(_times(torch.pi / 180))
torch_op(_aten.rad2deg.default)(_times(180 / torch.pi))
torch_op(_aten.isinf.default)(_is_infinite())
torch_op(_aten.isposinf.default)(_is_infinite(negative=False))
torch_op(_aten.isneginf.default)(_is_infinite(positive=False))
torch_op(_aten.floor.default)(_rounded("Floor"))
torch_op(_aten.ceil.default)(_rounded("Ceil"))
torch_op(_aten.round.default)(_rounded("Round"))


@torch_op("prims::fma")  # torch registers it when an optimiser is imported
def fma(x: Any, y: Any, z: Any) -> Any:
    """`prims.fma`: a product and a sum, rounded twice; the kernel rounds once, which differs in the last place of the product."""
    return op.Add(op.Mul(x, y), z)


def _with_number(with_number: Any, with_tensors: Any, *, first: bool = False) -> Callable[..., Any]:
    """Choose the registry's function, or that of two tensors where the number, of both the `first` one or not, is computed by the model."""

    def function(x: Any, y: Any) -> Any:
        number, tensor = (x, y) if first else (y, x)
        if not basics.is_value(number):
            return basics.registered(with_number)(x, y)
        made = op.CastLike(number, tensor)
        made.dtype = tensor.dtype
        return basics.registered(with_tensors)(*((made, y) if first else (x, made)))

    return function


for _bitwise, _of_tensors in (
    (_aten.bitwise_and.Scalar, _aten.bitwise_and.Tensor),
    (_aten.bitwise_or.Scalar, _aten.bitwise_or.Tensor),
    (_aten.bitwise_xor.Scalar, _aten.bitwise_xor.Tensor),
    (_aten.bitwise_left_shift.Tensor_Scalar, _aten.bitwise_left_shift.Tensor),
    (_aten.bitwise_right_shift.Tensor_Scalar, _aten.bitwise_right_shift.Tensor),
    (_aten.__lshift__.Scalar, _aten.bitwise_left_shift.Tensor),
    (_aten.__rshift__.Scalar, _aten.bitwise_right_shift.Tensor),
):
    torch_op(_bitwise)(_with_number(_bitwise, _of_tensors))
for _shift in (_aten.bitwise_left_shift, _aten.bitwise_right_shift):
    torch_op(_shift.Scalar_Tensor)(_with_number(_shift.Scalar_Tensor, _shift.Tensor, first=True))

_BEYOND_FLOATS = 400  # a power of two that makes infinity or 0 of every float32, and none of what float64 computes on the way


@decomposes(_aten.ldexp.Tensor)
def _ldexp(tensor: torch.Tensor, exponent: torch.Tensor) -> Any:
    """Scale floats by whole exponents in float64, which rounds once, and what PyTorch multiplies by powers; PyTorch keeps the rest."""
    if exponent.dtype is torch.bool or tensor.is_complex():
        return STAYS
    dtype = torch.get_default_dtype() if _is_whole(tensor) else tensor.dtype
    if exponent.dtype is dtype or (_is_whole(tensor) and _is_whole(exponent)):
        return _aten.mul.Tensor(tensor, _aten.pow.Scalar(2.0, exponent.to(dtype)))
    if not _is_whole(exponent) or dtype is torch.float64:
        return STAYS
    reach = _aten.clamp.default(exponent.to(torch.int32), -_BEYOND_FLOATS, _BEYOND_FLOATS)
    wide, power = (torch.ops.prims.convert_element_type(value, torch.float64) for value in (tensor, reach))
    return (wide * _aten.pow.Scalar(2.0, power)).to(dtype)


def _is_whole(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not (value.dtype.is_floating_point or value.dtype.is_complex)
    return isinstance(value, (int, torch.SymInt))


_FOREACH_OF_ONE = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log", "log10"),
    *("log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_FOREACH_OF_TWO = ("add", "sub", "mul", "div", "pow", "lerp")
_FOREACH_BOUNDS = {"maximum": "clamp_min", "minimum": "clamp_max", "clamp_min": "clamp_min", "clamp_max": "clamp_max"}
_FOREACH_OVERLOADS = ("List", "Scalar", "ScalarList", "Tensor", "ScalarAndTensor")


def _per_tensor() -> dict[Any, Callable[..., Any]]:
    """Decompose operators of lists of tensors, `_foreach_*`, to one per tensor: optimisers and the clipping of gradients use them."""
    functions: dict[str, Callable[..., Any]] = {
        **{name: getattr(torch, name) for name in (*_FOREACH_OF_ONE, *_FOREACH_OF_TWO)},
        **{name: getattr(torch, bound) for name, bound in _FOREACH_BOUNDS.items()},
        "addcmul": functools.partial(_scaled, torch.addcmul),
        "addcdiv": functools.partial(_scaled, torch.addcdiv),
        "norm": torch.linalg.vector_norm,
        "zero": torch.zeros_like,
        "copy": _aten.copy.default,
    }
    found: dict[Any, Callable[..., Any]] = {}
    for name, function in functions.items():
        packet = getattr(_aten, f"_foreach_{name}", None)
        for overload in packet.overloads() if packet is not None else ():
            of_values = name in {"addcmul", "addcdiv"} and overload == "Tensor"  # its numbers lie in one tensor
            if overload in ("default", *_FOREACH_OVERLOADS) and not of_values:
                found[getattr(packet, overload)] = functools.partial(_each, function)
    return found


def _each(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Call a function once per item of its lists; all other arguments are the same for all."""
    count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    return [function(*(arg[place] if isinstance(arg, (list, tuple)) else arg for arg in args), **kwargs) for place in range(count)]


def _scaled(function: Callable[..., Any], *args: Any) -> Any:
    *tensors, value = args if len(args) == 4 else (*args, 1)  # noqa: PLR2004 - three tensors and a factor
    return function(*tensors, value=value)


for _listed, _of_each in _per_tensor().items():
    decomposes(_listed)(_of_each)

_BEYOND_INT64 = 2.0**63  # from here on, a conversion to int64 returns the smallest integer


@decomposes(_aten.fake_quantize_per_tensor_affine_cachemask.default)
def _fake_quantize(tensor: torch.Tensor, scale: float, zero_point: int, low: int, high: int) -> Any:
    """Decompose `aten.fake_quantize_per_tensor_affine_cachemask`: the rounded tensor, and where nothing was clipped."""
    if tensor.dtype is not torch.float32 or not isinstance(scale, float) or not isinstance(zero_point, int):
        return STAYS
    return _quantized(tensor, torch.full((), scale, dtype=torch.float32, device=tensor.device), zero_point, low, high)


@decomposes(_aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def _fake_quantize_by_tensors(
    tensor: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, enabled: torch.Tensor, low: int, high: int
) -> Any:
    """Do the same with a scale, a zero point and a switch that are tensors."""
    if tensor.dtype is not torch.float32 or scale.dtype is not torch.float32 or zero_point.dtype.is_floating_point:
        return STAYS
    rounded, inside = _quantized(tensor, scale.reshape(()), zero_point.reshape(()), low, high)
    on = enabled.reshape(()) != 0
    return torch.where(on, rounded, tensor), inside | ~on


@decomposes(_aten.fake_quantize_per_channel_affine_cachemask.default)
def _fake_quantize_channels(tensor: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, low: int, high: int) -> Any:
    """Decompose `aten.fake_quantize_per_channel_affine_cachemask`, whose kernel takes all beyond int64 for the smallest integer."""
    if tensor.dtype is not torch.float32 or scale.dtype is not torch.float32 or zero_point.dtype.is_floating_point:
        return STAYS
    shape = [-1 if place == axis % tensor.dim() else 1 for place in range(tensor.dim())]
    factor, zero = scale.reshape(shape), zero_point.reshape(shape)
    level = torch.round(tensor * factor.reciprocal()) + zero
    return _clipped(torch.where(level.abs() < _BEYOND_INT64, level, low - 1.0), factor, zero, low, high)


def _quantized(tensor: torch.Tensor, scale: torch.Tensor, zero: Any, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    level = torch.round(tensor * scale.reciprocal()) + zero
    return _clipped(torch.where(level.isnan(), low - 1.0, level), scale, zero, low, high)


def _clipped(level: torch.Tensor, scale: torch.Tensor, zero: Any, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (level.clamp(low, high) - zero) * scale, (level >= low) & (level <= high)


def _compared(call: Call) -> str | None:
    value, number = call.tensor(0), call.node.args[1]
    if value is None or value.dtype is torch.bool or value.is_floating_point() or value.is_complex() or not isinstance(number, int):
        return None
    return None if dtypes.fits(number, value.dtype) else f"takes {number}, which is no {str(value.dtype).removeprefix('torch.')}"


def _converts_one(call: Call) -> bool:
    value, other = map(facts.tensor_of, call.node.args)
    return value is not None and other is not None and value.dtype is not other.dtype


facts.wrong(
    *(_aten.add.Tensor, _aten.add.Scalar, _aten.sub.Tensor, _aten.sub.Scalar),
    *(_aten.pow.Tensor_Scalar, _aten.pow.Tensor_Tensor, _aten.pow.Scalar),
    when=lambda call: facts.refused_booleans(call.node),
)
facts.wrong(*(getattr(_aten, name).Scalar for name in ("eq", "ge", "gt", "le", "lt", "ne")), when=_compared)
facts.wrong(
    *(_aten.floor.default, _aten.ceil.default, _aten.round.default, _aten.trunc.default),
    reason=f"takes booleans{facts.REFUSED}",
    when=facts.is_boolean,
)
facts.wrong(_aten.lerp.Scalar, _aten.lerp.Tensor, reason=f"takes whole numbers{facts.REFUSED}", when=facts.is_whole)
facts.wrong(_aten.heaviside.default, reason=f"converts one argument{facts.REFUSED}", when=_converts_one)
