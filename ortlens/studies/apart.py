"""A function in a process of its own, with limits on time and memory: whatever happens there is an answer here."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens._process import resident_bytes
from ortlens.errors import UsageError
from ortlens.studies.child import ANSWER, STAGE, VARIABLE
from ortlens.studies.environments import HERE
from ortlens.units import size_from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.studies.environments import Environment
    from ortlens.trace.records import ProcessStatus

_START = (
    "import json, sys; path, whole = json.loads(sys.argv[1]); sys.path[:] = path + ([] if whole else sys.path); "
    "from ortlens.studies.child import main; main()"
)
_EVERY_S = 0.05
_GRACE_S = {"timeout": 2.0, "memory": 0.2}  # how long a process that is being ended may take to say where it is
_LOG_BYTES = 64 << 10
_PROC = Path("/proc")
_OWN = ("RssAnon:", "RssShmem:")
_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "abort",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "unknown instruction",
}
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_FATAL = re.compile(r"^Fatal Python error: ", re.MULTILINE)


class StoppedError(Exception):
    """Whoever wanted the answer no longer does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """What a process may take."""

    seconds: float  # from its start to its answer
    memory_bytes: int | None = None  # of it and, on Linux, its children together
    threads: int | None = None  # of OpenMP; None leaves the environment alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """How a process ended."""

    status: ProcessStatus  # `ok` when it answered
    reason: str  # why not, in one line
    value: Any  # its answer
    log: str  # what it printed last, tracebacks included
    wall_ns: int
    peak_bytes: int | None  # the most memory that was seen


def run_in_subprocess(  # noqa: PLR0913 - how it runs, each by name
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    limits: ProcessLimits,
    folder: Path,
    stop: threading.Event | None = None,
    environment: Environment = HERE,
) -> ProcessResult:
    """Call a function by its name in a new process, which may write to `folder`; wait for its JSON answer, or its end."""
    try:
        order = pickle.dumps((function, tuple(args)))
    except Exception as err:
        raise UsageError(f"the case cannot be sent to another process: {type(err).__name__}: {err}") from err
    variables = {**os.environ, VARIABLE: "1", **({} if limits.threads is None else {"OMP_NUM_THREADS": str(limits.threads)})}
    python, path, whole = environment.start(folder)
    if not whole:  # the paths of this environment are not those of another
        variables = {name: value for name, value in variables.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    command = [python, "-c", _START, json.dumps([path, whole]), str(folder)]
    began = time.monotonic_ns()
    process = subprocess.Popen(  # noqa: S603 - this interpreter, or one that the user names
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables, start_new_session=True
    )
    log = _Tail(process)
    try:
        with contextlib.suppress(OSError):  # it may end before it has read all
            if process.stdin is not None:  # which stays open: its end tells the process that this one is gone
                process.stdin.write(order)
                process.stdin.flush()
        over, peak = _waited(process, limits, stop)
    finally:
        _kill_all(process)
        text = log.text()
    status, reason, value = _judged(process.returncode, over, folder, limits, text)
    return ProcessResult(status=status, reason=reason, value=value, log=text, wall_ns=time.monotonic_ns() - began, peak_bytes=peak)


def _waited(
    process: subprocess.Popen[bytes], limits: ProcessLimits, stop: threading.Event | None
) -> tuple[ProcessStatus | None, int | None]:
    """Wait for the end of a process; return the limit that it went beyond, and the most memory that it held."""
    deadline = time.monotonic() + limits.seconds
    peak: int | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_EVERY_S)
            return None, peak
        held = held_bytes(process.pid)
        peak = held if peak is None else max(peak, held or 0)
        if stop is not None and stop.is_set():
            raise StoppedError
        if held is not None and limits.memory_bytes is not None and held > limits.memory_bytes:
            return _ended(process, "memory"), peak
        if time.monotonic() > deadline:
            return _ended(process, "timeout"), peak


def _ended(process: subprocess.Popen[bytes], status: ProcessStatus) -> ProcessStatus:
    """Have the process say on its error stream where it is, which is what it does on SIGABRT, and end."""
    with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):  # Windows has no such signal
        process.send_signal(signal.SIGABRT)
        process.wait(timeout=_GRACE_S[status])
    return status


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)  # its children are in its group
        else:
            import psutil

            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
    process.wait()
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()


def _judged(code: int, over: ProcessStatus | None, folder: Path, limits: ProcessLimits, log: str) -> tuple[ProcessStatus, str, Any]:
    answer: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        answer = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
    if "value" in answer:
        return "ok", "", answer["value"]
    if answer:
        return "memory" if answer.get("is_memory") else "failed", str(answer.get("error")), None
    status = over or "crashed"
    doing = (folder / STAGE).read_text(encoding="utf-8") if (folder / STAGE).is_file() else "starting"
    return status, f"{_why(status, code, limits)} while {doing}{_last_line(log)}", None


def _why(status: ProcessStatus, code: int, limits: ProcessLimits) -> str:
    if status == "timeout":
        return f"no answer within {limits.seconds:g} s,"
    if status == "memory":
        return f"more memory than the limit of {size_from_bytes(limits.memory_bytes or 0)}"
    if code >= 0:
        return f"the process ended with exit code {code}"
    try:
        name = signal.Signals(-code)
    except ValueError:
        return f"the process was ended by signal {-code}"
    if name == getattr(signal, "SIGKILL", None):
        return "the process was killed (SIGKILL), by the system for lack of memory or by somebody,"
    return f"the process crashed: {name.name}" + (f" ({_SIGNALS[name]})" if name in _SIGNALS else "")


def _last_line(log: str) -> str:
    """Find the innermost Python line that a process was at in its end: the user's, where there is one."""
    fatal = list(_FATAL.finditer(log))
    frames = list(_FRAME.finditer(log, fatal[-1].start())) if fatal else []
    libraries = ("<", os.path.dirname(os.__file__), str(Path(__file__).parents[1]))  # noqa: PTH120 - frames hold plain text
    own = (frame for frame in frames if "site-packages" not in frame["file"] and not frame["file"].startswith(libraries))
    frame = next(own, None) or next((frame for frame in frames if not frame["file"].startswith("<")), None)
    return "" if frame is None else f", at {frame['file']}:{frame['line']} in {frame['function']}"


class _Tail:
    """Reads what a process prints, and keeps the end of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._stream: Any = process.stdout  # which is a pipe
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._stream.fileno(), _LOG_BYTES):
                self._kept += data
                del self._kept[:-_LOG_BYTES]

    def text(self) -> str:
        """Return what is kept; call it once the process is gone."""
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._stream.close()
        return bytes(self._kept).decode("utf-8", "replace")


def held_bytes(pid: int) -> int | None:
    """Measure the memory of a process and its children without mapped files, which can be dropped; None if it has ended.

    On other systems than Linux, it is that of the process alone, with mapped files.
    """
    sizes: list[int] = []
    for each in _family(pid):
        with contextlib.suppress(OSError, ValueError):
            lines = (_PROC / str(each) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
            sizes += [int(line.split()[1]) * 1024 for line in lines if line.startswith(_OWN)]
    return sum(sizes) if sizes else resident_bytes(pid)


def _family(pid: int) -> list[int]:
    found, ahead = [], [pid]
    while ahead:
        each = ahead.pop()
        found.append(each)
        with contextlib.suppress(OSError, ValueError):
            for thread in (_PROC / str(each) / "task").iterdir():
                with contextlib.suppress(OSError):
                    ahead += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found
