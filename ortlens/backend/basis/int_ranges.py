"""Bounds of the ints of a trace: what of Python's ints, which have no limit, the 64 bits of a model can hold."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INT64 = LEAST, LARGEST = -(2**63), 2**63 - 1
LIMITS = "ortlens.limits"
"""Key of the metadata of an ONNX value: the least and the largest int that it can be."""
_LARGEST_SIZE = 2**31 - 1  # of one dimension; numbers of larger ones are right as well, unless they leave the 64 bits


def int_range(value: object) -> tuple[int, int] | None:
    """Bound what an int of the trace can be; None where it may need more than 64 bits, which only Python's ints have."""
    node: Any = getattr(value, "node", None)
    bounds = _bounds(value if node is None else node.expr, {} if node is None else node.shape_env.var_to_range)
    return bounds if bounds is not None and INT64[0] <= bounds[0] and bounds[1] <= INT64[1] else None


def _bounds(expr: Any, known: Mapping[Any, Any]) -> tuple[int, int] | None:
    """Compute the bounds of an expression of sympy; torch's own `bound_sympy` takes milliseconds."""
    if isinstance(expr, int) or expr.is_Integer:
        return int(expr), int(expr)
    if expr.is_Symbol:
        least, largest = (0, _LARGEST_SIZE) if expr.is_positive else INT64
        limits = known.get(expr)
        lower: Any = getattr(limits, "lower", None)
        upper: Any = getattr(limits, "upper", None)
        return max(least, int(lower)) if _is_finite(lower) else least, min(largest, int(upper)) if _is_finite(upper) else largest
    rule = _BOUNDS.get(type(expr).__name__)
    operands = [_bounds(operand, known) for operand in expr.args]
    return None if rule is None or None in operands else functools.reduce(rule, operands)  # type: ignore[arg-type]  # none is None


def _is_finite(limit: Any) -> bool:
    return bool(getattr(limit, "is_Integer", isinstance(limit, int)))


def _corners(operation: Callable[[int, int], int]) -> Callable[[tuple[int, int], tuple[int, int]], tuple[int, int]]:
    """Compute the bounds of an operation that is monotonic in each operand."""

    def bounds(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        made = [operation(first, second) for first in one for second in other]
        return min(made), max(made)

    return bounds


def _quotient(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    if other[0] > 0 or other[1] < 0:
        return _corners(operator.floordiv)(one, other)
    span = max(-one[0], one[1])
    return -span, span  # the divisor is at least 1 or at most -1


def _power(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    span = max(-one[0], one[1])
    if not 0 <= other[0] <= other[1] <= _MOST_BITS:
        return -(2**64), 2**64
    return (0 if one[0] >= 0 else -(span ** other[1])), max(span ** other[1], 1)


_MOST_BITS = 64


_BOUNDS: dict[str, Callable[[tuple[int, int], tuple[int, int]], tuple[int, int]]] = {
    "Add": _corners(operator.add),
    "Mul": _corners(operator.mul),
    "Max": _corners(max),
    "Min": _corners(min),
    "FloorDiv": _quotient,
    "CleanDiv": _quotient,
    "Mod": lambda _, other: (min(other[0] + 1, 0), max(other[1] - 1, 0)),
    "PythonMod": lambda _, other: (min(other[0] + 1, 0), max(other[1] - 1, 0)),
    "Pow": _power,
    "PowByNatural": _power,
}
"""Name of a class of expressions -> bounds of two operands; sums and products may have more."""
