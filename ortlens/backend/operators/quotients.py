"""Quotients, remainders and powers, of floats and of integers.

PyTorch computes on integers as processors do: quotients are exact and results wrap. Computed through floats, as torch's registry does,
they are wrong from 2**24 on. ONNX Runtime raises for an integer divided by zero; PyTorch then runs the partition and raises, too. The least
integer divided by -1 ends the process in ONNX Runtime, so that no model divides by -1.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op
from ortlens.backend.operators.facts import STAYS, Call, decomposes, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten

_UNSIGNED = (2, 4, 12, 13)  # UINT8, UINT16, UINT32, UINT64 in onnx.TensorProto
_MOST_PRODUCTS = 16  # exponents of integers up to here become products


@torch_op(_aten.remainder.Tensor, _aten.remainder.Scalar, _aten.remainder.Scalar_Tensor)
def remainder(x: Any, y: Any) -> Any:
    """`aten.remainder`; has the sign of the divisor."""
    x, y, like = basics.alike(x, y)
    if not basics.is_float(like):
        return op.Mod(x, _divisor(y, like)[0])
    return _float_remainder(x, y, like)


def _float_remainder(x: Any, y: Any, like: Any) -> Any:
    left = op.Mod(x, y, fmod=1)
    return op.Where(_turns(left, y, basics.number(like, 0.0)), op.Add(left, y), left)


def _turns(left: Any, y: Any, zero: Any) -> Any:
    """Tell whether what is left of a division has another sign than the divisor."""
    return op.And(op.Not(op.Equal(left, zero)), op.Xor(op.Less(left, zero), op.Less(y, zero)))


@torch_op(_aten.fmod.Tensor, _aten.fmod.Scalar)
def fmod(x: Any, y: Any) -> Any:
    """`aten.fmod`; has the sign of the dividend. ONNX Runtime computes it for integers through floats."""
    x, y, like = basics.alike(x, y)
    return op.Mod(x, y, fmod=1) if basics.is_float(like) else op.Sub(x, op.Mul(_quotient(x, y, like), y))


@torch_op(_aten.floor_divide.default)
@functools.partial(basics.with_exact_numbers, jumps=True)
def floor_divide(x: Any, y: Any) -> Any:
    x, y, like = basics.alike(x, y)
    return _float_floor(x, y, like) if basics.is_float(like) else _integer_floor(x, y, like)


def _integer_floor(x: Any, y: Any, like: Any) -> Any:
    """Divide integers, rounding down; processors round towards zero."""
    zero = basics.number(like, 0)
    quotient = _quotient(x, y, like)
    if int(like.dtype) in _UNSIGNED:
        return quotient
    below = op.And(op.Not(op.Equal(op.Mul(quotient, y), x)), op.Xor(op.Less(x, zero), op.Less(y, zero)))
    return op.Sub(quotient, op.CastLike(below, zero))


def _divisor(y: Any, like: Any) -> tuple[Any, Any]:
    """Return a divisor that is not -1, and where it was; None where it never is."""
    known = getattr(y, "const_value", y)  # a tensor of `onnx_ir` where the program has a number
    if int(like.dtype) in _UNSIGNED or (known is not None and (known.numpy() != -1).all()):
        return y, None
    flips = op.Equal(y, basics.number(like, -1))
    return op.Where(flips, basics.number(like, 1), y), flips


def _quotient(x: Any, y: Any, like: Any) -> Any:
    (divisor, flips) = _divisor(y, like)
    quotient = op.Div(x, divisor)
    return quotient if flips is None else op.Where(flips, op.Neg(x), quotient)


def _float_floor(x: Any, y: Any, like: Any) -> Any:
    """Round down by way of the remainder, which is exact. Source: `div_floor_floating` in `c10/util/BFloat16-math.h`."""
    zero, one = basics.number(like, 0.0), basics.number(like, 1.0)
    left = op.Mod(x, y, fmod=1)
    turns = _turns(left, y, zero)
    quotient = op.Div(op.Sub(x, left), y)
    quotient = op.Where(turns, op.Sub(quotient, one), quotient)
    down = op.Floor(quotient)
    rounded = op.Where(op.Greater(op.Sub(quotient, down), basics.number(like, 0.5)), op.Add(down, one), down)
    return op.Where(op.Equal(y, zero), op.Div(x, y), rounded)


@torch_op(_aten.div.Tensor_mode, _aten.div.Scalar_mode)
@functools.partial(basics.with_exact_numbers, jumps=True)
def div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """`aten.div` with a rounding mode."""
    x, y, like = basics.alike(x, y)
    if rounding_mode == "floor":
        return _float_floor(x, y, like) if basics.is_float(like) else _integer_floor(x, y, like)
    if not basics.is_float(like):
        return _quotient(x, y, like)
    quotient = op.Div(x, y)
    if rounding_mode is None:
        return quotient
    return op.Mul(op.Sign(quotient), op.Floor(op.Abs(quotient)))


def _fourth(x: Any) -> Any:
    square = op.Mul(x, x)
    return op.Mul(square, square)


_SHORT: dict[float, Callable[[Any], Any]] = {
    0.5: op.Sqrt,  # as PyTorch: the square root of minus infinity is NaN, its power is not
    -0.5: lambda x: op.Reciprocal(op.Sqrt(x)),
    -1: op.Reciprocal,
    4: _fourth,  # within 1.5 units in the last place, and without a logarithm
}
"""Exponent -> the power, where that is no `Pow`; of squares and cubes ONNX Runtime makes parts of a normalisation or a GELU."""


@torch_op(_aten.pow.Tensor_Scalar)
def power(x: Any, exponent: Any) -> Any:
    """`aten.pow` of a tensor and a number."""
    if basics.is_float(x):
        short = None if basics.is_half(x) else _SHORT.get(exponent)
        return short(x) if short is not None else op.Pow(x, basics.number(x, exponent))
    if exponent == 0:
        return op.Expand(basics.number(x, 1), op.Shape(x))
    product = x
    for _ in range(int(exponent) - 1):
        product = op.Mul(product, x)
    return op.Identity(x) if product is x else product


torch_op(_aten.pow.Scalar)(lambda base, exponent: op.Pow(basics.number(exponent, base), exponent))  # the registry's rounds the number


@decomposes(_aten.pow.Tensor_Scalar)
def _power_of_booleans(tensor: torch.Tensor, exponent: Any) -> Any:
    """Keep powers of booleans by booleans boolean, as PyTorch's kernel does; torch's shape function says whole numbers."""
    is_boolean = tensor.dtype is torch.bool and isinstance(exponent, bool)
    return torch.logical_or(tensor, torch.full_like(tensor, not exponent)) if is_boolean else STAYS


def _divides_nothing(call: Call) -> bool:
    value = call.result
    return value is not None and not value.dtype.is_floating_point and 0 in value.shape and isinstance(call["other"], torch.Tensor)


def _is_long_integer_power(call: Call) -> bool:
    """Tell whether ONNX Runtime's Pow is needed, not a few products: it computes powers of integers through floats."""
    base, exponent = call.tensor(0), call.node.args[1]
    wraps = call.result is not None and not call.result.is_floating_point()
    is_short = base is not None and not base.is_floating_point() and isinstance(exponent, int) and 0 <= exponent <= _MOST_PRODUCTS
    return wraps and not is_short


facts.wrong(
    *(_aten.remainder.Tensor, _aten.fmod.Tensor, _aten.floor_divide.default, _aten.div.Tensor_mode),
    reason="raises for a zero by which nothing is divided",
    when=_divides_nothing,
)
facts.wrong(
    *(_aten.pow.Tensor_Scalar, _aten.pow.Tensor_Tensor, _aten.pow.Scalar),
    reason="computes powers of integers through floats, and does not wrap",
    when=_is_long_integer_power,
)
