"""`ortlens watch`: what a running process writes into its journal, as lines of text or of JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens._process import is_running, resident_bytes
from ortlens.analysis.live import live_figures
from ortlens.cli.commands import command_in
from ortlens.cli.printing import print_text
from ortlens.errors import CaptureError
from ortlens.views.live import event_lines, live_line

if TYPE_CHECKING:
    import argparse

    from ortlens.cli.commands import Commands
    from ortlens.trace.journal import Entries
    from ortlens.trace.records import Capture

_TEXT = "Follow the journal of a running process (Lens(journal=...), ortlens run --journal), until it ends or Ctrl-C."
_EXAMPLES = """
    ortlens watch run.journal
    ortlens watch run.journal --once --json  # the figures now, as one line of JSON
"""
_PAUSE = 0.5
_SHARE = 0.05  # of the time that reading may take
_NOT_CLOSED = "journal_not_closed"


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = command_in(commands, "watch", _TEXT, _watch, examples=_EXAMPLES)
    command.add_argument("journal", metavar="JOURNAL", type=Path, help="the file; ortlens waits for it if it is not there yet")
    command.add_argument("--once", action="store_true", help="say what it holds now, and stop")
    command.add_argument("--json", action="store_true", help="print the figures alone, one line of JSON whenever they change")


def _watch(options: argparse.Namespace) -> None:
    said: dict[str, None] = {}
    last = ""
    while True:
        began = time.monotonic()
        entries = _read(options.journal, waits=not options.once)
        if entries is not None:
            is_over = options.once or entries.is_ended or not is_running(entries.pid)
            capture = _so_far(entries, is_over=is_over)
            if not options.json:
                _say_what_is_new(capture, said)
            line = _status(capture, entries.pid, as_json=options.json)
            if line != last:
                last = line
                print_text(line)
            if is_over:
                if entries.is_ended and not options.json:
                    print_text("the journal is closed: this is all")
                return
        sys.stdout.flush()
        time.sleep(max(_PAUSE, (time.monotonic() - began) / _SHARE))


def _so_far(entries: Entries, *, is_over: bool) -> Capture:
    """Make the capture so far; that the journal of a running process is not closed is nothing to tell."""
    capture = entries.capture()
    return capture if is_over else replace(capture, findings=tuple(each for each in capture.findings if each.rule != _NOT_CLOSED))


def _say_what_is_new(capture: Capture, said: dict[str, None]) -> None:
    for line in event_lines(capture):
        if line not in said:
            said[line] = None
            print_text(line)


def _status(capture: Capture, pid: int, *, as_json: bool) -> str:
    figures = live_figures(capture, resident_bytes(pid))
    return json.dumps(asdict(figures)) if as_json else live_line(figures)


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
