"""`ortlens compare`: two saved captures of one program, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.cli.commands import command_in
from ortlens.cli.exit_codes import EXIT_OK
from ortlens.cli.printing import print_json, print_text, width

if TYPE_CHECKING:
    import argparse

    from ortlens.cli.commands import Commands

_TEXT = "Compare two saved captures of one program: what runs elsewhere, breaks and recompiles, and times outside the noise."
_EXAMPLES = """
    ortlens compare before.ortlens after.ortlens
    ortlens compare before.ortlens after.ortlens --html compare.html  # side by side, opens anywhere
    ortlens compare before.ortlens after.ortlens --json | jq .verdict
"""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = command_in(commands, "compare", _TEXT, _compare, examples=_EXAMPLES)
    command.add_argument("before", metavar="BEFORE", help="the first capture, a baseline: a file or folder that lens.save() wrote")
    command.add_argument("after", metavar="AFTER", help="the second capture: what it became")
    command.add_argument("--html", metavar="FILE", help="write both side by side as one HTML file; replaces an existing report")
    command.add_argument("--json", action="store_true", help="print JSON: the verdict, times and changes")


def _compare(options: argparse.Namespace) -> int:
    from ortlens.views.capture_view import load

    comparison = load(options.before).compare(load(options.after))
    written = comparison.report(options.html) if options.html else None
    if options.json:
        print_json(comparison.to_dict())
    else:
        print_text(comparison.summary(width=width()))
        if written is not None:
            print_text(f"\nSide by side: {written}")
    return EXIT_OK
