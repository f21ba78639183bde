"""The logarithm of the gamma function and its first two derivatives.

Computed in float64 and rounded once, so that the zeros of the logarithm keep their digits in float32. For float64 the series are too
short, and these operators stay in PyTorch, see `partitioning/wrong_values.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten, _prims = torch.ops.aten, torch.ops.prims
_LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)
"""Godfrey's coefficients for g = 7."""
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132)
"""Those of `1 / x ** 2`, `1 / x ** 4` ... in the asymptotic series of digamma."""
_FAR = 1e30


def lgamma(x: Any) -> Any:
    """`aten.lgamma`: Lanczos' series, and the reflection formula below 0.5."""
    op, wide = basics.opset(), _wide(x)
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


def digamma(x: Any) -> Any:
    """`aten.digamma`: the asymptotic series of `x + 7`, and the reflection formula below 0; NaN at negative integers."""
    op, wide = basics.opset(), _wide(x)
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
    op, wide = basics.opset(), _wide(x)
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


def polygamma(n: int, x: Any) -> Any:
    """`aten.polygamma` of 0 and 1; the others need the zeta function."""
    return digamma(x) if n == 0 else trigamma(x)


def _wide(x: Any) -> Any:
    return basics.typed(basics.opset().Cast(x, to=basics.DOUBLE), basics.DOUBLE, x)


def _turned(wide: Any) -> Any:
    """Compute the angle `pi * x` without its whole half turns, so that none of its digits are lost."""
    op = basics.opset()
    return op.Mul(op.Sub(wide, op.Round(wide)), basics.number(wide, math.pi))


def _asymptotic(x: Any, like: Any) -> Any:
    """Compute digamma of numbers from 7 on."""
    op = basics.opset()
    inverse = op.Div(basics.number(like, 1.0), x)
    square = op.Mul(inverse, inverse)
    series = op.Mul(square, _polynomial(square, _BERNOULLI, like))
    return op.Sub(op.Sub(op.Log(x), op.Mul(inverse, basics.number(like, 0.5))), series)


def _seven_reciprocals(x: Any, like: Any) -> Any:
    """Sum `1 / (x + i)` for `i` from 0 to 6, in pairs that have a common numerator."""
    op = basics.opset()
    middle = op.Add(x, basics.number(like, 3.0))
    first = op.Mul(x, op.Add(x, basics.number(like, 6.0)))
    pairs: Any = op.Div(basics.number(like, 1.0), first)
    for more in (5.0, 8.0):
        pairs = op.Add(pairs, op.Div(basics.number(like, 1.0), op.Add(first, basics.number(like, more))))
    return op.Add(op.Mul(op.Add(middle, middle), pairs), op.Div(basics.number(like, 1.0), middle))


def _polynomial(x: Any, factors: Sequence[float], like: Any) -> Any:
    op = basics.opset()
    value: Any = basics.number(like, factors[-1])
    for factor in reversed(factors[:-1]):
        value = op.Add(op.Mul(value, x), basics.number(like, factor))
    return value


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.lgamma.default: lgamma,
    _aten.digamma.default: digamma,
    _aten.polygamma.default: polygamma,
    _prims.lgamma.default: lgamma,
    _prims.digamma.default: digamma,
}
"""Op overload -> function."""
