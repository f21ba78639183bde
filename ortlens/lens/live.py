"""`lens.live()`: the figures of a program while it runs, in a notebook or as lines on standard error."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from ortlens._process import resident_bytes
from ortlens._shell import in_notebook
from ortlens.trace import records as r
from ortlens.trace.guard import lens_guard
from ortlens.trace.recorder import run_from_row
from ortlens.views.live import LivePoint, live_figures, live_html, live_line, thinned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.trace.recorder import Recorder

_SHARE = 0.005  # of the time that looking may take
_LATEST = 64  # runs of each session that count as now
_POINTS = 120
_NOTEBOOK_S, _LINE_S = 0.5, 5.0  # seconds from look to look; more where a look takes long


class Live:
    """Shows what a lens records, from a thread, until it is closed."""

    def __init__(self, recorder: Callable[[], Recorder | None], name: str, every: float | None) -> None:
        """Begin. `recorder` gives that of the lens, None once the lens is gone, which ends this; `every` is in seconds, at least."""
        self._recorder = recorder
        is_notebook = in_notebook()
        self._every = every if every is not None else _NOTEBOOK_S if is_notebook else _LINE_S
        self._screen: _Notebook | _Lines = _Notebook(name) if is_notebook else _Lines()
        self._began = time.monotonic()
        self._points: list[LivePoint] = []
        self._looking = threading.Lock()
        self._stopped = threading.Event()
        self._look(is_over=False)
        self._thread = threading.Thread(target=self._look_again, name="ortlens live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, and leave the last picture, or line. A second call does nothing."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join(timeout=10)
            self._look(is_over=True)

    def __enter__(self) -> Self:
        """The same object, which ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self.close()

    def __repr__(self) -> str:
        """Write the latest figures on one line."""
        return f"<Live: {live_line(self._points[-1].figures)}>" if self._points else "<Live>"

    def _look_again(self) -> None:
        pause = self._every
        while not self._stopped.wait(pause):
            began = time.thread_time()
            if not self._look(is_over=False):
                return
            pause = max(self._every, (time.thread_time() - began) / _SHARE)

    def _look(self, *, is_over: bool) -> bool:
        """Take the figures and show them; False when there is nothing more to look at. A failure never reaches the program."""
        recorder = self._recorder()
        if recorder is None:
            return False
        with self._looking, lens_guard(recorder, "showing live figures"):
            figures = live_figures(snapshot(recorder), resident_bytes(os.getpid()))
            self._points = thinned([*self._points, LivePoint(at_s=time.monotonic() - self._began, figures=figures)], _POINTS)
            self._screen.show(self._points, is_over=is_over)
        return True


def snapshot(recorder: Recorder) -> r.Capture:
    """Copy what `live_figures` needs from a recorder, without its large tables: of the runs, only the latest of each session."""
    logs, eager = recorder.logs()
    calls = {log.session_id: log.stats().calls for log in logs}
    spent = {(graph_id, node): ns for graph_id, log in eager.items() for node, ns in zip(log.nodes, log.total_ns, strict=True)}
    return r.Capture(
        graphs=recorder.records(r.Graph),
        breaks=recorder.records(r.Break),
        recompiles=recorder.records(r.Recompile),
        sessions=tuple(replace(row, calls=calls.get(row.session_id, 0)) for row in recorder.records(r.Session)),
        fallbacks=tuple(replace(row, total_ns=spent.get((row.graph_id, row.node), 0)) for row in recorder.records(r.Fallback)),
        runs=tuple(run_from_row(log.session_id, log.graph_id, row) for log in logs for row in log.rows(latest=_LATEST)),
    )


class _Notebook:
    """One output of the cell, drawn over: a saved notebook keeps its last picture, without widgets."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._handle: Any = None

    def show(self, points: Sequence[LivePoint], *, is_over: bool) -> None:
        from IPython.display import display

        html = live_html(points, name=self._name, is_over=is_over)
        bundle = {"text/plain": live_line(points[-1].figures), "text/html": html}
        if self._handle is None:
            show: Callable[..., Any] = display
            self._handle = show(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


class _Lines:
    """A line on standard error whenever there were more runs; none for those before."""

    def __init__(self) -> None:
        self._last: int | None = None

    def show(self, points: Sequence[LivePoint], *, is_over: bool) -> None:
        figures = points[-1].figures
        if self._last is None and not is_over:
            self._last = figures.runs
        elif figures.runs != self._last:
            self._last = figures.runs
            print(f"ortlens: {live_line(figures)}", file=sys.stderr, flush=True)  # noqa: T201 - what the user asked to see
