"""Logarithms, exponentials and what is made of them; the logarithm of the gamma function and its first two derivatives.

Written as they are read, `log(1 + x)` and `exp(x) - 1` lose all digits of a small `x`, and `log(exp(x) + exp(y))` overflows where the
result does not. The gamma functions are computed in float64 and rounded once, so that the zeros of the logarithm keep their digits in
float32. For float64 the series are too short, and these operators stay in PyTorch, see `partitioning/wrong_functions.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.basics import op, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten


@torch_op(_aten.log1p.default, torch.ops.prims.log1p.default)
@basics.in_float32
def log1p(x: Any) -> Any:
    """`aten.log1p`: the rounding error of `1 + x` is divided out. Source: Goldberg 1991, theorem 4."""
    one = basics.number(x, 1.0)
    above = op.Add(x, one)
    rounded = op.Sub(above, one)
    # In this order, because ONNX Runtime's Where loses the sign of a zero in its second operand.
    small = op.Where(op.Greater(op.Abs(rounded), basics.number(x, 0.0)), op.Mul(op.Log(above), op.Div(x, rounded)), x)
    return op.Where(op.GreaterOrEqual(op.Abs(x), one), op.Log(above), small)


@torch_op(_aten.expm1.default, torch.ops.prims.expm1.default, _aten.special_expm1.default)
@basics.in_float32
def expm1(x: Any) -> Any:
    """`aten.expm1`, as `tanh(x / 2) * (exp(x) + 1)`, which cancels nothing; ONNX Runtime's tanh may be beyond -1."""
    product = op.Mul(op.Tanh(op.Mul(x, basics.number(x, 0.5))), op.Add(op.Exp(x), basics.number(x, 1.0)))
    return op.Max(basics.typed(product, int(x.dtype), x), basics.number(x, -1.0))


def _logarithm(base: float) -> Callable[..., Any]:
    """Make a logarithm that is whole at the powers of its base, where a quotient of logarithms may lie just below it."""

    @basics.in_float32
    def logarithm(x: Any) -> Any:
        quotient = op.Div(op.Log(x), basics.number(x, math.log(base)))
        whole = op.Round(quotient)
        return op.Where(op.Equal(op.Pow(basics.number(x, base), whole), x), whole, quotient)

    return logarithm


def _log_add_exp(base: float) -> Callable[..., Any]:
    @basics.in_float32
    def log_add_exp(x: Any, y: Any) -> Any:
        # Equal infinities have no difference.
        distance = op.Where(op.Equal(x, y), basics.number(x, 0.0), op.Abs(op.Sub(x, y)))
        power = op.Exp(op.Mul(distance, basics.number(x, -math.log(base))))
        more = log1p(basics.typed(power, int(x.dtype), x))
        return op.Add(op.Max(x, y), op.Div(more, basics.number(x, math.log(base))) if base != math.e else more)

    return log_add_exp


@torch_op(_aten.sinc.default, _aten.special_sinc.default)
@basics.in_float32
def sinc(x: Any) -> Any:
    zero = basics.number(x, 0.0)
    turned = op.Mul(x, basics.number(x, math.pi))
    return op.Where(op.Equal(x, zero), basics.number(x, 1.0), op.Div(op.Sin(turned), turned))


@torch_op(_aten.logit.default)
def logit(x: Any, eps: float | None = None) -> Any:
    """`aten.logit`; clamps as PyTorch does, keeping NaN, and rounds between the steps."""
    one = basics.number(x, 1.0)
    if eps is not None:
        low = basics.number(x, eps)
        high = basics.number(x, float(one.numpy() - low.numpy()))
        x = basics.typed(op.Where(op.Less(x, low), low, op.Where(op.Less(high, x), high, x)), int(x.dtype), x)
    rest = basics.rounded_step(op.Sub(one, x), x)
    return op.Log(basics.rounded_step(op.Div(x, rest), x))


@torch_op(_aten.log_sigmoid.default)
@basics.in_float32
def log_sigmoid(x: Any) -> Any:
    """`aten.log_sigmoid`: `min(x, 0) - log1p(exp(-|x|))`."""
    power = basics.typed(op.Exp(op.Neg(op.Abs(x))), int(x.dtype), x)
    return op.Sub(op.Min(x, basics.number(x, 0.0)), log1p(power))


@torch_op(_aten.xlogy.Tensor, _aten.xlogy.Scalar_Self, _aten.xlogy.Scalar_Other)
def xlogy(x: Any, y: Any) -> Any:
    """`aten.xlogy`; 0 where `x` is 0, except that NaN in `y` remains."""
    like = x if basics.is_value(x) else y
    return _xlogy(basics.number(like, x), basics.number(like, y), like)


@torch_op(_aten.special_xlog1py.default, _aten.special_xlog1py.self_scalar, _aten.special_xlog1py.other_scalar)
def _xlog1py(x: Any, y: Any) -> Any:
    like = x if basics.is_value(x) else y
    return _xlogy(basics.number(like, x), basics.number(like, y), like, log1p)


def _xlogy(x: Any, y: Any, like: Any, log: Callable[..., Any] | None = None) -> Any:
    zero = basics.number(like, 0.0)
    logarithm = basics.rounded_step((log or op.Log)(y), like)
    return op.Where(op.And(op.Equal(x, zero), op.Not(op.IsNaN(y))), zero, op.Mul(x, logarithm))


torch_op(_aten.log2.default)(_logarithm(2.0))
torch_op(_aten.log10.default)(_logarithm(10.0))
torch_op(_aten.logaddexp.default)(_log_add_exp(math.e))
torch_op(_aten.logaddexp2.default)(_log_add_exp(2.0))


_LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)
"""Godfrey's coefficients for g = 7."""
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132)  # those of `1 / x ** 2`, `1 / x ** 4` ... in the asymptotic series of digamma
_FAR = 1e30


@torch_op(_aten.lgamma.default, torch.ops.prims.lgamma.default)
def lgamma(x: Any) -> Any:
    """`aten.lgamma`: Lanczos' series, and the reflection formula below 0.5."""
    wide = _wide(x)
    below = op.Less(wide, basics.number(wide, 0.5))
    above = op.Where(below, op.Sub(basics.number(wide, 1.0), wide), wide)
    series: Any = basics.number(wide, _LANCZOS[0])
    for place, factor in enumerate(_LANCZOS[1:]):
        series = op.Add(series, op.Div(basics.number(wide, factor), op.Add(above, basics.number(wide, float(place)))))
    shifted = op.Add(above, basics.number(wide, 6.5))
    power = op.Sub(op.Mul(op.Sub(above, basics.number(wide, 0.5)), op.Log(shifted)), shifted)
    value = op.Add(power, op.Log(op.Mul(series, basics.number(wide, math.sqrt(2 * math.pi)))))
    sine = op.Abs(op.Sin(_turned(wide)))
    value = op.Where(below, op.Sub(op.Log(op.Div(basics.number(wide, math.pi), sine)), value), value)
    return op.CastLike(op.Where(op.IsInf(wide), basics.number(wide, math.inf), value), x)


@torch_op(_aten.digamma.default, torch.ops.prims.digamma.default)
def digamma(x: Any) -> Any:
    """`aten.digamma`: the asymptotic series of `x + 7`, and the reflection formula below 0; NaN at negative integers."""
    wide = _wide(x)
    zero, one = basics.number(wide, 0.0), basics.number(wide, 1.0)
    below = op.Less(wide, zero)
    above = basics.typed(op.Where(below, op.Sub(one, wide), wide), basics.DOUBLE, x)
    near = op.Min(above, basics.number(wide, _FAR))  # the reciprocals of infinity are not 0 there
    value = op.Sub(_asymptotic(op.Add(above, basics.number(wide, 7.0)), wide), _seven_reciprocals(near, wide))
    turned = _turned(wide)
    cotangent = op.Div(op.Cos(turned), op.Sin(turned))
    reflected = op.Sub(value, op.Mul(basics.number(wide, math.pi), cotangent))
    reflected = op.Where(op.Equal(turned, zero), basics.number(wide, math.nan), reflected)
    value = op.Where(below, reflected, value)
    pole = op.Div(basics.number(wide, -1.0), wide)  # of the sign that PyTorch gives it
    return op.CastLike(op.Where(op.Equal(wide, zero), pole, value), x)


def trigamma(x: Any) -> Any:
    """`aten.polygamma` of 1, as PyTorch's kernel computes it, which rounds `pi * x` to float32."""
    wide = _wide(x)
    one = basics.number(wide, 1.0)
    below = op.Less(wide, basics.number(wide, 0.5))
    narrow = basics.typed(op.Cast(x, to=basics.FLOAT), basics.FLOAT, x)
    sine = op.Sin(op.Cast(op.Mul(narrow, basics.number(narrow, math.pi)), to=basics.DOUBLE))
    pole = op.Div(basics.number(wide, math.pi**2), op.Mul(sine, sine))
    above: Any = op.Where(below, op.Sub(one, wide), wide)
    value: Any = basics.number(wide, 0.0)
    for _ in range(6):
        value = op.Add(value, op.Div(one, op.Mul(above, above)))
        above = op.Add(above, one)
    inverse = op.Div(one, above)
    square = op.Mul(inverse, inverse)
    tail = _polynomial(square, (1 / 6, -1 / 30, 1 / 42), wide)
    half = op.Mul(inverse, basics.number(wide, 0.5))
    value = op.Add(value, op.Mul(inverse, op.Add(op.Add(one, half), op.Mul(square, tail))))
    return op.CastLike(op.Where(below, op.Sub(pole, value), value), x)


torch_op(_aten.polygamma.default)(lambda n, x: digamma(x) if n == 0 else trigamma(x))  # the others need the zeta function


def _wide(x: Any) -> Any:
    return basics.typed(op.Cast(x, to=basics.DOUBLE), basics.DOUBLE, x)


def _turned(wide: Any) -> Any:
    """Compute the angle `pi * x` without its whole half turns, so that none of its digits are lost."""
    return op.Mul(op.Sub(wide, op.Round(wide)), basics.number(wide, math.pi))


def _asymptotic(x: Any, like: Any) -> Any:
    inverse = op.Div(basics.number(like, 1.0), x)
    square = op.Mul(inverse, inverse)
    series = op.Mul(square, _polynomial(square, _BERNOULLI, like))
    return op.Sub(op.Sub(op.Log(x), op.Mul(inverse, basics.number(like, 0.5))), series)


def _seven_reciprocals(x: Any, like: Any) -> Any:
    """Sum `1 / (x + i)` for `i` from 0 to 6, in pairs that have a common numerator."""
    middle = op.Add(x, basics.number(like, 3.0))
    first = op.Mul(x, op.Add(x, basics.number(like, 6.0)))
    pairs: Any = op.Div(basics.number(like, 1.0), first)
    for more in (5.0, 8.0):
        pairs = op.Add(pairs, op.Div(basics.number(like, 1.0), op.Add(first, basics.number(like, more))))
    return op.Add(op.Mul(op.Add(middle, middle), pairs), op.Div(basics.number(like, 1.0), middle))


def _polynomial(x: Any, factors: Sequence[float], like: Any) -> Any:
    value: Any = basics.number(like, factors[-1])
    for factor in reversed(factors[:-1]):
        value = op.Add(op.Mul(value, x), basics.number(like, factor))
    return value
