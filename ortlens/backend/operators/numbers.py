"""Functions of numbers: sizes, arguments of type int, and what a program computes from them.

Python's ints have no limit, its floats have 64 bits, and it raises where a result is not defined. Here an int has 64 bits. Where the result
may need more, or may not be defined, the model fails instead of going on with another number: PyTorch then computes the call.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from ortlens.backend.basis.dtypes import LARGEST, LEAST, LIMITS
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op
from ortlens.backend.operators.facts import Call, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable

_EXACT = 2**53  # ints up to here are floats
_MOST_SHIFTS = 62


def _limits(x: Any) -> tuple[int, int]:
    return x.meta.get(LIMITS) or (LEAST, LARGEST) if basics.is_value(x) else (int(x), int(x))


def _is_float(x: Any) -> bool:
    return basics.is_float(x) if basics.is_value(x) else isinstance(x, float)


def _is_bool(x: Any) -> bool:
    return isinstance(x, bool) or (basics.is_value(x) and int(x.dtype) == basics.BOOL)


def _constant(x: float, dtype: int) -> Any:
    return op.Constant(value=ir.tensor(x, dtype=ir.DataType(dtype)))


def _int(x: Any) -> Any:
    """Convert a number to an int of the model; limits of a bool are those of 0 and 1."""
    if not basics.is_value(x):
        return _typed(_constant(int(x), basics.INT64), (int(x), int(x)))
    return _typed(op.Cast(x, to=basics.INT64), (0, 1)) if _is_bool(x) else x


def _double(x: Any) -> Any:
    if not basics.is_value(x):
        return _float_value(_constant(float(x), basics.DOUBLE))
    return x if _is_float(x) else _float_value(op.Cast(x, to=basics.DOUBLE))


def _typed(made: Any, limits: tuple[int, int] | None) -> Any:
    made.dtype, made.shape = ir.DataType.INT64, ir.Shape([])
    made.meta[LIMITS] = limits
    return made


def _float_value(made: Any) -> Any:
    made.dtype, made.shape = ir.DataType.DOUBLE, ir.Shape([])
    return made


def _whole(made: Any, corners: tuple[int, ...], broken: Callable[[], Any]) -> Any:
    """Return an int that a function made; where it may need more than 64 bits, the run fails if it does."""
    limits = min(corners), max(corners)
    if limits[0] >= LEAST and limits[1] <= LARGEST:
        return _typed(made, limits)
    return _typed(basics.unless(broken(), made), None)


def _sum_or_difference(name: str, sign: int, lowers: str) -> Callable[..., Any]:
    """Make a sum or a difference; one that wraps is below `x` though `y` does not lower it, or the reverse."""

    def made(x: Any, y: Any) -> Any:
        if _is_float(x) or _is_float(y):
            return getattr(op, name)(_double(x), _double(y))
        x, y = _int(x), _int(y)
        (low, high), (least, largest), result = _limits(x), sorted(sign * limit for limit in _limits(y)), getattr(op, name)(x, y)
        return _whole(result, (low + least, high + largest), lambda: op.Xor(getattr(op, lowers)(y, _int(0)), op.Less(result, x)))

    return made


add, sub = _sum_or_difference("Add", 1, "Less"), _sum_or_difference("Sub", -1, "Greater")
torch_op(operator.add)(add)
torch_op(operator.sub)(sub)


@torch_op(operator.mul)
def mul(x: Any, y: Any) -> Any:
    """`operator.mul`; floats tell whether a product of ints has 64 bits, since they do not wrap."""
    if _is_float(x) or _is_float(y):
        return op.Mul(_double(x), _double(y))
    x, y = _int(x), _int(y)
    corners = tuple(one * other for one in _limits(x) for other in _limits(y))
    return _whole(op.Mul(x, y), corners, lambda: _is_past_64_bits(op.Mul(_double(x), _double(y))))


def _is_past_64_bits(x: Any) -> Any:
    """Tell whether a float is no int of 64 bits, with a margin for its rounding; NaN is none."""
    return op.Not(op.Less(op.Abs(x), _double(float(2**63 - 2**12))))


@torch_op(operator.abs, builtins.abs)
def absolute(x: Any) -> Any:
    if _is_float(x):
        return op.Abs(x)
    x = _int(x)
    low, high = _limits(x)
    return _whole(op.Abs(x), (max(low, -high, 0), max(-low, high)), lambda: op.Equal(x, _int(LEAST)))


def _divisor(x: Any, y: Any) -> Any:
    """Guard a divisor of an int: dividing the least int by -1 ends the process; by 0, ONNX Runtime raises."""
    (least, largest) = _limits(y)
    if _limits(x)[0] > LEAST or not least <= -1 <= largest:
        return y
    return _typed(basics.unless(op.And(op.Equal(x, _int(LEAST)), op.Equal(y, _int(-1))), y), (least, largest))


@torch_op(operator.floordiv)
def floordiv(x: Any, y: Any) -> Any:
    """`operator.floordiv` of ints; rounds down."""
    x, y = _int(x), _int(y)
    (low, high), (least, largest), divisor = _limits(x), _limits(y), _divisor(x, y)
    span = max(-low, high)
    limits = -span - 1 if span > LARGEST else -span, min(span, LARGEST)
    if low >= 0 and least >= 0:
        return _typed(op.Div(x, divisor), (0, high))
    reach = max(-least, largest)
    if low - reach >= LEAST and high + reach <= LARGEST:
        return _typed(op.Div(op.Sub(x, op.Mod(x, divisor)), divisor), limits)
    return _typed(basics.own(torch.ops.aten.floor_divide.default)(x, divisor), None)


@torch_op(operator.mod)
def mod(x: Any, y: Any) -> Any:
    """`operator.mod` of ints; has the sign of the divisor, as Mod has."""
    x, y = _int(x), _int(y)
    least, largest = _limits(y)
    return _typed(op.Mod(x, _divisor(x, y)), (min(least + 1, 0), max(largest - 1, 0)))


@torch_op(operator.pow, builtins.pow)
def power(x: Any, exponent: int) -> Any:
    """`operator.pow` of an int and a small constant that is not negative, as products."""
    made = _int(1)
    for _ in range(exponent):
        made = mul(made, x)
    return made


def _bitwise(of_ints: str, of_bools: str) -> Callable[..., Any]:
    def bitwise(x: Any, y: Any) -> Any:
        if _is_bool(x) and _is_bool(y):
            first, second = (value if basics.is_value(value) else _constant(value, basics.BOOL) for value in (x, y))
            return getattr(op, of_bools)(first, second)
        return getattr(op, of_ints)(_int(x), _int(y))

    return bitwise


@torch_op(operator.not_, torch.sym_not)
def negation(x: Any) -> Any:
    return op.Not(x) if _is_bool(x) else op.Equal(x, _double(0) if _is_float(x) else _int(0))


def _alike(x: Any, y: Any) -> tuple[Any, Any]:
    """Convert two numbers to compare to one element type; an int that a float cannot be makes the model fail."""
    if not (_is_float(x) or _is_float(y)):
        return _int(x), _int(y)
    return _as_exact_double(x), _as_exact_double(y)


def _as_exact_double(x: Any) -> Any:
    if _is_float(x) or all(-_EXACT <= limit <= _EXACT for limit in _limits(x)):
        return _double(x)
    x = _int(x)
    inside = op.And(op.LessOrEqual(x, _int(_EXACT)), op.GreaterOrEqual(x, _int(-_EXACT)))
    return _float_value(basics.unless(op.Not(inside), _double(x)))


def _comparison(name: str, *, negated: bool = False) -> Callable[..., Any]:
    def compare(x: Any, y: Any) -> Any:
        made = getattr(op, name)(*_alike(x, y))
        return op.Not(made) if negated else made

    return compare


def _extreme(compare: str) -> Callable[..., Any]:
    """Make a maximum or minimum: ONNX Runtime's Max and Min compare a part of the bits."""

    def extreme(x: Any, y: Any) -> Any:
        x, y = _alike(x, y)
        return op.Where(getattr(op, compare)(y, x), y, x)

    return extreme


@torch_op(torch.sym_ite)
def choice(condition: Any, x: Any, y: Any) -> Any:
    if _is_bool(x) and _is_bool(y):
        x, y = (value if basics.is_value(value) else _constant(value, basics.BOOL) for value in (x, y))
        return op.Where(condition, x, y)
    return op.Where(condition, *_alike(x, y))


@torch_op(operator.truediv)
def truediv(x: Any, y: Any) -> Any:
    """`operator.truediv`; the quotient of ints that are no floats is rounded otherwise, and makes the model fail."""
    both = not (_is_float(x) or _is_float(y))
    x, y = (_as_exact_double(value) if both else _double(value) for value in (x, _nonzero(y)))
    return op.Div(x, y)


def _nonzero(y: Any) -> Any:
    if not basics.is_value(y):
        return y
    if _is_float(y):
        return _float_value(basics.unless(op.Equal(y, _double(0.0)), y))
    least, most = _limits(y)
    return y if least > 0 or most < 0 else _typed(basics.unless(op.Equal(_int(y), _int(0)), _int(y)), (least, most))


@torch_op(torch.sym_sqrt, math.sqrt)
def sqrt(x: Any) -> Any:
    """`math.sqrt`, which raises below zero."""
    x = _double(x)
    return op.Sqrt(basics.unless(op.Less(x, _double(0.0)), x))


def _rounded(name: str) -> Callable[..., Any]:
    """Make a function from float to int; NaN, infinities and what needs more than 64 bits make the model fail."""

    def rounded(x: Any, _digits: None = None) -> Any:
        if not _is_float(x):
            return op.Identity(_int(x))
        made = op.Where(op.Less(x, _double(0.0)), op.Ceil(x), op.Floor(x)) if name == "Trunc" else getattr(op, name)(x)
        return op.Cast(basics.unless(_is_past_64_bits(x), _float_value(made)), to=basics.INT64)

    return rounded


torch_op(operator.pos)(lambda x: op.Identity(x))  # noqa: PLW0108 - a method of an operator set has no signature of its own
torch_op(operator.neg)(lambda x: op.Neg(x) if _is_float(x) else sub(0, x))
torch_op(operator.lshift)(lambda x, places: mul(x, 1 << places))
torch_op(operator.rshift)(lambda x, places: floordiv(x, 1 << places))
torch_op(operator.invert)(lambda x: op.BitwiseNot(_int(x)))
torch_op(torch.sym_sum)(lambda items: functools.reduce(add, items, 0))
torch_op(torch.sym_float)(lambda x: op.Identity(_double(x)))
torch_op(operator.and_)(_bitwise("BitwiseAnd", "And"))
torch_op(operator.or_)(_bitwise("BitwiseOr", "Or"))
torch_op(operator.xor)(_bitwise("BitwiseXor", "Xor"))
torch_op(torch.sym_max, builtins.max)(_extreme("Greater"))
torch_op(torch.sym_min, builtins.min)(_extreme("Less"))
torch_op(operator.eq)(_comparison("Equal"))
torch_op(operator.ne)(_comparison("Equal", negated=True))
torch_op(operator.lt)(_comparison("Less"))
torch_op(operator.le)(_comparison("LessOrEqual"))
torch_op(operator.gt)(_comparison("Greater"))
torch_op(operator.ge)(_comparison("GreaterOrEqual"))
torch_op(torch.sym_int)(_rounded("Trunc"))
torch_op(math.floor)(_rounded("Floor"))
torch_op(math.ceil)(_rounded("Ceil"))
torch_op(math.trunc)(_rounded("Trunc"))
torch_op(builtins.round)(_rounded("Round"))


def _values(call: Call) -> list[Any]:
    return [item.meta.get("val") if isinstance(item, torch.fx.Node) else item for item in call.node.args]


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt))


def _is_shift(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= _MOST_SHIFTS


facts.wrong(
    operator.pow,
    reason="knows powers of whole numbers with a small constant exponent only",
    when=lambda call: not (_is_whole(_values(call)[0]) and _is_shift(_values(call)[1])),
)
facts.wrong(
    *(operator.lshift, operator.rshift),
    reason=f"knows shifts by a constant up to {_MOST_SHIFTS} only",
    when=lambda call: not _is_shift(_values(call)[1]),
)
facts.wrong(operator.floordiv, operator.mod, reason="knows whole numbers only", when=lambda call: not all(map(_is_whole, _values(call))))
facts.wrong(builtins.round, reason="rounds to whole numbers only", when=lambda call: any(value is not None for value in _values(call)[1:]))
