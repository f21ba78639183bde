"""`ortlens bench`: a model or function of the user's, eager, through Inductor, through ONNX Runtime and exported, in turns."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.cli.commands import command_in
from ortlens.cli.exit_codes import EXIT_OK
from ortlens.cli.inputs import inputs_from_texts
from ortlens.cli.printing import print_error, print_text, width
from ortlens.cli.targets import add_target, raised_as_usage, target_from_text
from ortlens.job.request import add_backend_options, options_from_pairs

if TYPE_CHECKING:
    from ortlens.analysis.compare.ways import Way
    from ortlens.cli.commands import Commands
    from ortlens.trace.records import Capture

_TEXT = "Measure your model eager, through Inductor, through ONNX Runtime, and exported, in turns: one table, one capture."
_SECONDS = 10.0


def add(commands: Commands) -> None:
    """Add the command to the parser.

    Args:
        commands: Where commands are added.
    """
    command = command_in(commands, "bench", _TEXT, _bench)
    add_target(command)
    command.add_argument(
        "--ways", metavar="NAMES", default="", help="only these beside eager, with commas: inductor, ortlens, exported (default: all)"
    )
    command.add_argument(
        "--seconds", metavar="N", type=_seconds, default=_SECONDS, help="time for the rounds; at least ten are made (default: %(default)s)"
    )
    add_backend_options(command)
    command.add_argument("-o", "--save", metavar="FILE", type=Path, help="save the capture of the calls through ortlens, with the table")
    command.add_argument("--json", action="store_true", help="print the table as JSON")


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a time in seconds")
    return number


def _bench(options: argparse.Namespace) -> int:
    inputs, chosen = inputs_from_texts(options.input), options_from_pairs(options.option)  # a slip here should not wait for torch

    from ortlens._versions import check_supported

    check_supported()
    import torch

    from ortlens.survey.bench import WAYS, bench

    torch.manual_seed(options.seed)
    target = target_from_text(options.target)
    with raised_as_usage("creating the inputs"):
        args, kwargs = inputs.made(options.seed)
    ways = tuple(name.strip() for name in options.ways.split(",") if name.strip()) or WAYS
    with raised_as_usage(f"calling {options.target} with {' '.join(options.input) or 'no --input'}"), torch.no_grad():
        rows, capture = bench(target, args, kwargs, ways=ways, seconds=options.seconds, options=chosen or None, name=options.target)
    _tell(options, rows, capture)
    return EXIT_OK


def _tell(options: argparse.Namespace, rows: tuple[Way, ...], capture: Capture) -> None:
    from ortlens.trace import store
    from ortlens.views.ways_text import ways_text

    plain = [{**asdict(row), "max_abs": None if row.max_abs in (None, math.inf) else row.max_abs} for row in rows]
    print_text(json.dumps(plain, indent=2) if options.json else ways_text(rows, width=width()))
    if options.save is not None:
        print_error(f"Saved to {store.save(capture, options.save)}")
