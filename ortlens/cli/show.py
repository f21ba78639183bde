"""`ortlens show`: a saved capture on the terminal."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from ortlens.cli.commands import OneOf, command_in
from ortlens.cli.exit_codes import EXIT_OK
from ortlens.cli.printing import json_text, print_json, print_summary, print_text, width
from ortlens.errors import UsageError
from ortlens.job.request import ParsedArgument
from ortlens.views.table import csv_from_rows, records_of, rows_of

if TYPE_CHECKING:
    from ortlens.cli.commands import Commands
    from ortlens.trace.records import Capture

_EXAMPLES = """
    ortlens show run.ortlens
    ortlens show run.ortlens --table breaks
    ortlens show run.ortlens --table nodes --rows 0 --wide | less -S  # every row and column
"""
_DEFAULT_ROWS = 30


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    from ortlens.trace.schema import TABLES

    command = command_in(commands, "show", "Show a saved capture: a summary, or one of its tables.", _show, examples=_EXAMPLES)
    command.add_argument("capture", metavar="CAPTURE", help="a file or folder that lens.save() or `ortlens demo --save` wrote")
    command.add_argument("--table", metavar="NAME", type=OneOf(tuple(TABLES)), help=f"one table instead: {', '.join(TABLES)}")
    command.add_argument(
        "--rows", metavar="N", type=_row_count, default=_DEFAULT_ROWS, help="rows of a text table, 0 for all (default: %(default)s)"
    )
    command.add_argument("--wide", action="store_true", help="every column of a text table, uncut, however long its lines become")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON: the overview, or every row of the table")
    form.add_argument("--csv", action="store_true", help="print every row of the table as CSV")


def _row_count(text: str) -> int:
    number: int = ParsedArgument(int, "a whole number")(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative; 0 shows every row")
    return number


def _show(options: argparse.Namespace) -> int:
    from ortlens.trace.store import load

    if options.csv and not options.table:
        raise UsageError("--csv needs --table NAME. --json prints the overview.")
    capture = load(options.capture)
    if options.table:
        print_text(_table(capture, options))
    elif options.json:
        from ortlens.analysis.overview import overview_of

        print_json(asdict(overview_of(capture)))
    else:
        print_summary(capture)
    return EXIT_OK


def _table(capture: Capture, options: argparse.Namespace) -> str:
    from ortlens.views.table import table

    if not options.json and not options.csv:
        return table(records_of(capture, options.table), width=None if options.wide else width(), limit=options.rows or None)
    rows = rows_of(capture, options.table)
    return json_text(rows) if options.json else csv_from_rows(options.table, rows).rstrip("\n")
