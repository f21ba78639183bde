"""Running a script or module as Python itself does, in this process."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import sys
from importlib.abc import InspectLoader
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType


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
            self._code: Callable[[], CodeType | None] = lambda: _code_of(spec)
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
        """Run it as `__main__`; return its exit code. What it prints, also of an error, is what Python prints.

        `done` is called before the process ends itself by a signal, which runs no exit functions.
        """
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
            _flush()
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


def _code_of(spec: ModuleSpec) -> CodeType | None:
    loader = spec.loader
    return loader.get_code(spec.name) if isinstance(loader, InspectLoader) else None


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


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
