"""`ortlens bench` measures a model or function in several ways, in turns; `ortlens tune` finds the options that make it faster here."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.cli.commands import add_quiet, command_in
from ortlens.cli.printing import print_json, print_note, print_text, width
from ortlens.job.request import SECONDS, add_backend_options, options_from_pairs
from ortlens.job.targets import add_target, target_and_inputs
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    import pandas as pd

    from ortlens.backend.options import OrtBackendOptions
    from ortlens.cli.commands import Commands
    from ortlens.trace.records import Capture, RunVariant


_BENCH = "Measure your model eager, through Inductor, through ONNX Runtime, frozen and exported, in turns: one table, one capture."
_BENCH_EXAMPLES = """
    ortlens bench mymodels:net --input f32[32,256] -o bench.ortlens  # every way, and the capture
    ortlens bench mymodels:net --input f32[32,256] --ways ortlens,exported --seconds 30 --json
"""
_SECONDS = 10.0

_HEADS = ("way", "time per call", "of eager", "99 % interval", "first call", "difference", "")


def add_bench(commands: Commands) -> None:
    """Add `bench` to the parser."""
    command = command_in(commands, "bench", _BENCH, _bench, examples=_BENCH_EXAMPLES)
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


def _bench(options: argparse.Namespace) -> None:
    chosen = options_from_pairs(options.option)
    with target_and_inputs(options) as (target, args, kwargs):
        from ortlens.studies.bench import WAYS, bench

        ways = tuple(name.strip() for name in options.ways.split(",") if name.strip()) or WAYS
        rows, capture = bench(target, args, kwargs, ways=ways, seconds=options.seconds, options=chosen or None, name=options.target)
    _tell(options, rows, capture)


def _tell(options: argparse.Namespace, rows: tuple[RunVariant, ...], capture: Capture) -> None:
    from ortlens.trace import store

    if options.json:
        print_json([asdict(row) for row in rows])
    else:
        print_text(ways_text(rows, width=width()))
    if options.save is not None:
        print_note(f"Saved to {store.save(capture, options.save)}")


def ways_text(rows: Sequence[RunVariant], *, width: int = 100) -> str:
    """Lay the ways, eager first, out as a table, with the reasons of those that could not be measured, and a conclusion."""
    from ortlens.views.wording import clipped

    measured = [row for row in rows if row.call_ns is not None]
    cells = [_HEADS, *(_cells(row) for row in measured)]
    sizes = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip() for line in cells]
    lines += [clipped(f"{row.way}: not measured: {row.note}", width) for row in rows if row.call_ns is None]
    return "\n".join([*lines, "", conclusion(rows)])


def conclusion(rows: Sequence[RunVariant]) -> str:
    """Say which way is fastest, as far as that is sure."""
    faster = sorted((row for row in rows if row.verdict == "faster"), key=lambda row: row.ratio or 1.0)
    if not faster:
        return "No way is faster than eager outside the noise."
    best, *others = faster
    close = [row.way for row in others if (row.ratio_low or 0.0) <= (best.ratio_high or 1.0)]
    beside = f"; {' and '.join(close)} cannot be told apart from it" if close else ""
    return f"Fastest: {best.way}, {best.ratio or 1.0:.2f}x of eager{beside}."


def _cells(row: RunVariant) -> tuple[str, ...]:
    reference = row.verdict == "reference"
    return (
        row.way,
        time_from_ns(row.call_ns or 0),
        "" if reference else f"{row.ratio or 1.0:.2f}x",
        "" if reference else f"{row.ratio_low or 1.0:.2f}x to {row.ratio_high or 1.0:.2f}x",
        time_from_ns(row.first_ns or 0),
        "" if reference or row.max_abs is None else "other shapes or NaN" if math.isinf(row.max_abs) else f"{row.max_abs:.1e}",
        "" if reference else row.verdict,
    )


_TUNE = "Try the options that may make your model faster, in turns, and list what was measured."
_TUNE_EXAMPLES = """
    ortlens tune mymodels:net --input f32[32,256] --budget 60
"""
_BUDGET_S = 60.0


def add_tune(commands: Commands) -> None:
    """Add `tune` to the parser."""
    command = command_in(commands, "tune", _TUNE, _tune, examples=_TUNE_EXAMPLES)
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
        print_text(_trials_text(chosen, table))


def _trials_text(chosen: OrtBackendOptions, table: pd.DataFrame) -> str:
    columns = ["option", "value", "ratio", "spread", "verified", "chosen", "note"]
    kept = table[table.chosen & (table.option != "all")]
    changed = ", ".join(f"{row.option}: {row.value}" for row in kept.itertuples())
    unset = [field.name for field in dataclasses.fields(chosen) if getattr(chosen, field.name) != field.default]
    said = f"Keep {changed}." if changed else f"Nothing was faster outside the noise; keep {', '.join(unset) or 'the defaults'}."
    return f"{table[columns].to_string(index=False, na_rep='', float_format='{:.2f}'.format)}\n\n{said}"
