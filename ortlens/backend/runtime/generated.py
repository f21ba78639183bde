"""Writes the source of functions, compiles it, and shows it to tracebacks and debuggers for as long as a function lives."""

from __future__ import annotations

import itertools
import linecache
import weakref
from typing import TYPE_CHECKING, Any

from ortlens.backend.basis.memory_order import has_fixed_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    Lines = Sequence[str | "Lines"]

_numbers = itertools.count()


class Emitter:
    """The globals of one function that is to be written. All names are made here or by who writes; a user's texts are constants only."""

    def __init__(self, **scope: Any) -> None:
        """Begin with some globals."""
        self.scope: dict[str, Any] = scope

    def constant(self, value: object, prefix: str = "c") -> str:
        """Add a value to the globals, and return its name."""
        name = f"{prefix}_{len(self.scope)}"
        self.scope[name] = value
        return name


def source_of(head: str, lines: Lines) -> str:
    """Write a function from its head, `name(parameters)`, and its lines; a list among these is a block of the line before."""
    return f"def {head}:\n{_indented(lines, 1)}"


def _indented(lines: Lines, depth: int) -> str:
    return "".join(f"{'    ' * depth}{line}\n" if isinstance(line, str) else _indented(line, depth + 1) for line in lines)


def listed(names: Iterable[str]) -> str:
    """Write the inside of a tuple: names, each with a comma."""
    return "".join(f"{name}, " for name in names)


def function_from_source(name: str, source: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """Compile the definition of one function; every name in it must be ours, so that no text of a user's is executed.

    `scope` becomes its globals, without the function itself, so that it is freed without a cycle. Until then `linecache` holds the source
    under a file name such as `<ortlens call 3>`.
    """
    file = f"<ortlens {name} {next(_numbers)}>"
    exec(compile(source, file, "exec"), scope)  # noqa: S102 - see `source`
    function: Callable[..., Any] = scope.pop(name)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # None: no file that could change
    weakref.finalize(function, linecache.cache.pop, file, None).atexit = False
    return function


def bytes_text(name: str, meta: torch.Tensor) -> str:
    """Write the source of the size of a tensor in bytes, from the name of a variable that holds it."""
    return str(meta.numel() * meta.element_size()) if has_fixed_sizes(meta) else f"{name}.nbytes"
