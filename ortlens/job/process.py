"""Recording every `torch.compile` of this process and of the Python processes that it starts, and writing the capture at its end."""

from __future__ import annotations

import atexit
import contextlib
import glob
import json
import multiprocessing.util
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ortlens._torch.process import replace_backends, when_imported
from ortlens.errors import OrtLensError
from ortlens.job.request import Request
from ortlens.job.work import write_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from ortlens.lens.process import ProcessBackends
    from ortlens.views.capture_view import CaptureView

_VARIABLE = "ORTLENS_RUN"
"""The environment variable by which children know what to do."""
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a process to end; SIGHUP comes when its terminal closes, and Windows has none."""
_CHILD_SITE = Path(__file__).parent / "child"
"""Holds the sitecustomize.py that starts recording in a child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to record, and where it goes."""

    name: str
    save: str
    report: str | None = None  # where the HTML report goes; None writes none
    journal: str | None = None  # where everything is written as it comes; None writes none
    redact: bool = False  # leave paths, source lines and values out of the report
    backend: str | None = None  # the backend that every `torch.compile` uses; None leaves each its own
    options: Mapping[str, Any] = field(default_factory=dict)
    explain: tuple[str, ...] = ()  # classes of modules that are compiled though the program only calls them

    def for_child(self) -> Plan:
        """Return the plan of a process that this one started: its file names hold the rank, where it has one, and the process id."""
        rank = os.environ.get("RANK", "")
        label = f"rank{rank}-{os.getpid()}" if rank.isdecimal() else str(os.getpid())
        return replace(
            self,
            name=f"{self.name} {label}",
            save=_labelled(self.save, label),
            report=None if self.report is None else _labelled(self.report, label),
            journal=None if self.journal is None else _labelled(self.journal, label),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a recording."""

    view: CaptureView | None  # what was recorded; None if nothing was compiled
    lines: tuple[str, ...]  # a line per file that was written, or could not be
    unseen: tuple[str, ...]  # the classes that were to be compiled, and of which no module was made
    has_failed: bool = False  # whether recording failed, which was said when it did


class Recording:
    """The recording of one process."""

    def __init__(self, plan: Plan, tell: Callable[[Outcome], None] | None = None) -> None:
        """Begin to record; the recording ends with the process, and then calls `tell`."""
        self._plan, self._tell, self._pid = plan, tell, os.getpid()
        self._backends: ProcessBackends | None = None
        self._lock = threading.Lock()
        self._is_done = self._has_failed = False
        self._seen: set[str] = set()  # names of the classes of modules
        self._before = frozenset(self._files_of_children())
        replace_backends(self._watched)
        if plan.explain:
            when_imported("torch.nn.modules.module", self._compile_new_modules)
        atexit.register(self._ended)
        multiprocessing.util.register_after_fork(self, Recording._forked)
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                if signal.getsignal(number) == signal.SIG_DFL:
                    signal.signal(number, self._terminated)
        os._exit = self._leaving(os._exit)  # type: ignore[assignment]  # it runs no exit functions

    def finish(self) -> None:
        """Write what was recorded; once."""
        if self._is_done:
            return
        self._is_done = True
        lens = None if self._backends is None else self._backends.lens
        capture = None if lens is None else lens.captured()
        view = lens if capture is not None and (capture.graphs or capture.breaks) else None
        lines: list[str] = []
        if view is not None:
            report = None if self._plan.report is None else Path(self._plan.report)
            try:
                lines = write_outputs(
                    Request(save=Path(self._plan.save), report=report, redact=self._plan.redact and report is not None), view
                )
            except OrtLensError as error:
                lines = [f"ortlens: {error}"]
        if self._tell is not None:
            children = [f"Written by a child process: {path}" for path in self._files_of_children() if path not in self._before]
            unseen = tuple(name for name in self._plan.explain if name not in self._seen)
            self._tell(Outcome(view=view, lines=(*lines, *children), unseen=unseen, has_failed=self._has_failed))

    def _watched(self, backend: object) -> object:
        try:
            with self._lock:
                if self._backends is None and not self._has_failed:
                    self._backends = self._new_backends()
            return backend if self._backends is None else self._backends.watched(backend)
        except Exception as error:  # noqa: BLE001 - the program goes on as it would without us
            self._has_failed = True
            sys.stderr.write(f"ortlens: nothing is recorded: {error}\n")
            return backend

    def _new_backends(self) -> ProcessBackends:
        from ortlens.lens.process import ProcessBackends

        return ProcessBackends(self._plan.backend, options=self._plan.options or None, name=self._plan.name, journal=self._plan.journal)

    def _compile_new_modules(self, module: Any) -> None:  # noqa: ANN401 - torch.nn.modules.module
        base, begin = module.Module, module.Module.__init__

        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401, N807 - of any module, in place of its __init__
            begin(made, *args, **kwargs)
            name = type(made).__name__
            if name in self._plan.explain:
                self._seen.add(name)
                made.compile(backend=self._plan.backend or "ortlens")

        base.__init__ = __init__

    def _ended(self) -> None:
        if os.getpid() == self._pid:
            self.finish()

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        self._ended()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _leaving(self, leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
        def _exit(status: int) -> NoReturn:
            if threading.current_thread() is threading.main_thread():  # a watchdog thread must not wait for a process that hangs
                with contextlib.suppress(Exception):
                    self._ended()
            leave(status)

        return _exit

    def _forked(self) -> None:
        """Record for itself in a process that `multiprocessing` forked, which has another end."""
        self._plan, self._tell, self._pid = self._plan.for_child(), None, os.getpid()
        self._backends, self._lock, self._is_done = None, threading.Lock(), False
        multiprocessing.util.Finalize(self, self.finish, exitpriority=0)

    def _files_of_children(self) -> list[str]:
        paths = [Path(text) for text in (self._plan.save, self._plan.report) if text is not None]
        return [str(found) for path in paths for found in sorted(path.parent.glob(f"{glob.escape(path.stem)}.*{path.suffix}"))]


def hand_down(plan: Plan) -> None:
    """Have the Python processes that this one starts record, too."""
    os.environ[_VARIABLE] = json.dumps(asdict(plan))
    paths = [str(_CHILD_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def record_child() -> None:
    """Begin recording in a process that was started by one that records."""
    text = os.environ.get(_VARIABLE)
    if text:
        with contextlib.suppress(ValueError, TypeError):
            given = json.loads(text)
            Recording(Plan(**{**given, "explain": tuple(given["explain"])}).for_child())


def _labelled(path: str, label: str) -> str:
    whole = Path(path)
    return str(whole.with_name(f"{whole.stem}.{label}{whole.suffix}"))
