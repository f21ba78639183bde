"""`ortlens run`: an unmodified script or module, with every `torch.compile` in it recorded."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.cli.commands import add_quiet, command_in
from ortlens.cli.printing import print_note, print_summary
from ortlens.errors import UsageError
from ortlens.job.request import add_backend_options, add_outputs, request_from_options
from ortlens.job.work import OWN_NAMES

if TYPE_CHECKING:
    from ortlens.cli.commands import Commands
    from ortlens.job.process import Outcome
    from ortlens.job.request import Request

_TEXT = "Run a script or module as Python does, and record every torch.compile in it. What it prints and returns stays the same."
_EXAMPLES = """
    ortlens run train.py --epochs 1  # what its torch.compile calls do, on their own backends
    ortlens run --backend ortlens -o ort.ortlens train.py  # the same through ONNX Runtime
    ortlens run --explain Encoder predict.py  # compile the modules of class Encoder, which the script only calls
    ortlens run -m torch.distributed.run --nproc-per-node 2 train.py  # each rank writes a capture of its own
"""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = command_in(commands, "run", _TEXT, _run, examples=_EXAMPLES)
    command.usage = "ortlens run [options] script.py [arguments] | ortlens run [options] -m MODULE [arguments]"
    add_outputs(command, "-o", saved="by default as PROGRAM.ortlens in this folder, train.ortlens for train.py")
    command.add_argument("--journal", metavar="FILE", help="write everything as it comes, so that it survives a kill; see ortlens watch")
    command.add_argument("--redact", action="store_true", help="leave paths, source lines and values out of the report")
    command.add_argument("--backend", metavar="NAME", help="send every torch.compile to this backend, such as ortlens (default: its own)")
    add_backend_options(command)
    command.add_argument(
        "--explain",
        metavar="CLASS",
        action="append",
        default=[],
        help="compile the modules of this class, which the program only calls, with --backend or through ONNX Runtime; may be repeated",
    )
    command.add_argument("--no-children", action="store_true", help="do not record in the Python processes that the program starts")
    add_quiet(command)
    command.add_argument("-m", dest="is_module", action="store_true", help="run a module, as python -m does")
    command.add_argument("program", nargs=argparse.REMAINDER, metavar="script.py", help="the script, or what -m runs; then its arguments")


def _run(options: argparse.Namespace) -> int:
    if not options.program:
        raise UsageError("which script? ortlens run script.py [arguments], or ortlens run -m MODULE [arguments]")
    from ortlens.job.process import Plan, Recording, hand_down
    from ortlens.job.script import Program

    program = Program(options.program[0], options.program[1:], is_module=options.is_module)
    request = _checked(options, program.name)
    plan = Plan(
        name=program.name,
        save=os.path.abspath(str(request.save)),  # noqa: PTH100 - the program may change its folder
        report=None if request.report is None else os.path.abspath(str(request.report)),  # noqa: PTH100 - likewise
        journal=None if options.journal is None else os.path.abspath(options.journal),  # noqa: PTH100 - likewise
        redact=request.redact,
        backend=options.backend,
        options=dict(request.options),
        explain=tuple(options.explain),
    )
    if not options.no_children:
        hand_down(plan)
    recording = Recording(plan, tell=_tell)
    return program.run(recording.finish)


def _checked(options: argparse.Namespace, name: str) -> Request:
    """Make the request, to report a slip in it before the program has run for hours."""
    given = vars(options) | {"backend": options.backend or "ortlens", "save": options.save or Path(f"{name}.ortlens")}
    request = request_from_options(argparse.Namespace(**given))
    if request.options:
        if options.backend is not None and options.backend not in OWN_NAMES:
            raise UsageError(f"--option is for the ortlens backend, and --backend is {options.backend}; leave one of them out")
        if options.backend is None:
            raise UsageError("--option is for the ortlens backend; add --backend ortlens")
        from ortlens.backend.options import OrtBackendOptions

        OrtBackendOptions.from_any(request.options)
    return request


def _tell(outcome: Outcome) -> None:
    """Say on stderr what was recorded: stdout is the program's."""
    print_note("")
    if outcome.view is not None:
        print_summary(outcome.view.captured(), on_stderr=True)
    elif not outcome.has_failed and not any(line.endswith(".ortlens") for line in outcome.lines):
        print_note("ortlens: nothing was compiled: no call of what torch.compile returned. --explain CLASS compiles modules of that class.")
    for name in outcome.unseen:
        print_note(f"ortlens: --explain {name}: the program made no module of a class of this name")
    for line in outcome.lines:
        print_note(line)
