"""Compiling without two disturbances of CPython that can cost more than the work itself.

Both were measured on a LLaMA of four layers, and both come and go with what the program around does, which makes them
look like noise:

- Python keeps frames in chunks of 16 KiB. A loop whose calls happen to straddle the end of a chunk maps and unmaps the next
  one with every call: 0.6 s of optimising became 4.3 s, because under a lens the stack is a few frames deeper
  (`push_chunk` and `_PyThreadState_PopFrame` in CPython's `Python/pystate.c`, 3.11 to 3.14).
- The cyclic garbage collector goes through every object of the process, a million once transformers is imported: 0.5 s each time
  that a compilation has made enough new ones. Nearly all of these live until the compilation ends.
"""

from __future__ import annotations

import gc
import threading
import types
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SLOTS = 1 << 16
"""Size of one frame, in pointers. It does not fit into a chunk, so Python makes one of twice its size; the frames of all further
calls find room there. Memory that no frame touches is never given by the operating system."""

_lock = threading.Lock()
_at_work = 0
_was_enabled = False


def gc_paused(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function that compiles, on a roomy stack and without garbage collection.

    Args:
        function: Does a bounded amount of work; what it leaves in cycles is collected later.
        *args: Its arguments.
        **kwargs: Its arguments by name.

    Returns:
        What the function returns.
    """
    _enter()
    try:
        result: T = roomy(function, *args, **kwargs)
        return result
    finally:
        _leave()


def _enter() -> None:
    global _at_work, _was_enabled  # noqa: PLW0603 - the collector is the whole process's
    with _lock:
        if not _at_work:
            _was_enabled = gc.isenabled()
            gc.disable()
        _at_work += 1


def _leave() -> None:
    global _at_work  # noqa: PLW0603 - same
    with _lock:
        _at_work -= 1
        if not _at_work and _was_enabled:
            gc.enable()


def _call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return function(*args, **kwargs)


roomy: Callable[..., Any] = types.FunctionType(_call.__code__.replace(co_stacksize=_SLOTS), globals(), "roomy")
"""Calls a function with room for the frames of its own calls: `roomy(function, *args, **kwargs)`."""
