"""How much memory the process holds on its heap, to the byte, where the C library tells."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


class _Figures(ctypes.Structure):
    """`struct mallinfo2` of glibc's `malloc.h`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


@functools.cache
def _mallinfo2() -> Any:
    """The function; None where there is none: it came with glibc 2.33, and other C libraries lack it."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    function.restype = _Figures
    return function


def heap_bytes() -> int | None:
    """Memory handed out by `malloc` and not yet given back, over all threads.

    Returns:
        Bytes, large blocks that have pages of their own included; None where the C library does not tell.
    """
    function = _mallinfo2()
    if function is None:
        return None
    figures = function()
    return int(figures.uordblks) + int(figures.hblkhd)
