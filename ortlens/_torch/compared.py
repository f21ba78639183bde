"""Comparisons of sizes that a trace decides without a note, because PyTorch takes sizes that vary for 2 at least, or for more than 0."""

from __future__ import annotations

import contextlib
import contextvars
import operator
import threading
from typing import TYPE_CHECKING, Any

from ortlens._torch.tensors import expression_of, expression_over, is_symbolic, size_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Comparison = tuple[str, Any, Any]

_OPERATORS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_METHODS = {"__eq__": "==", "__ne__": "!=", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">=", "__bool__": "!="}
_CHOICES = ("__sym_max__", "__sym_min__")  # of `max(size, 1)`, which is the size where that is 1 at least

_NOTES: contextvars.ContextVar[Callable[[Comparison], None] | None] = contextvars.ContextVar("notes of comparisons", default=None)
_LOCK = threading.Lock()
_ORIGINALS: dict[str, Any] = {}
_DEPTH = [0]


@contextlib.contextmanager
def sizes_compared(is_asked: Callable[[], bool]) -> Iterator[list[Comparison]]:
    """Collect the comparisons of sizes that vary, as `(">", size, 8)`, at which `is_asked` is true; for other threads nothing changes."""
    import torch

    found: list[Comparison] = []
    token = _NOTES.set(lambda comparison: found.append(comparison) if is_asked() else None)
    with _LOCK:
        _DEPTH[0] += 1
        if _DEPTH[0] == 1:
            _ORIGINALS.update({method: getattr(torch.SymInt, method) for method in (*_METHODS, *_CHOICES)})
            for method, original in _ORIGINALS.items():
                setattr(torch.SymInt, method, _noted(original, _METHODS[method]) if method in _METHODS else _noted_choice(original))
    try:
        yield found
    finally:
        _NOTES.reset(token)
        with _LOCK:
            _DEPTH[0] -= 1
            if not _DEPTH[0]:
                for method, original in _ORIGINALS.items():
                    setattr(torch.SymInt, method, original)


def _noted(original: Callable[..., Any], symbol: str) -> Callable[..., Any]:
    def compared(size: Any, *other: Any) -> Any:
        if (note := _NOTES.get()) is not None:
            note((symbol, size, *(other or (0,))))  # a truth value is whether it is not 0
        return original(size, *other)

    return compared


def _noted_choice(original: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(size: Any, other: Any) -> Any:
        made = original(size, other)
        if (note := _NOTES.get()) is not None and expression_of(made) in (expression_of(size), expression_of(other)):
            note((">=", size, other))
        return made

    return chosen


def unnoted_guards(comparisons: Sequence[Comparison], sources: Mapping[Any, str], ranges: Mapping[Any, Any]) -> list[str]:
    """Write as guards what comparisons gave in a trace, if they give something else where a size is 0 or 1 and `ranges` allows that.

    `sources` is as for `expression_over`; `ranges` has the range of each symbol.
    """
    import torch

    guards: list[str] = []
    for symbol, *sides in comparisons:
        texts = [expression_over(side, sources) for side in sides]
        if None in texts or not all(isinstance(side, (int, torch.SymInt)) for side in sides):
            continue
        held = _OPERATORS[symbol](*map(size_hint, sides))
        symbols = {name for side in sides if is_symbolic(side) for name in side.node.expr.free_symbols}
        others = [(name, small) for name in symbols for small in (0, 1) if name in ranges and small in ranges[name]]
        if any(_holds(symbol, sides, *other) == (not held) for other in others):
            guards.append(f" {symbol if held else _OPPOSITES[symbol]} ".join(map(str, texts)))
    return list(dict.fromkeys(guards))


def _holds(symbol: str, sides: Sequence[Any], name: Any, value: int) -> bool | None:
    """Make a comparison with another value of a symbol; None where its sides have none then, as of a division by 0."""
    try:
        return bool(_OPERATORS[symbol](*(_with(side, name, value) for side in sides)))
    except (ArithmeticError, TypeError, ValueError):
        return None


def _with(side: Any, name: Any, value: int) -> int:
    if isinstance(side, int):
        return side
    expression, hints = side.node.expr, side.node.shape_env.backed_var_to_val
    values = {symbol: hints.get(symbol, 1) for symbol in expression.free_symbols}
    return int(expression.subs(values | {name: value}))
