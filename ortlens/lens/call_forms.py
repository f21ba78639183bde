"""The form of a call: its arguments by name, each with its type, and a tensor with its dtype and number of dimensions."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CallForm: TypeAlias = tuple[tuple[str, str], ...]


def form_of_call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallForm:
    """Describe the arguments of a call by name and kind. Calls of the same form differ in sizes and values only.

    An argument that is left out counts with its default. Without a signature, positions are names.
    """
    owner = getattr(target, "__self__", None)
    function = owner.forward if isinstance(owner, torch.nn.Module) else target
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
    except (TypeError, ValueError):  # builtins without a signature, and arguments that do not fit it
        named = {f"#{place}": value for place, value in enumerate(args)} | dict(kwargs)
    return tuple(sorted((name, _kind(value)) for name, value in named.items()))


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}, {value.dim()}-dimensional"
    if isinstance(value, (bool, int, float)):
        return "number"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_kind(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_kind, value))})"
    return type(value).__name__
