"""`ortlens watch`: what a running process writes into its journal, as plain text."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ortlens.cli.commands import command_in
from ortlens.cli.exit_codes import EXIT_OK
from ortlens.cli.printing import print_text
from ortlens.errors import CaptureError
from ortlens.units import counted, time_from_ns
from ortlens.views.wording import place

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ortlens.cli.commands import Commands
    from ortlens.trace.journal import Entries
    from ortlens.trace.records import Capture

_TEXT = "Follow the journal of a running process (Lens(journal=...), ortlens run --journal), until it ends or Ctrl-C."
_PAUSE = 0.5
_SHARE = 0.05  # of the time that reading may take
_RECENT = 200
_NOT_CLOSED = "journal_not_closed"


def add(commands: Commands) -> None:
    """Add the command to the parser.

    Args:
        commands: Where commands are added.
    """
    command = command_in(commands, "watch", _TEXT, _watch)
    command.add_argument("journal", metavar="JOURNAL", type=Path, help="the file; ortlens waits for it if it is not there yet")
    command.add_argument("--once", action="store_true", help="say what it holds now, and stop")


def _watch(options: argparse.Namespace) -> int:
    said: dict[str, None] = {}
    status = ""
    while True:
        began = time.monotonic()
        entries = _read(options.journal, waits=not options.once)
        if entries is not None:
            capture = entries.capture()
            is_over = options.once or not _is_running(entries.pid)
            for line in _events(capture, is_over=is_over):
                if line not in said:
                    said[line] = None
                    print_text(line)
            if _status(capture) != status:
                status = _status(capture)
                print_text(status)
            if entries.is_ended or is_over:
                if entries.is_ended:
                    print_text("the journal is closed: this is all")
                return EXIT_OK
        sys.stdout.flush()
        time.sleep(max(_PAUSE, (time.monotonic() - began) / _SHARE))


def _read(path: Path, *, waits: bool) -> Entries | None:
    from ortlens.trace import journal

    try:
        return journal.read(path.expanduser())
    except FileNotFoundError as error:
        if waits:
            return None
        raise CaptureError(f"there is no journal {path}") from error
    except OSError as error:
        raise CaptureError(f"cannot read the journal {path}: {error}") from error
    except CaptureError as error:
        raise CaptureError(f"cannot read the journal {path}: {error}; a saved capture is shown by: ortlens show {path}") from error


def _events(capture: Capture, *, is_over: bool) -> Iterator[str]:
    """A line for each thing that happened while compiling; equal lines are said once."""
    for graph in capture.graphs:
        yield f"graph {graph.graph_id}  {graph.name or ''} ({graph.phase}), {counted(graph.op_count or 0, 'operator')}".replace("  (", " (")
    for item in capture.breaks:
        yield f"graph break {item.break_id}  {place(item.file, item.line)}: {item.reason}"
    for recompile in capture.recompiles:
        yield f"recompile {recompile.compile_id}  {place(recompile.file, recompile.line)}: {recompile.guard or recompile.reason}"
    for session in capture.sessions:
        yield f"session {session.session_id}  {session.input_signature}, made in {time_from_ns(session.create_ns)}"
    for fallback in capture.fallbacks:
        yield f"in PyTorch  {fallback.target}, {place(fallback.file, fallback.line)}: {fallback.reason}"
    for finding in capture.findings:
        if finding.rule != _NOT_CLOSED or is_over:
            yield f"{finding.severity}  {finding.title}"


def _status(capture: Capture) -> str:
    """The calls so far: one line."""
    names = {graph.graph_id: graph.name or graph.graph_id for graph in capture.graphs}
    times: dict[str, list[int]] = {}
    for run in capture.runs:
        times.setdefault(run.graph_id or run.session_id or "", []).append(run.total_ns)
    calls = sum(session.calls or 0 for session in capture.sessions) or len(capture.runs)
    shown = (f"{names.get(key, key)} {time_from_ns(median(values[-_RECENT:]))}" for key, values in times.items())
    return f"{counted(calls, 'run')}; median of the latest: {', '.join(shown)}" if times else "no run yet"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
