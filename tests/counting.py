"""Counts what code does, where a clock would answer differently on a busy machine."""

import sys
from collections.abc import Callable
from types import FrameType


def calls_within(function: Callable[..., object], *args: object) -> list[str]:
    """List the calls that a function makes in this thread, by the interpreter's own account."""
    names: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)
        elif event == "c_call":
            names.append(getattr(arg, "__name__", "?"))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(*args)
    finally:
        sys.setprofile(before)
    return names[1:-1]  # without the call itself and the call that ends the count
