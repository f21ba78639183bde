"""`ortlens run` records every `torch.compile` of an unmodified script or module; `ortlens watch` follows the journal of such a process."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens._process import is_running, resident_bytes
from ortlens._versions import require
from ortlens.cli.commands import (
    Command,
    answer,
    facts_of,
    json_text,
    print_error,
    print_note,
    print_summary,
    print_text,
    quietly,
    write_text,
)
from ortlens.errors import CaptureError, UsageError
from ortlens.job.providers import library_from_text
from ortlens.job.request import OWN_NAMES, request_from_options

if TYPE_CHECKING:
    from ortlens.job.process import RecordingOutcome
    from ortlens.job.request import Request
    from ortlens.trace.journal import Entries


def _run(options: argparse.Namespace) -> int:
    if not options.program:
        raise UsageError("which script? ortlens run script.py [arguments], or ortlens run -m MODULE [arguments]")
    from ortlens.job.process import Program, Recording, RecordingPlan, hand_down

    program = Program(options.program[0], options.program[1:], is_module=options.is_module)
    request = _checked(options, program.name)
    plan = RecordingPlan(
        name=program.name,
        save=os.path.abspath(str(request.save)),  # noqa: PTH100 - the program may change its folder
        report=None if request.report is None else os.path.abspath(str(request.report)),  # noqa: PTH100 - likewise
        journal=None if options.journal is None else os.path.abspath(options.journal),  # noqa: PTH100 - likewise
        redact=request.redact,
        backend=options.backend,
        options=dict(request.options),
        explain=tuple(options.explain),
        libraries=dict(map(library_from_text, options.provider_library)),
    )
    if not options.no_children:
        hand_down(plan)
    answered = None if options.json is None else Path(options.json).absolute()

    def tell(outcome: RecordingOutcome) -> None:
        with quietly(is_quiet=options.quiet):  # the program may end after this command
            _tell(outcome, answered)

    recording = Recording(plan, tell=tell)
    return program.run(recording.finish)


RUN = Command(
    name="run",
    text="Run a script or module as Python does, and record every torch.compile in it. What it prints and returns stays the same.",
    run=_run,
    usage="ortlens run [options] script.py [arguments] | ortlens run [options] -m MODULE [arguments]",
    asks="""
        What do the torch.compile calls of my script do?
        Which lines of my training script break graphs or recompile?
    """,
    examples="""
        ortlens run train.py --epochs 1  # what its torch.compile calls do, on their own backends
        ortlens run --backend ortlens -o ort.ortlens train.py  # the same through ONNX Runtime
        ortlens run --explain Encoder predict.py  # compile the modules of class Encoder, which the script only calls
        ortlens run -m torch.distributed.run --nproc-per-node 2 train.py  # each rank writes a capture of its own
    """,
)


def _checked(options: argparse.Namespace, name: str) -> Request:
    """Make the request, to report a slip in it before the program has run for hours."""
    given = vars(options) | {"backend": options.backend or "ortlens", "save": options.save or Path(f"{name}.ortlens")}
    request = request_from_options(argparse.Namespace(**given))
    if request.options:
        if options.backend is not None and options.backend not in OWN_NAMES:
            raise UsageError(f"--option and --provider are for the ortlens backend, not for {options.backend}; leave one of them out")
        if options.backend is None:
            raise UsageError("--option and --provider are for the ortlens backend; add --backend ortlens")
        from ortlens.backend.basis.options import OrtBackendOptions

        OrtBackendOptions.from_any(request.options)
    return request


def _tell(outcome: RecordingOutcome, answered: Path | None) -> None:
    """Say on stderr, and as JSON in a file, what was recorded: stdout is the program's."""
    print_note("")
    if outcome.view is not None:
        print_summary(outcome.view.captured(), on_stderr=True)
    elif not outcome.has_failed and not any(line.endswith(".ortlens") for line in outcome.lines):
        print_note("ortlens: nothing was compiled: no call of what torch.compile returned. --explain CLASS compiles modules of that class.")
    for name in outcome.unseen:
        print_note(f"ortlens: --explain {name}: the program made no module of a class of this name")
    for line in outcome.lines:
        print_note(line)
    if outcome.view is not None and answered is not None:
        try:
            write_text(answered, json_text(answer("run", facts_of(outcome.view.captured()))) + "\n")
        except UsageError as error:  # the program has its own end
            print_error(f"ortlens: {error}")


_PAUSE = 0.5
_SHARE = 0.05  # of the time that reading may take
_NOT_CLOSED = "journal_not_closed"


def _watch(options: argparse.Namespace) -> None:
    from ortlens.views.live import event_lines, live_figures, live_line

    require("psutil", "ortlens watch")
    said: set[str] = set()
    last = ""
    while True:
        began = time.monotonic()
        entries = _read(options.journal, waits=not options.once)
        if entries is not None:
            is_over = options.once or entries.is_ended or not is_running(entries.pid)
            capture = entries.capture()
            if not is_over:  # that the journal of a running process is not closed is nothing to tell
                capture = replace(capture, findings=tuple(each for each in capture.findings if each.rule != _NOT_CLOSED))
            for text in event_lines(capture) if not options.json else ():
                if text not in said:
                    said.add(text)
                    print_text(text)
            figures = live_figures(capture, resident_bytes(entries.pid))
            line = json_text(answer("watch", asdict(figures)), indent=None) if options.json else live_line(figures)
            if line != last:
                last = line
                print_text(line)
            if is_over:
                if entries.is_ended and not options.json:
                    print_text("the journal is closed: this is all")
                return
        sys.stdout.flush()
        time.sleep(max(_PAUSE, (time.monotonic() - began) / _SHARE))


WATCH = Command(
    name="watch",
    text="Follow the journal of a running process (Lens(journal=...), ortlens run --journal), until it ends or Ctrl-C.",
    run=_watch,
    asks="What does a running job do now?",
    examples="""
        ortlens watch run.journal
        ortlens watch run.journal --once --json  # the figures now, as one line of JSON
    """,
)


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
