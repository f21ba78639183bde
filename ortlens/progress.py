"""Progress of long work: a bar in a terminal, a line in a notebook, nothing anywhere else.

The work says where it is by calling a function, which only counts until the work has taken a second: short work shows nothing and
loads nothing. tqdm then draws the bar. No thread is started, and nothing is drawn but in that call, so that what is being timed
between two calls is left alone. What goes wrong in drawing ends the bar, never the work.

tqdm's own notebook bar is not used: it needs ipywidgets, warns where they are missing, and stays in a saved notebook as the text of
its first moment. `ORTLENS_PROGRESS=0` switches all this off, `=1` on, also where standard error goes to a file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from ortlens._shell import in_notebook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tqdm.std import tqdm

_SHORT_S = 1.0  # work that ends sooner shows nothing
_EVERY_S = 0.1
_FOREVER = float("inf")
_COLUMNS, _ROWS = 80, 24

_lock = threading.Lock()
_bars: list[_Bar] = []
"""The work that is under way and the work within it, all of one thread: only the innermost is shown, on the line of the outer ones."""


class _Display(Protocol):
    """Where a bar is drawn: a terminal or a notebook."""

    def draw(self, done: int) -> None: ...

    def clear(self) -> None: ...


@contextlib.contextmanager
def progress(what: str, total: int, unit: str, *, at_once: bool = False) -> Iterator[Callable[[int], None]]:
    """Show the progress of work that takes more than a second, if there is somewhere to show it.

    More steps than `total` may come; 0 if they are unknown. `at_once` draws the bar from the beginning. The function yielded takes the
    number of steps done since its last call; it is cheap and never raises.

    Example:
        >>> with progress("counting", 3, "sheep") as step:
        ...     for _ in range(3):
        ...         step(1)
    """
    bar = _begun(what, total, unit) if _is_wanted() else None
    if bar is None:
        yield no_progress
        return
    try:
        if at_once:
            bar.show()
        yield bar.step
    finally:
        bar.close()
        _bars.remove(bar)


def no_progress(_count: int) -> None:
    """Ignore progress."""


def _begun(what: str, total: int, unit: str) -> _Bar | None:
    """Begin a bar that replaces the outer one; None while another thread shows one."""
    with _lock:
        outer = _bars[-1] if _bars else None
        if outer is not None and outer.thread != threading.get_ident():
            return None
        bar = _Bar(what, total, unit, None if outer is None else outer.started)
        _bars.append(bar)
    if outer is not None and outer.hide():
        bar.show()
    return bar


def _is_wanted() -> bool:
    said = os.environ.get("ORTLENS_PROGRESS", "")
    if said in {"0", "1"}:
        return said == "1"
    try:
        return in_notebook() or sys.stderr.isatty()
    except Exception:  # noqa: BLE001 - standard error may be anything, or closed
        return False


class _Bar:
    """Counts steps, and draws at most ten times a second, once a second has gone by since the outermost work began."""

    __slots__ = ("_display", "_done", "_next", "_own_start", "_total", "_unit", "_what", "started", "thread")

    def __init__(self, what: str, total: int, unit: str, started: float | None) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._done = 0
        self._display: _Display | None = None
        self._own_start = time.monotonic()
        self.started = self._own_start if started is None else started
        self.thread = threading.get_ident()
        self._next = self.started + _SHORT_S

    def show(self) -> None:
        self._next = self.started
        self.step(0)

    def step(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now < self._next:
            return
        try:
            self._next = now + _EVERY_S
            if self._display is None:
                make = _NotebookLine if in_notebook() else _TerminalBar
                self._display = make(self._what, self._total, self._unit, self._own_start)
            self._display.draw(self._done)
        except Exception:  # noqa: BLE001 - showing progress must not break the work
            self._next = _FOREVER

    def hide(self) -> bool:
        """Clear what is drawn, until the next step; tell whether something was."""
        display, self._display = self._display, None
        if display is not None:
            self._next = self.started  # it is drawn again with the next step
            with contextlib.suppress(Exception):  # as in `step`
                display.clear()
        return display is not None

    def close(self) -> None:
        self.hide()
        self._next = _FOREVER


class _TerminalBar:
    """A bar of tqdm's."""

    def __init__(self, what: str, total: int, unit: str, started: float) -> None:
        columns, rows = _size()
        looks = {"unit": f" {unit}"} if total else {"bar_format": "{desc} …"}
        bar = _tqdm_class()(total=total, desc=what, leave=False, ncols=columns, nrows=rows, mininterval=0, file=sys.stderr, **looks)
        bar.start_t -= time.monotonic() - started
        self._bar = bar

    def draw(self, done: int) -> None:
        self._bar.n = done
        self._bar.refresh()

    def clear(self) -> None:
        self._bar.close()


def _size() -> tuple[int, int]:
    """Return columns and rows of the terminal; defaults if it says none, as in a container, since tqdm would then draw nothing."""
    try:
        columns, rows = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):
        columns = rows = 0
    return columns or _COLUMNS, rows or _ROWS


def _tqdm_class() -> Callable[..., tqdm[Any]]:
    """Make a class of tqdm's bars with nothing of the user's bars in it: neither their thread, nor their list, nor their lock.

    tqdm leaves the lock locked when drawing fails. The thread and every other bar would then wait forever, and torch makes one of these in
    each compilation. The lock between processes would settle how the user's processes are to be started. A lock of the bar's own never
    blocks: one thread draws it.
    """
    from tqdm.std import tqdm

    return type("_Tqdm", (tqdm,), {"monitor_interval": 0, "_instances": weakref.WeakSet(), "_lock": threading.RLock()})


class _NotebookLine:
    """One output of the cell that is written over, and emptied at the end."""

    def __init__(self, what: str, total: int, unit: str, started: float) -> None:
        from IPython.display import display

        self._what, self._total, self._unit, self._started = what, total, unit, started
        show: Callable[..., Any] = display
        self._handle = show({"text/plain": what, "text/html": escape(what)}, raw=True, display_id=True)

    def draw(self, done: int) -> None:
        line, side, share = f"{self._what} …", "", ""
        if self._total:
            line, side = self._meter(done), self._meter(done, "{n_fmt} of {total_fmt}{unit}s, {elapsed}<{remaining}")
            share = f' max="{self._total}" value="{min(done, self._total)}"'
        html = f"<div>{escape(self._what)} <progress{share}></progress> {escape(side)}</div>"
        self._handle.update({"text/plain": line, "text/html": html}, raw=True)

    def _meter(self, done: int, form: str | None = None) -> str:
        from tqdm.std import tqdm

        elapsed = time.monotonic() - self._started
        text: str = tqdm.format_meter(done, self._total, elapsed, prefix=self._what, unit=f" {self._unit}", ncols=_COLUMNS, bar_format=form)
        return text

    def clear(self) -> None:
        self._handle.update({"text/plain": "", "text/html": ""}, raw=True)
