"""`ortlens report`: a saved capture as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.cli.commands import add_quiet, command_in
from ortlens.cli.exit_codes import EXIT_OK
from ortlens.cli.printing import print_text
from ortlens.errors import UsageError
from ortlens.job.request import Request
from ortlens.job.work import write_outputs

if TYPE_CHECKING:
    import argparse

    from ortlens.cli.commands import Commands

_TEXT = "Write the report of a saved capture: one HTML file that opens anywhere, offline."
_EXAMPLES = """
    ortlens report run.ortlens  # writes run.html
    ortlens report run.ortlens -o nightly.html --title Nightly --redact
"""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = command_in(commands, "report", _TEXT, _report, examples=_EXAMPLES)
    command.add_argument("capture", metavar="CAPTURE", help="a file or folder that lens.save() or another command wrote")
    command.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="output file; replaces an existing report (default: CAPTURE.html)"
    )
    command.add_argument("--title", metavar="TEXT", help="its title (default: the capture's name)")
    command.add_argument("--redact", action="store_true", help="shorten paths to file names, and leave out source lines and values")
    add_quiet(command)


def _report(options: argparse.Namespace) -> int:
    from ortlens.views.capture_view import load

    output = options.output or _default_output(Path(options.capture))
    request = Request(report=output.expanduser(), redact=options.redact)
    view = load(options.capture)
    print_text("\n".join(write_outputs(request, view, title=options.title)))
    return EXIT_OK


def _default_output(capture: Path) -> Path:
    """Return a path beside the capture; an existing file that was not named is not replaced."""
    path = capture.with_name(f"{capture.stem or 'capture'}.html")
    if path.exists():
        raise UsageError(f"{path} already exists; use -o {path} to replace it, or choose another file")
    return path
