"""Functions of single elements; bits of integers and logic of booleans with a number that is known at run time only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from ortlens.backend.conversion import dtypes
from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.basics import op, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten


@torch_op(_aten.add.Tensor, _aten.add.Scalar)
def add(x: Any, y: Any, alpha: Any = 1) -> Any:
    """`aten.add`; of booleans, whether either is true."""
    if (step := _known_step(x, y, alpha)) is not None:
        return basics.in_float32(op.Add)(x, step)
    x, y = _alike(x, y)
    if int(x.dtype) == basics.BOOL:
        return op.Or(x, y) if alpha else op.Identity(x)
    return op.Add(x, _multiple(x, y, alpha))


@torch_op(_aten.sub.Tensor, _aten.sub.Scalar)
def sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    if (step := _known_step(x, y, alpha)) is not None:
        return basics.in_float32(op.Sub)(x, step)
    x, y = _alike(x, y)
    return op.Sub(x, _multiple(x, y, alpha))


def _known_step(x: Any, y: Any, alpha: Any) -> float | None:
    """Compute what is added to 16-bit floats where both factors are numbers: PyTorch rounds these, and not their product."""
    if not basics.is_value(x) or not basics.is_half(x) or basics.is_value(y) or basics.is_value(alpha) or alpha == 1:
        return None
    return dtypes.nearest(y, int(x.dtype)) * dtypes.nearest(alpha, int(x.dtype))


def _add_of(operator: str) -> Callable[..., Any]:
    """`aten.addcmul`, whose factor the registry rounds to float32, and `aten.addcdiv`, where it multiplies after the division."""

    @basics.in_float32
    def add_of(x: Any, first: Any, second: Any, value: Any = 1) -> Any:
        return op.Add(x, getattr(op, operator)(_multiple(x, first, value), second))

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


def _alike(x: Any, y: Any) -> tuple[Any, Any]:
    like = x if basics.is_value(x) else y
    return basics.number(like, x), basics.number(like, y)


def _multiple(like: Any, x: Any, factor: Any) -> Any:
    if not basics.is_value(factor) and factor == 1:
        return x
    return op.Mul(x, basics.number(like, factor))


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


def fma(x: Any, y: Any, z: Any) -> Any:
    """`prims.fma`: a product and a sum, rounded twice; the kernel rounds once, which differs in the last place of the product."""
    return op.Add(op.Mul(x, y), z)


def _tensor_and_number(with_number: Any, with_tensors: Any) -> Callable[..., Any]:
    """Choose the registry's function, or that of two tensors where the number is computed by the model."""

    def function(x: Any, y: Any) -> Any:
        return basics.registered(with_tensors)(x, _like_tensor(y, x)) if basics.is_value(y) else basics.registered(with_number)(x, y)

    return function


def _number_and_tensor(with_number: Any, with_tensors: Any) -> Callable[..., Any]:
    def function(x: Any, y: Any) -> Any:
        return basics.registered(with_tensors)(_like_tensor(x, y), y) if basics.is_value(x) else basics.registered(with_number)(x, y)

    return function


def _like_tensor(number: Any, tensor: Any) -> Any:
    made = op.CastLike(number, tensor)
    made.dtype = tensor.dtype
    return made


for _bitwise, _of_tensors in (
    (_aten.bitwise_and.Scalar, _aten.bitwise_and.Tensor),
    (_aten.bitwise_or.Scalar, _aten.bitwise_or.Tensor),
    (_aten.bitwise_xor.Scalar, _aten.bitwise_xor.Tensor),
    (_aten.bitwise_left_shift.Tensor_Scalar, _aten.bitwise_left_shift.Tensor),
    (_aten.bitwise_right_shift.Tensor_Scalar, _aten.bitwise_right_shift.Tensor),
    (_aten.__lshift__.Scalar, _aten.bitwise_left_shift.Tensor),
    (_aten.__rshift__.Scalar, _aten.bitwise_right_shift.Tensor),
):
    torch_op(_bitwise)(_tensor_and_number(_bitwise, _of_tensors))
for _bitwise, _of_tensors in (
    (_aten.bitwise_left_shift.Scalar_Tensor, _aten.bitwise_left_shift.Tensor),
    (_aten.bitwise_right_shift.Scalar_Tensor, _aten.bitwise_right_shift.Tensor),
):
    torch_op(_bitwise)(_number_and_tensor(_bitwise, _of_tensors))
