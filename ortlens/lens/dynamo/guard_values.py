"""The value that a guard saw, read from the frame that it failed for.

Dynamo's texts tell what a guard expected and often not what came instead. The names in a guard are looked up in the locals of
the frame, by a few plain steps: names, attributes as they are stored, items of builtin containers, `len` and sizes of tensors.
Nothing is evaluated: no property, no method of the user's and no `__getattr__` runs.
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


def value_text(expression: str, scope: Mapping[str, Any]) -> str | None:
    """What an expression of a guard stands for.

    Args:
        expression: As in Dynamo's text, `self._modules['drop'].training`.
        scope: Locals of the frame, and its globals under `G`.

    Returns:
        The value in at most 60 characters, the class of an object that is no plain value; None when it cannot be looked up.
    """
    try:
        value = _look_up(ast.parse(expression.strip(), mode="eval").body, scope)
    except (SyntaxError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    text = repr(value) if type(value) in _PLAIN or isinstance(value, _PLAIN[-2:]) else _class_text(type(value))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def type_text(expression: str, scope: Mapping[str, Any]) -> str | None:
    """The class of what an expression of a guard stands for.

    Args:
        expression: As for `value_text`.
        scope: Likewise.

    Returns:
        Its name; None when it cannot be looked up.
    """
    try:
        return _class_text(type(_look_up(ast.parse(expression.strip(), mode="eval").body, scope)))
    except (SyntaxError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _class_text(kind: type) -> str:
    return f"<class '{kind.__name__}'>"


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
    """An attribute as it is stored, without asking the object."""
    held = inspect.getattr_static(owner, name)
    if isinstance(held, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        return held.__get__(owner)  # a slot, or a field of a builtin such as `__code__`
    if hasattr(type(held), "__get__") and not isinstance(held, types.FunctionType):
        raise LookupError(name)  # a property or another descriptor: to ask it is to run code
    return held


def _item(owner: Any, key: Any) -> Any:
    if type(owner) not in _CONTAINERS and not isinstance(owner, torch.Size):
        raise LookupError(type(owner).__name__)
    return owner[key]


def _called(node: ast.Call, scope: Mapping[str, Any]) -> Any:
    """`len(...)`, `x.size()`, and the keys of a dict: what guards call."""
    function = node.func
    if isinstance(function, ast.Name) and function.id in ("len", "list") and len(node.args) == 1:
        held = _look_up(node.args[0], scope)
        if type(held) in _CONTAINERS:
            return len(held) if function.id == "len" else list(held)
    if isinstance(function, ast.Attribute) and function.attr == "size" and not node.args:
        tensor = _look_up(function.value, scope)
        if isinstance(tensor, torch.Tensor):
            return torch.Tensor.size(tensor)
    if isinstance(function, ast.Attribute) and function.attr == "keys" and len(node.args) == 1:
        held = _look_up(node.args[0], scope)
        if type(held) is dict:
            return list(held)
    raise LookupError(ast.dump(function))
