"""What a frozen callable takes: a description of each leaf of its arguments, and what differs from it. Standard library only.

`save` copies this file beside the models, where it runs without ortlens.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SHORT = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf"}


@dataclass(frozen=True, slots=True)
class Size:
    """A size that varies: `factor` times a named number, plus `offset`."""

    name: str
    factor: int = 1
    offset: int = 0

    def __str__(self) -> str:
        """Return text such as `2*s0+1`."""
        scaled = self.name if self.factor == 1 else f"{self.factor}*{self.name}"
        return scaled if not self.offset else f"{scaled}{self.offset:+d}"


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor: name in messages, dtype such as `float32`, a size per dimension, and the type of its device."""

    name: str
    dtype: str
    sizes: tuple[int | Size, ...]
    device: str = "cpu"

    def __str__(self) -> str:
        """Return text such as `f32[2,s0]`."""
        return _tensor_text(self.dtype, self.sizes, self.device)


@dataclass(frozen=True, slots=True)
class NumberLeaf:
    """A whole number that varies."""

    name: str
    size: Size

    def __str__(self) -> str:
        """Return text such as `int s0`."""
        return f"int {self.size}"


@dataclass(frozen=True, slots=True)
class ConstantLeaf:
    """A value that was built into the program."""

    name: str
    value: Any

    def __str__(self) -> str:
        """Return text such as `True`."""
        return repr(self.value)


Leaf = TensorLeaf | NumberLeaf | ConstantLeaf


@dataclass(frozen=True, slots=True)
class Given:
    """What is known of a tensor or array that was passed."""

    dtype: str
    shape: tuple[int, ...]
    device: str = "cpu"

    def __str__(self) -> str:
        """Return text such as `f32[2,3]`."""
        return _tensor_text(self.dtype, self.shape, self.device)


@dataclass(frozen=True, slots=True)
class Signature:
    """The leaves of the arguments, in order."""

    leaves: tuple[Leaf, ...]  # one per leaf
    ranges: Mapping[str, tuple[int | None, int | None]]  # name of a size -> least and largest value; None for no limit

    @property
    def varies(self) -> bool:
        """Whether some size or number varies."""
        return any(
            isinstance(leaf, NumberLeaf) or (isinstance(leaf, TensorLeaf) and any(isinstance(size, Size) for size in leaf.sizes))
            for leaf in self.leaves
        )

    def differences(self, values: Sequence[Any], given_of: Callable[[Any], Given | str | None]) -> list[str]:
        """Describe each leaf that differs from the signature: which, expected, given. Empty when all are accepted.

        `given_of` returns a text for a tensor that fits no signature, and None for a value that is no tensor.
        """
        found: list[str] = []
        sizes: dict[str, tuple[int, str]] = {}
        for leaf, value in zip(self.leaves, values, strict=True):
            if isinstance(leaf, ConstantLeaf):
                found += [] if is_same_constant(leaf.value, value) else [_differs(leaf, value_text(value), " (constant since tracing)")]
            elif isinstance(leaf, NumberLeaf):
                whole = isinstance(value, int) and not isinstance(value, bool)
                found += self._size(leaf.name, leaf.size, value, sizes) if whole else [_differs(leaf, value_text(value))]
            else:
                found += self._tensor(leaf, given_of(value), value, sizes)
        return found

    def _tensor(self, leaf: TensorLeaf, given: Given | str | None, value: Any, sizes: dict[str, tuple[int, str]]) -> list[str]:
        if not isinstance(given, Given):
            return [_differs(leaf, given or value_text(value))]
        fixed = [size for size in leaf.sizes if isinstance(size, int)]
        same_rank = len(given.shape) == len(leaf.sizes)
        there = [got for got, size in zip(given.shape, leaf.sizes, strict=False) if isinstance(size, int)]
        if (given.dtype, given.device) != (leaf.dtype, leaf.device) or not same_rank or there != fixed:
            return [_differs(leaf, str(given))]
        found: list[str] = []
        for dim, (size, got) in enumerate(zip(leaf.sizes, given.shape, strict=True)):
            if isinstance(size, Size):
                found += self._size(f"{leaf.name}.shape[{dim}]", size, got, sizes)
        return found

    def _size(self, where: str, size: Size, got: int, sizes: dict[str, tuple[int, str]]) -> list[str]:
        base, rest = divmod(got - size.offset, size.factor)
        least, most = self.ranges.get(size.name, (None, None))
        if rest:
            return [f"{where}: expected {size}, given {got}"]
        if (least is not None and base < least) or (most is not None and base > most):
            between = f"from {least}" if most is None else f"to {most}" if least is None else f"from {least} to {most}"
            return [f"{where}: expected {size} with {size.name} {between}, given {got}"]
        known, first = sizes.setdefault(size.name, (base, where))
        return [] if known == base else [f"{where}: expected {size} with {size.name} = {known} as in {first}, given {got}"]


def is_same_constant(expected: Any, given: Any) -> bool:
    """Tell whether a value equals the traced one and has its type; a NaN equals another NaN, 0.0 is not -0.0."""
    if expected is given:
        return True
    if type(expected) is not type(given):
        return False
    try:
        if isinstance(expected, float):  # whose texts tell zeros apart, and not NaNs
            return repr(expected) == repr(given)
        return bool(expected == given)
    except Exception:  # noqa: BLE001 - objects that cannot be compared are not the same
        return False


def _differs(leaf: Leaf, given: str, note: str = "") -> str:
    return f"{leaf.name}: expected {leaf}{note}, given {given}"


def _tensor_text(dtype: str, sizes: Sequence[object], device: str) -> str:
    stem = dtype.rstrip("0123456789")
    short = f"{_SHORT[stem]}{dtype[len(stem) :]}" if stem in _SHORT else dtype
    return f"{short}[{','.join(map(str, sizes))}]" + ("" if device == "cpu" else f" on {device}")


def value_text(value: Any) -> str:
    """Show a value in a message: plain values as they are, other objects by their type."""
    text = repr(value) if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - fits a line


class UnknownForm(ValueError):  # noqa: N818 - a verdict on arguments
    """Arguments have another structure than a tree."""


Tree = Any
"""A structure as JSON: `"*"` for a leaf, `["tuple", [tree, ...]]`, `["list", [...]]`, `["dict", [[key, tree], ...]]`, or
`["object", name, [[key, tree], ...]]` for an object with named parts, which comes back as a dict."""


def flat(tree: Tree, value: Any) -> list[Any]:
    """Take a value apart into its leaves, in order; raises `UnknownForm` if it has another structure."""
    if tree == "*":
        return [value]
    kind, children = tree[0], tree[-1]
    if kind in ("tuple", "list"):
        if not isinstance(value, (tuple, list)) or len(value) != len(children):
            raise UnknownForm(f"expected {tree_text(tree)}, given {_count_of(value)}")
        return [leaf for child, item in zip(children, value, strict=True) for leaf in flat(child, item)]
    if kind not in ("dict", "object"):
        raise ValueError(f"{kind!r} is no structure")
    keys = [key for key, _ in children]
    value = _with_keys(value) if kind == "object" else value
    if not hasattr(value, "keys") or len(value) != len(keys) or any(key not in value for key in keys):
        raise UnknownForm(f"expected {tree_text(tree)}, given {_count_of(value)}")
    return [leaf for key, child in children for leaf in flat(child, value[key])]


def _with_keys(value: Any) -> Any:
    """Return the parts of a named tuple, or those of a dataclass that are there, by name; anything else as it is."""
    if hasattr(value, "keys") or isinstance(value, type):
        return value
    parts = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else {}
    return value._asdict() if hasattr(value, "_asdict") else {name: part for name, part in parts.items() if part is not None} or value


def unflat(tree: Tree, leaves: Sequence[Any]) -> Any:
    """Build a value from its leaves, in order; raises ValueError for a wrong number of leaves or an invalid structure."""
    rest = iter(leaves)
    made = _built(tree, rest)
    if next(rest, rest) is not rest:
        raise ValueError("there are more leaves than in the structure")
    return made


def _built(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree == "*":
        try:
            return next(leaves)
        except StopIteration:
            raise ValueError("there are fewer leaves than in the structure") from None
    kind, children = tree[0], tree[-1]
    if kind in ("tuple", "list"):
        items = [_built(child, leaves) for child in children]
        return tuple(items) if kind == "tuple" else items
    if kind not in ("dict", "object"):
        raise ValueError(f"{kind!r} is no structure")
    return {key: _built(child, leaves) for key, child in children}


def tree_text(tree: Tree) -> str:
    """Show a structure in a message, such as `(*, {'mask': *})`."""
    if tree == "*":
        return "*"
    kind, children = tree[0], tree[-1]
    if kind in ("tuple", "list"):
        inner = ", ".join(map(tree_text, children))
        return f"({inner})" if kind == "tuple" else f"[{inner}]"
    return "{" + ", ".join(f"{key!r}: {tree_text(child)}" for key, child in children) + "}"


def _count_of(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"the keys {', '.join(map(repr, value))}" if hasattr(value, "keys") else type(value).__name__


def json_from_signature(signature: Signature) -> dict[str, Any]:
    """Convert a signature, whose constants are None, booleans, numbers and strings, to plain lists, dicts and values."""
    return {
        "leaves": [_json_of(leaf) for leaf in signature.leaves],
        "ranges": {name: list(pair) for name, pair in signature.ranges.items()},
    }


def _json_of(leaf: Leaf) -> dict[str, Any]:
    if isinstance(leaf, ConstantLeaf):
        return {"name": leaf.name, "constant": leaf.value}
    if isinstance(leaf, NumberLeaf):
        return {"name": leaf.name, "number": [leaf.size.name, leaf.size.factor, leaf.size.offset]}
    sizes = [size if isinstance(size, int) else [size.name, size.factor, size.offset] for size in leaf.sizes]
    return {"name": leaf.name, "dtype": leaf.dtype, "sizes": sizes}


def signature_from_json(given: Mapping[str, Any]) -> Signature:
    """Read what `json_from_signature` wrote; raises ValueError, KeyError or TypeError for other JSON."""
    ranges = {str(name): (_whole_or_none(least), _whole_or_none(most)) for name, (least, most) in given["ranges"].items()}
    return Signature(tuple(_leaf_from(entry) for entry in given["leaves"]), ranges)


def _leaf_from(entry: Mapping[str, Any]) -> Leaf:
    name = str(entry["name"])
    if "constant" in entry:
        return ConstantLeaf(name, entry["constant"])
    if "number" in entry:
        return NumberLeaf(name, _size_from(entry["number"]))
    sizes = tuple(_whole(size) if isinstance(size, int) else _size_from(size) for size in entry["sizes"])
    return TensorLeaf(name, str(entry["dtype"]), sizes)


def _size_from(entry: Any) -> Size:
    name, factor, offset = entry
    if _whole(factor) < 1:
        raise ValueError(f"{factor} times a size is no size")
    return Size(str(name), factor, _whole(offset))


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else _whole(value)


_MOST_BITS = 1 << 20  # the longest whole number that a power may have: a manifest of any origin must not fill the memory


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _MOST_BITS:
        raise OverflowError
    return base**exponent


OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "not": operator.not_,
    "max": max,
    "min": min,
    "abs": abs,
    "round": round,
    "ceil": math.ceil,
    "floor": math.floor,
    "trunc": math.trunc,
    "float": float,
    "sqrt": math.sqrt,
}


def admits(guard: Any, values: Sequence[Any]) -> bool:
    """Evaluate a guard of tracing, given as JSON, over the sizes of arguments; False where it is undefined.

    A guard is a number, `["size", leaf, dim]`, `["value", leaf]`, `["if", condition, x, y]`, or like `["and", ...]`, `["==", x, y]`.
    """
    try:
        return bool(_evaluated(guard, values))
    except (ArithmeticError, ValueError, TypeError):  # not defined, as a remainder by a size of 0; TypeError: complex numbers have no order
        return False


def _evaluated(guard: Any, values: Sequence[Any]) -> Any:
    if isinstance(guard, (bool, int, float)):
        return guard
    kind, *operands = guard
    if kind == "size":
        return values[operands[0]].shape[operands[1]]
    if kind == "value":
        return values[operands[0]]
    if kind in ("and", "or"):
        results = (_evaluated(operand, values) for operand in operands)
        return all(results) if kind == "and" else any(results)
    if kind == "if":
        condition, *branches = operands
        return _evaluated(branches[not _evaluated(condition, values)], values)
    return OPERATIONS[kind](*(_evaluated(operand, values) for operand in operands))
