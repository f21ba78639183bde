"""Running a script as Python does, and recording every `torch.compile` of this process and of those that it starts, to their ends."""

from __future__ import annotations

import atexit
import contextlib
import glob
import importlib.util
import io
import json
import multiprocessing.util
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass, field, replace
from importlib.abc import InspectLoader
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ortlens._process import replace_backends, when_imported
from ortlens.errors import OrtLensError, UsageError
from ortlens.job.providers import register
from ortlens.job.request import Request, write_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, FrameType

    from ortlens.lens.process import ProcessBackends
    from ortlens.views.capture_view import CaptureView


_VARIABLE = "ORTLENS_RUN"  # the environment variable by which children know what to do
_CONTROL_C_EXIT = 0xC000013A - (1 << 32)  # with which Windows ends a program on Ctrl-C, and Python too; `exit` takes it as signed
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a process to end; SIGHUP comes when its terminal closes, and Windows has none."""
_CHILD_SITE = Path(__file__).parent / "child"  # holds the sitecustomize.py that starts recording in a child


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """What to record, and where it goes."""

    name: str
    save: str
    report: str | None = None  # where the HTML report goes; None writes none
    journal: str | None = None  # where everything is written as it comes; None writes none
    redact: bool = False  # leave paths, source lines and values out of the report
    backend: str | None = None  # the backend that every `torch.compile` uses; None leaves each its own
    options: Mapping[str, Any] = field(default_factory=dict)
    explain: tuple[str, ...] = ()  # classes of modules that are compiled though the program only calls them
    libraries: Mapping[str, str] = field(default_factory=dict)  # of execution providers, to be registered: names and paths

    def for_child(self) -> RecordingPlan:
        """Return the plan of a process that this one started: its file names hold the rank, where it has one, and the process id."""
        rank = os.environ.get("RANK", "")
        label = f"rank{rank}-{os.getpid()}" if rank.isdecimal() else str(os.getpid())
        paths = {name: Path(text) for name in ("save", "report", "journal") if (text := getattr(self, name)) is not None}
        labelled: dict[str, Any] = {name: str(path.with_name(f"{path.stem}.{label}{path.suffix}")) for name, path in paths.items()}
        return replace(self, name=f"{self.name} {label}", **labelled)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOutcome:
    """What became of a recording."""

    view: CaptureView | None  # what was recorded; None if nothing was compiled
    lines: tuple[str, ...]  # a line per file that was written, or could not be
    unseen: tuple[str, ...]  # the classes that were to be compiled, and of which no module was made
    has_failed: bool = False  # whether recording failed, which was said when it did


class Recording:
    """The recording of one process."""

    def __init__(self, plan: RecordingPlan, tell: Callable[[RecordingOutcome], None] | None = None) -> None:
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
            self._tell(RecordingOutcome(view=view, lines=(*lines, *children), unseen=unseen, has_failed=self._has_failed))

    def _watched(self, backend: object) -> object:
        try:
            with self._lock:
                if self._backends is None and not self._has_failed:
                    from ortlens.lens.process import ProcessBackends

                    plan = self._plan
                    for library in plan.libraries.items():
                        register(*library)
                    self._backends = ProcessBackends(plan.backend, options=plan.options or None, name=plan.name, journal=plan.journal)
            return backend if self._backends is None else self._backends.watched(backend)
        except Exception as error:  # noqa: BLE001 - the program goes on as it would without us
            self._has_failed = True
            sys.stderr.write(f"ortlens: nothing is recorded: {error}\n")
            return backend

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


def hand_down(plan: RecordingPlan) -> None:
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
            Recording(RecordingPlan(**{**given, "explain": tuple(given["explain"])}).for_child())


class Program:
    """A script or module, and its arguments."""

    def __init__(self, name: str, arguments: Sequence[str], *, is_module: bool) -> None:
        """Find the program by the path of a script or the dotted name of a module; raise `UsageError` if there is none."""
        self.name = name.rpartition(".")[2] if is_module else Path(name).stem
        self._main = ModuleType("__main__")
        self._main.__dict__.update(__annotations__={}, __cached__=None)  # as Python makes it
        if is_module:
            sys.path[0] = str(Path.cwd())
            spec = _module(name)
            loader = cast("InspectLoader", spec.loader)  # as `_module` found
            self._code: Callable[[], CodeType | None] = lambda: loader.get_code(spec.name)
            self._main.__spec__, self._main.__package__, self._main.__loader__ = spec, spec.parent, spec.loader
            self._main.__dict__["__cached__"] = spec.cached
            path = str(spec.origin)
        else:
            path = os.path.abspath(name)  # noqa: PTH100 - what Python does: links stay
            _require_script(name, path)
            self._code = lambda: _compiled(path)
            self._main.__spec__, self._main.__package__, self._main.__loader__ = None, None, SourceFileLoader("__main__", path)
            sys.path[0] = os.path.dirname(os.path.realpath(path))  # noqa: PTH120 - a text is what sys.path holds
        self._main.__file__ = path
        self._argv = [path if is_module else name, *arguments]

    def run(self, done: Callable[[], None]) -> int:
        """Run it as `__main__`, as Python does, and return its exit code. `done` is called before a signal ends the process."""
        self._main.__dict__["__builtins__"] = sys.modules["builtins"]
        sys.argv[:] = self._argv
        sys.modules["__main__"] = self._main
        error = self._raised()
        if error is None:
            return 0
        if isinstance(error, SystemExit):
            return _exit_code(error.code)
        error.__traceback__ = _own_part(error.__traceback__)
        code = _reported(error)
        if isinstance(error, KeyboardInterrupt):  # so that whoever started us sees that it was interrupted
            done()
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            if os.name == "nt":  # `os.kill` would end it with the exit code 2
                return _CONTROL_C_EXIT
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return code

    def _raised(self) -> BaseException | None:
        """Run the code. What it raises is returned: while its hook runs, Python handles no exception."""
        try:
            code = self._code()
            if code is not None:
                exec(code, self._main.__dict__)  # noqa: S102 - the user asked for it
        except BaseException as error:  # noqa: BLE001 - reported as Python reports it
            return error
        return None


def _require_script(name: str, path: str) -> None:
    if not os.path.isfile(path):  # noqa: PTH113 - as above
        hint = "; a module is run with -m" if "." in name and not name.endswith(".py") and os.sep not in name else ""
        what = "is a folder" if os.path.isdir(path) else "does not exist"  # noqa: PTH112 - as above
        raise UsageError(f"the script {name} {what}{hint}")


def _compiled(path: str) -> CodeType:
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _module(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise UsageError(f"the module {name} cannot be found: {error}") from error
    if spec is None or not isinstance(spec.loader, InspectLoader) or spec.origin is None:
        raise UsageError(f"there is no module {name} that can be run, from {Path.cwd()}")
    return spec


def _own_part(traceback: TracebackType | None) -> TracebackType | None:
    """Drop our own frames, which stand before the program's."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def _reported(error: BaseException) -> int:
    """Report an error through the program's hook, which may fail as well or choose the exit code."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _exit_code(leaving.code)
    except BaseException as second:  # noqa: BLE001 - whatever the program's own hook raises
        second.__traceback__ = _own_part(second.__traceback__)
        for title, told in (("Error in sys.excepthook:", second), ("\nOriginal exception was:", error)):
            sys.stderr.write(f"{title}\n")
            sys.__excepthook__(type(told), told, told.__traceback__)
    return 1


def _exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1
