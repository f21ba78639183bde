"""Compiles generated source code, and shows it to tracebacks and debuggers for as long as the function lives."""

from __future__ import annotations

import itertools
import linecache
import weakref
from typing import TYPE_CHECKING, Any

from ortlens.backend.basis.memory_order import has_fixed_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_numbers = itertools.count()


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
