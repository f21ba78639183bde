"""Reads the value that a guard saw from the frame in which it failed.

Dynamo's texts contain the value that a guard expected, but often not the actual one. The names in a guard are looked up in the
locals of the frame, by a few plain steps: names, stored attributes, items of builtin containers, `len` and sizes of tensors. No code of
the user's runs: no property, no method and no `__getattr__`.
"""

from __future__ import annotations

import ast
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST = 60
_CONTAINERS = (dict, list, tuple)
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


def value_text(expression: str, scope: Mapping[str, Any], *, kind: bool = False) -> str | None:
    """Look up a guard's expression in a frame's locals (globals under `G`): its value or, with `kind`, its class; None if not found."""
    try:
        value = _look_up(ast.parse(expression.strip(), mode="eval").body, scope)
    except (SyntaxError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    is_plain = not kind and (type(value) in _PLAIN or isinstance(value, _PLAIN[-2:]))
    text = repr(value) if is_plain else f"<class '{type(value).__name__}'>"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _look_up(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return scope[node.id]
    if isinstance(node, ast.Attribute):
        return _stored(_look_up(node.value, scope), node.attr)
    if isinstance(node, ast.Subscript):
        return _item(_look_up(node.value, scope), ast.literal_eval(node.slice))
    if isinstance(node, ast.Call):
        return _called(node, scope)
    raise LookupError(ast.dump(node))


def _stored(owner: Any, name: str) -> Any:
    """Read a stored attribute without running code of the object."""
    held = inspect.getattr_static(owner, name)
    if isinstance(held, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        return held.__get__(owner)  # a slot, or a field of a builtin such as `__code__`
    if hasattr(type(held), "__get__") and not isinstance(held, types.FunctionType):
        raise LookupError(name)  # a property or another descriptor, which would run code
    return held


def _item(owner: Any, key: Any) -> Any:
    if type(owner) not in _CONTAINERS and not isinstance(owner, torch.Size):
        raise LookupError(type(owner).__name__)
    return owner[key]


def _called(node: ast.Call, scope: Mapping[str, Any]) -> Any:
    """Evaluate the calls in guards: `len(...)`, `x.size()`, and the keys of a dict."""
    function = node.func
    name = function.id if isinstance(function, ast.Name) else f".{function.attr}" if isinstance(function, ast.Attribute) else ""
    if name == ".size" and not node.args and isinstance(function, ast.Attribute):
        tensor = _look_up(function.value, scope)
        if isinstance(tensor, torch.Tensor):
            return torch.Tensor.size(tensor)
    if name in ("len", "list", ".keys") and len(node.args) == 1:
        held = _look_up(node.args[0], scope)
        if type(held) in (_CONTAINERS if name != ".keys" else (dict,)):
            return len(held) if name == "len" else list(held)
    raise LookupError(ast.dump(function))
