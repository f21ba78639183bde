"""The weights of modules that are being called."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def are_of_calling_modules(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether all tensors are weights of modules that are being called in this thread, or of modules inside these.

    Modules that a variable of the calling script or notebook holds, directly or in a list, tuple or dict, count too. Tensors are compared
    by identity.
    """
    left = {id(tensor) for tensor in tensors}
    seen: set[int] = set()
    for root in _modules_on_stack():
        inside = [root]
        while inside and left:
            module = inside.pop()
            if id(module) not in seen:
                seen.add(id(module))
                left.difference_update(map(id, (*_held(module, "_parameters"), *_held(module, "_buffers"))))
                inside += filter(_is_module, _held(module, "_modules"))
        if not left:
            return True
    return not left


_CALLS = frozenset({"__call__", "_wrapped_call_impl", "_call_impl", "forward"})
"""The methods through which modules are called."""


def _modules_on_stack() -> Iterator[torch.nn.Module]:
    """List the modules that are being called, innermost first, and those in the variables of a script."""
    frame = inspect.currentframe()
    while frame is not None:
        # Before Python 3.13, reading `f_locals` copies all variables, so that the tensors of a loop that goes on would stay alive.
        if frame.f_code.co_name in _CALLS and frame.f_code.co_varnames[:1] == ("self",):
            yield from filter(_is_module, [frame.f_locals.get("self")])
        elif frame.f_code.co_name == "<module>":
            for value in list(frame.f_globals.values()):
                yield from filter(_is_module, _items(value))
        frame = frame.f_back


def _items(value: Any) -> list[Any]:
    """Return the items of a plain collection, else the value itself in a list."""
    if type(value) in {list, tuple}:
        return list(value)
    return list(value.values()) if type(value) is dict else [value]


def _is_module(value: object) -> bool:
    """Tell whether a value is a module, without reading its attributes, which may run the user's code."""
    return issubclass(type(value), torch.nn.Module)


def _held(module: torch.nn.Module, kind: str) -> list[Any]:
    """Read what a module holds of a kind, past its public methods, which the user may have overridden."""
    return list((vars(module).get(kind) or {}).values())
