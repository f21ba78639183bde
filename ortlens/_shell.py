"""What the user looks at: the running IPython shell, if there is one, the names that it shows for the files of cells, and progress.

IPython is never imported here: a process that has not imported it runs no notebook.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FRAME = re.compile(r"(?P<file>.+)(?P<rest>:\d+ .*)")


def shell() -> Any:  # noqa: ANN401 - an IPython shell, which may not be installed
    """Return the running IPython shell; None in plain Python."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def in_notebook() -> bool:
    """Tell whether the shell has a kernel behind it, unlike a terminal's shell."""
    return getattr(shell(), "kernel", None) is not None


def display_name(file: str) -> str:
    """Return the name under which a notebook shows a file, such as `In[3]` for a cell, whose own name nobody can look up."""
    try:
        running = shell()
        named = None if running is None else running.compile.format_code_name(file)
        return file if named is None else str(named[1])
    except Exception:  # noqa: BLE001 - any shell may be there; fall back to the raw file name
        return file


def display_frames(stack: tuple[str, ...]) -> tuple[str, ...]:
    """Return a stack as a notebook shows it: by display names, from the first cell on, without the kernel and the magics that run it."""
    shown = [_display_frame(frame) for frame in stack]
    first = next((place for place, (frame, new) in enumerate(zip(stack, shown, strict=True)) if frame != new), None)
    if first is None:
        return stack
    own = os.path.dirname(sys.modules["IPython"].__file__ or "IPython")  # noqa: PTH120 - a text, as the frames are
    return tuple(frame for frame in shown[first:] if not frame.startswith(own))


def _display_frame(frame: str) -> str:
    found = _FRAME.match(frame)
    new = found and display_name(found["file"])
    return frame if found is None or new == found["file"] else f"{new}{found['rest']}"


@contextlib.contextmanager
def progress(what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show a bar for work that takes more than a second, in a terminal or a notebook; `ORTLENS_PROGRESS` is 0 for never, 1 for always.

    The function yielded takes the number of steps done since its last call, and never raises. More steps than `total` may come.
    """
    bar: Any = None
    with _harmless():
        asked = os.environ.get("ORTLENS_PROGRESS", "")
        if asked == "1" or (asked != "0" and (in_notebook() or sys.stderr.isatty())):
            from tqdm.auto import tqdm

            bar = tqdm(total=total, desc=what, unit=unit, delay=1.0, leave=False)

    def step(count: int) -> None:
        with _harmless():
            bar.update(count)

    try:
        yield no_progress if bar is None else step
    finally:
        if bar is not None:
            bar.total = None  # work may end before it, for which tqdm would leave a red bar in a notebook
            with _harmless():
                bar.close()


def no_progress(_count: int) -> None:
    """Ignore progress."""


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """Let no failure to draw break the work, and unlock what tqdm leaves locked then: torch makes bars of tqdm's in other threads."""
    try:
        yield
    except Exception:  # noqa: BLE001 - a terminal or a notebook may go away at any time
        with contextlib.suppress(Exception):
            sys.modules["tqdm.std"].tqdm.get_lock().release()
