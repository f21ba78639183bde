"""`ortlens compare`: two saved captures of one program, side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ortlens.cli.commands import command_in
from ortlens.cli.exit_codes import EXIT_OK
from ortlens.cli.printing import print_text, width

if TYPE_CHECKING:
    import argparse

    from ortlens.cli.commands import Commands

_TEXT = "Compare two saved captures of one program: what runs elsewhere, breaks and recompiles, and times outside the noise."


def add(commands: Commands) -> None:
    """Add the command to the parser.

    Args:
        commands: Where commands are added.
    """
    command = command_in(commands, "compare", _TEXT, _compare)
    command.add_argument("before", metavar="BEFORE", help="the first capture, a baseline: a file or folder that lens.save() wrote")
    command.add_argument("after", metavar="AFTER", help="the second capture: what it became")
    command.add_argument("--json", action="store_true", help="print JSON: the verdict, times and changes")


def _compare(options: argparse.Namespace) -> int:
    from ortlens.views.capture_view import load

    comparison = load(options.before).compare(load(options.after))
    print_text(json.dumps(comparison.to_dict(), indent=2) if options.json else comparison.summary(width=width()))
    return EXIT_OK
