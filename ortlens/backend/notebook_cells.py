"""What the reader of a notebook calls the file of a cell: `In[3]`, as tracebacks do, not a file that never existed.

IPython compiles each cell under a name such as `/tmp/ipykernel_4711/293065459.py`, which nobody can look up.
"""

from __future__ import annotations

import os
import re
import sys

from ortlens._shell import shell

_FRAME = re.compile(r"(?P<file>.+)(?P<rest>:\d+ .*)")


def told_file(file: str) -> str:
    """The name of a file as it is told.

    Args:
        file: As in a code object or a traceback.

    Returns:
        `In[3]` for the third cell that ran in this notebook or IPython shell; any other name as it is.
    """
    try:
        running = shell()
        named = None if running is None else running.compile.format_code_name(file)
        return file if named is None else str(named[1])
    except Exception:  # noqa: BLE001 - any shell may be there; the name is right as it is, only unhandy
        return file


def told_frames(stack: tuple[str, ...]) -> tuple[str, ...]:
    """A stack as it is told: from the first cell on, without the kernel and the magics that run it.

    Args:
        stack: Frames, outermost first, as `file:line function`.

    Returns:
        The same with files as they are told.
    """
    told = [_told_frame(frame) for frame in stack]
    first = next((place for place, (frame, new) in enumerate(zip(stack, told, strict=True)) if frame != new), None)
    if first is None:
        return stack
    own = os.path.dirname(sys.modules["IPython"].__file__ or "IPython")  # noqa: PTH120 - a text, as the frames are
    return tuple(frame for frame in told[first:] if not frame.startswith(own))


def _told_frame(frame: str) -> str:
    found = _FRAME.match(frame)
    new = found and told_file(found["file"])
    return frame if found is None or new == found["file"] else f"{new}{found['rest']}"
