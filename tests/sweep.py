"""Runs the cases of a sweep in processes of their own, so that one that crashes or hangs is a row and not the end."""

import contextlib
import functools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ortlens.studies.apart import ProcessLimits, ProcessResult, run_in_subprocess

ROOT = Path(__file__).resolve().parents[1]
CaseT = TypeVar("CaseT", str, int)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def figures(counts: Counter[Any]) -> str:
    """Write counts, the largest first."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())


def say_row(row: dict[str, Any]) -> None:
    """Print a row for `rows_of_each` in another process; `{"begin": case}` goes before those of a case."""
    say(json.dumps(row))


def result_of_each(
    function: Callable[..., Any], cases: Sequence[str], *arguments: object, seconds: float, jobs: int = 1
) -> Iterator[tuple[str, ProcessResult]]:
    """Call a function with each case, in a process of its own with one thread; some cases at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from zip(cases, pool.map(functools.partial(_result, function, arguments, seconds), cases), strict=True)


def _result(function: Callable[..., Any], arguments: Sequence[object], seconds: float, case: str) -> ProcessResult:
    with tempfile.TemporaryDirectory() as folder:
        limits = ProcessLimits(seconds=seconds, threads=1)
        return run_in_subprocess(function, (case, *arguments), limits=limits, folder=Path(folder))


def rows_of_each(
    cases: Sequence[CaseT], command: Callable[[Sequence[CaseT]], Sequence[str]], *, limit_s: float
) -> Iterator[tuple[CaseT, list[dict[str, Any]], str]]:
    """Have a module print the rows of many cases; yield those of each case, and how the process ended if that was its end.

    The command is the module and its arguments for the cases that are left: behind one that ends the process, or prints nothing for too
    long, another process goes on.
    """
    left = cases
    while left:
        process = _Process(command(left), limit_s)
        case, rows = None, []
        while (row := process.row()) is not None:
            if "begin" not in row:
                rows.append(row)
                continue
            if case is not None:
                yield case, rows, ""
            case, rows = row["begin"], []
        ended = process.end()
        if case is None:
            raise RuntimeError(f"{command(left)[0]} began no case: {ended}")
        yield case, rows, ended
        left = left[left.index(case) + 1 :]


class _Process:
    """A Python module that prints rows, with one thread of OpenMP."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        whole = [sys.executable, "-m", *command]
        self._process = subprocess.Popen(whole, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        self._limit_s = limit_s
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._is_silent = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if line.startswith("{"):  # some operators print
                self._lines.put(line)
        self._lines.put(None)

    def row(self) -> dict[str, Any] | None:
        """Return the next row; None at the end, and after too long a silence."""
        try:
            line = self._lines.get(timeout=self._limit_s)
        except queue.Empty:
            self._is_silent = True
            return None
        return None if line is None else json.loads(line)

    def end(self) -> str:
        """Stop it, and tell what was wrong with its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        if self._process.poll() is None:
            self._process.kill()
        status = self._process.wait()
        return f"nothing for {self._limit_s} s" if self._is_silent else f"exit status {status}" if status else ""
