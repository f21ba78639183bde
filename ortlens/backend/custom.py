"""Conversion functions of the user's, for one backend or for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ortlens.errors import UsageError

_lock = threading.Lock()
_registered: dict[Any, Callable[..., Any]] = {}


def register_op(target: Any, function: Callable[..., Any]) -> None:
    """Convert an operator with a function of your own, in all later compilations of this process.

    Args:
        target: An op overload, such as `torch.ops.mylib.scale.default`.
        function: An ONNX Script function that takes the operator's arguments. It takes precedence over the built-in function; a
            backend's `custom_translation_table` takes precedence over it.

    Raises:
        UsageError: The target is not an op overload, or the function is not callable.
    """
    check_entry(target, function, "register_op")
    with _lock:
        _registered[target] = function


def registered_ops() -> dict[Any, Callable[..., Any]]:
    """Copy the table of the functions that were registered so far, by op overload."""
    with _lock:
        return dict(_registered)


def check_entry(target: Any, function: Any, what: str) -> None:
    """Raise `UsageError` unless the target is an op overload and the function callable; `what` says where the entry is from."""
    if not hasattr(target, "_schema"):
        overloads = getattr(target, "overloads", None)
        advice = f"; name one of its overloads: {', '.join(f'{target}.{name}' for name in overloads())}" if callable(overloads) else ""
        raise UsageError(f"{what}: {target!r} is not an op overload such as torch.ops.aten.relu.default{advice}")
    if not callable(function):
        raise UsageError(f"{what}: the function for {target} is a {type(function).__name__}, which is not callable")


def check_table(table: Any) -> None:
    """Raise `UsageError` unless a translation table maps op overloads to functions."""
    if not isinstance(table, Mapping):
        raise UsageError(f"custom_translation_table must map op overloads to ONNX Script functions, not be a {type(table).__name__}")
    for target, function in table.items():
        check_entry(target, function, "custom_translation_table")
