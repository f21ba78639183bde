"""`ortlens bench`: a model or function of the user's, eager, through Inductor, through ONNX Runtime and exported, in turns."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.cli.commands import add_quiet, command_in
from ortlens.cli.exit_codes import EXIT_OK
from ortlens.cli.printing import print_json, print_note, print_text, width
from ortlens.job.request import SECONDS, add_backend_options, options_from_pairs
from ortlens.job.targets import add_target, target_and_inputs

if TYPE_CHECKING:
    import argparse

    from ortlens.analysis.compare.ways import RunVariant
    from ortlens.cli.commands import Commands
    from ortlens.trace.records import Capture

_TEXT = "Measure your model eager, through Inductor, through ONNX Runtime, frozen and exported, in turns: one table, one capture."
_EXAMPLES = """
    ortlens bench mymodels:net --input f32[32,256] -o bench.ortlens  # every way, and the capture
    ortlens bench mymodels:net --input f32[32,256] --ways ortlens,exported --seconds 30 --json
"""
_SECONDS = 10.0


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = command_in(commands, "bench", _TEXT, _bench, examples=_EXAMPLES)
    add_target(command)
    command.add_argument(
        "--ways",
        metavar="NAMES",
        default="",
        help="only these beside eager, with commas: inductor, ortlens, frozen, exported (all)",
    )
    command.add_argument(
        "--seconds", metavar="N", type=SECONDS, default=_SECONDS, help="time for the rounds; at least ten are made (default: %(default)s)"
    )
    add_backend_options(command)
    command.add_argument("-o", "--save", metavar="FILE", type=Path, help="save the capture of the calls through ortlens, with the table")
    command.add_argument("--json", action="store_true", help="print the table as JSON")
    add_quiet(command)


def _bench(options: argparse.Namespace) -> int:
    chosen = options_from_pairs(options.option)
    with target_and_inputs(options) as (target, args, kwargs):
        from ortlens.studies.bench import WAYS, bench

        ways = tuple(name.strip() for name in options.ways.split(",") if name.strip()) or WAYS
        rows, capture = bench(target, args, kwargs, ways=ways, seconds=options.seconds, options=chosen or None, name=options.target)
    _tell(options, rows, capture)
    return EXIT_OK


def _tell(options: argparse.Namespace, rows: tuple[RunVariant, ...], capture: Capture) -> None:
    from ortlens.trace import store
    from ortlens.views.ways_text import ways_text

    if options.json:
        print_json([asdict(row) for row in rows])
    else:
        print_text(ways_text(rows, width=width()))
    if options.save is not None:
        print_note(f"Saved to {store.save(capture, options.save)}")
