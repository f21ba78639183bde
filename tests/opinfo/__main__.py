"""Send the whole operator database through the backend: `python -m tests.opinfo [--most N] [--jobs N] [NAME ...]`.

Operators run in processes of their own that are started again after a crash or when nothing comes for a while. Outcomes are
kept in build/opinfo, one file per operator, so that a run that was stopped goes on where it was; operators named on the command
line are measured anew.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "opinfo"
_LIMIT_S = 120
"""Longest silence of a process: one sample takes a second at most, one import of torch some ten."""


class _Child:
    """A process that prints the outcomes of operators."""

    def __init__(self, most: int, names: list[str]) -> None:
        command = [sys.executable, "-m", "tests.opinfo.sweep", str(most), *names]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(None)

    def line(self) -> str | None:
        """The next line; None at the end. Raises `queue.Empty` after a long silence."""
        return self._lines.get(timeout=_LIMIT_S)

    def end(self) -> int:
        """Stop it; the exit status, negative after a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=1)
        self._process.kill()
        return self._process.wait()


def _run(names: list[str], most: int) -> None:
    """Run operators one after the other, over as many processes as it takes."""
    left = list(names)
    while left:
        child = _Child(most, left)
        current: str | None = None
        rows: list[dict[str, Any]] = []
        ended = ""
        try:
            while (line := child.line()) is not None:
                row = json.loads(line)
                if "begin" in row:
                    _keep(current, rows)
                    current, rows = row["begin"], []
                else:
                    rows.append(row)
        except queue.Empty:
            ended = f"nothing for {_LIMIT_S} s"
        status = child.end()
        if ended or status:
            rows.append(
                {"operator": current, "dtype": "", "road": "", "sample": len(rows), "verdict": "crash", "detail": ended or f"exit {status}"}
            )
        _keep(current, rows)
        left = left[left.index(current) + 1 :] if current in left else []


def _keep(name: str | None, rows: list[dict[str, Any]]) -> None:
    if name is not None:
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")


def kept() -> dict[str, list[dict[str, Any]]]:
    """The outcomes measured so far, by operator."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("*.json"))}


def main(arguments: list[str]) -> int:
    """Measure what is missing, then print the figures and everything that is wrong; 1 when something is."""
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo")
    parser.add_argument("names", nargs="*", help="operators to measure anew; all that are missing when none is named")
    parser.add_argument("--most", type=int, default=4, help="samples per operator and element type")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    from tests.opinfo.sweep import operators

    known = kept()
    wanted = chosen.names or [name for name in operators() if name not in known]
    workers = [threading.Thread(target=_run, args=(wanted[place :: chosen.jobs], chosen.most)) for place in range(chosen.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rows = [row for found in kept().values() for row in found]
    print(dict(collections.Counter(row["verdict"] for row in rows)))  # noqa: T201 - figures
    bad = [row for row in rows if row["verdict"] in ("wrong", "crash")]
    for row in bad:
        print(*(row[key] for key in ("verdict", "operator", "dtype", "road", "sample", "detail")))  # noqa: T201 - same
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
