"""`ortlens tune`: which options make a model faster here, measured in turns."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from ortlens.cli.commands import add_quiet, command_in
from ortlens.cli.printing import print_json, print_text
from ortlens.job.request import SECONDS, add_backend_options, options_from_pairs
from ortlens.job.targets import add_target, target_and_inputs

if TYPE_CHECKING:
    import argparse

    import pandas as pd

    from ortlens.backend.options import OrtBackendOptions
    from ortlens.cli.commands import Commands

_TEXT = "Try the options that may make your model faster, in turns, and list what was measured."
_EXAMPLES = """
    ortlens tune mymodels:net --input f32[32,256] --budget 60
"""
_BUDGET_S = 60.0


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = command_in(commands, "tune", _TEXT, _tune, examples=_EXAMPLES)
    add_target(command)
    command.add_argument("--budget", metavar="S", type=SECONDS, default=_BUDGET_S, help="time limit in seconds (default: %(default)s)")
    add_backend_options(command)
    command.add_argument("--json", action="store_true", help="print the table as JSON")
    add_quiet(command)


def _tune(options: argparse.Namespace) -> None:
    given = options_from_pairs(options.option)
    with target_and_inputs(options) as (target, args, kwargs):
        from ortlens.studies.tune import tune

        chosen, table = tune(target, options=given or None, budget_s=options.budget)(*args, **kwargs)
    if options.json:
        print_json(json.loads(table.to_json(orient="records")))
    else:
        print_text(_text(chosen, table))


def _text(chosen: OrtBackendOptions, table: pd.DataFrame) -> str:
    columns = ["option", "value", "ratio", "spread", "verified", "chosen", "note"]
    kept = table[table.chosen & (table.option != "all")]
    changed = ", ".join(f"{row.option}: {row.value}" for row in kept.itertuples())
    unset = [field.name for field in dataclasses.fields(chosen) if getattr(chosen, field.name) != field.default]
    said = f"Keep {changed}." if changed else f"Nothing was faster outside the noise; keep {', '.join(unset) or 'the defaults'}."
    return f"{table[columns].to_string(index=False, na_rep='', float_format='{:.2f}'.format)}\n\n{said}"
