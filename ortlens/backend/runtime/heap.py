"""Exact size of the process heap, where the C library reports it."""

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
    """Return the C function; None where there is none: glibc has it from 2.33 on, other C libraries lack it."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    function.restype = _Figures
    return function


def heap_bytes() -> int | None:
    """Count the bytes that `malloc` holds in all threads, with large blocks; None where the C library does not report it."""
    function = _mallinfo2()
    if function is None:
        return None
    figures = function()
    return int(figures.uordblks) + int(figures.hblkhd)
