"""Element types and the numbers that they hold: torch dtype, ONNX number and short name of each, and bounds of the ints of a trace.

Python's ints have no limit; a model has 64 bits for one.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class ElementType(NamedTuple):
    """An element type in ONNX and in signatures."""

    onnx: int  # number in `onnx.TensorProto.DataType`
    short: str  # name in signatures, such as `f32`


ELEMENT_TYPES = {
    torch.float32: ElementType(1, "f32"),
    torch.uint8: ElementType(2, "u8"),
    torch.int8: ElementType(3, "i8"),
    torch.uint16: ElementType(4, "u16"),
    torch.int16: ElementType(5, "i16"),
    torch.int32: ElementType(6, "i32"),
    torch.int64: ElementType(7, "i64"),
    torch.bool: ElementType(9, "bool"),
    torch.float16: ElementType(10, "f16"),
    torch.float64: ElementType(11, "f64"),
    torch.uint32: ElementType(12, "u32"),
    torch.uint64: ElementType(13, "u64"),
    torch.bfloat16: ElementType(16, "bf16"),
}
"""The dtypes that PyTorch and ONNX Runtime store alike, with the numbers of `TensorProto.DataType` and short names."""


def fits(number: float, dtype: torch.dtype) -> bool:
    """Tell whether an element type holds a number, so that PyTorch converts it; floats hold infinity and NaN."""
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return limits.min <= number <= limits.max or (dtype.is_floating_point and not math.isfinite(number))


def constant(value: float, onnx: int) -> Any:
    """Make a constant without dimensions; infinity for what is beyond the range of a float."""
    import numpy as np
    import onnx_ir as ir

    with np.errstate(over="ignore"):
        return ir.tensor(value, dtype=ir.DataType(onnx))


def nearest(number: float, onnx: int) -> float:
    """Round a number to a floating-point type, given by its ONNX number."""
    return float(constant(float(number), onnx).numpy())


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
