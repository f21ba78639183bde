"""Conversion functions that the user gives, for one backend or for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ortlens.errors import UsageError

_lock = threading.Lock()
_registered: dict[Any, Callable[..., Any]] = {}


def register_op(target: Any, function: Callable[..., Any]) -> None:
    """Convert an operator with this function, in every backend of this process and from its next compilation on.

    Args:
        target: An op overload, as `torch.ops.mylib.scale.default`.
        function: An ONNX Script function that takes the operator's arguments. It is used before the built-in ones; a
            backend's own `custom_translation_table` goes before it.

    Raises:
        UsageError: The target is no op overload, or the function cannot be called.
    """
    check_entry(target, function, "register_op")
    with _lock:
        _registered[target] = function


def registered_ops() -> dict[Any, Callable[..., Any]]:
    """What `register_op` was given so far.

    Returns:
        Op overload -> function; a copy.
    """
    with _lock:
        return dict(_registered)


def check_entry(target: Any, function: Any, what: str) -> None:
    """Refuse an entry of a translation table that no graph could use.

    Args:
        target: Should be an op overload.
        function: Should be callable.
        what: Where the entry was given, for the message.

    Raises:
        UsageError: It is not; the message names the item and what to write instead.
    """
    if not hasattr(target, "_schema"):
        overloads = getattr(target, "overloads", None)
        advice = f"; name one of its overloads: {', '.join(f'{target}.{name}' for name in overloads())}" if callable(overloads) else ""
        raise UsageError(f"{what}: {target!r} is not an op overload such as torch.ops.aten.relu.default{advice}")
    if not callable(function):
        raise UsageError(f"{what}: the function given for {target} is a {type(function).__name__}, which cannot be called")


def check_table(table: Any) -> None:
    """Refuse a translation table with an entry that no graph could use.

    Args:
        table: Should map op overloads to functions.

    Raises:
        UsageError: It is no mapping, or an entry is wrong.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"custom_translation_table must map op overloads to ONNX Script functions, not be a {type(table).__name__}")
    for target, function in table.items():
        check_entry(target, function, "custom_translation_table")
