"""`ortlens merge`: the captures of the ranks of one job as one capture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.cli.commands import add_quiet, command_in
from ortlens.cli.exit_codes import EXIT_OK
from ortlens.cli.printing import print_summary, print_text, print_written, width
from ortlens.job.request import Request
from ortlens.job.work import write_outputs

if TYPE_CHECKING:
    import argparse

    from ortlens.cli.commands import Commands

_TEXT = "Merge the captures of the ranks of one job. What differs between ranks, and a rank that keeps the others waiting, are findings."
_EXAMPLES = """
    ortlens merge train.rank*.ortlens -o train.ortlens  # after ortlens run -m torch.distributed.run ... train.py
    ortlens merge train.rank*.ortlens -o train.ortlens --html train.html
"""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = command_in(commands, "merge", _TEXT, _merge, examples=_EXAMPLES)
    command.add_argument("captures", metavar="CAPTURE", nargs="+", help="one per rank")
    command.add_argument("-o", "--save", metavar="FILE", type=Path, help="save the merged capture")
    command.add_argument("--report", "--html", metavar="FILE", type=Path, help="write its report, one HTML file that opens anywhere")
    add_quiet(command)


def _merge(options: argparse.Namespace) -> int:
    from ortlens.analysis.ranks import rank_rows
    from ortlens.views.merging import merge
    from ortlens.views.table import table

    request = Request(save=options.save, report=options.report)
    view = merge(options.captures)
    print_summary(view.captured())
    rows: Any = rank_rows(view.captured())  # a table lays out any record
    print_text(f"\n{table(rows, width=width(), limit=None)}")
    print_written(write_outputs(request, view))
    return EXIT_OK
