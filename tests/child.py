"""A process that prints rows of JSON, for sweeps that a crash or a hang in one sample must not end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class Child:
    """A Python module that runs in a process of its own, with one thread of OpenMP.

    Attributes:
        silent: Whether it printed nothing for too long.
    """

    def __init__(self, module: str, *arguments: str, limit_s: float) -> None:
        """Start it."""
        command = [sys.executable, "-m", module, *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        self._limit_s = limit_s
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.silent = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if line.startswith("{"):  # some operators print
                self._lines.put(line)
        self._lines.put(None)

    def row(self) -> dict[str, Any] | None:
        """The next row; None at the end, and after too long a silence."""
        try:
            line = self._lines.get(timeout=self._limit_s)
        except queue.Empty:
            self.silent = True
            return None
        return None if line is None else json.loads(line)

    def end(self) -> int:
        """Stop it; the exit status, negative after a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=5)
        self._process.kill()
        return self._process.wait()
