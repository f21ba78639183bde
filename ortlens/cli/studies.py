"""`ortlens bench` measures a model in several ways, `tune` finds the options that make it faster here, `survey` runs many."""

from __future__ import annotations

import argparse
import dataclasses
import re
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.cli.commands import EXIT_NO, EXIT_OK, add_quiet, command_in
from ortlens.cli.printing import add_json, print_json, print_note, print_text, recommended, width
from ortlens.errors import UsageError
from ortlens.job.request import COUNT, SECONDS, add_backend_options, options_from_pairs
from ortlens.job.targets import add_target, target_and_inputs
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.analysis.answers.surveyed import SurveyRow
    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.cli.commands import Commands
    from ortlens.studies.tune import Trial
    from ortlens.trace.records import Capture, SideResult


_BENCH = "Measure your model eager, through Inductor, through ONNX Runtime, frozen and exported, in turns: one table, one capture."
_BENCH_ASKS = "Is it faster than eager and than Inductor?"
_BENCH_EXAMPLES = """
    ortlens bench mymodels:net --input f32[32,256] -o bench.ortlens  # every way, and the capture
    ortlens bench mymodels:net --input f32[32,256] --ways ortlens,exported --seconds 30 --json
"""
_SECONDS = 10.0


def add_bench(commands: Commands) -> None:
    """Add `bench` to the parser."""
    command = command_in(commands, "bench", _BENCH, _bench, asks=_BENCH_ASKS, examples=_BENCH_EXAMPLES)
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
    add_json(command, "the table")
    add_quiet(command)


def _bench(options: argparse.Namespace) -> None:
    chosen = options_from_pairs(options.option)
    with target_and_inputs(options) as (target, args, kwargs):
        from ortlens.studies.bench import WAYS, bench

        ways = tuple(name.strip() for name in options.ways.split(",") if name.strip()) or WAYS
        rows, capture = bench(target, args, kwargs, ways=ways, seconds=options.seconds, options=chosen or None, name=options.target)
    _tell(options, rows, capture)


def _tell(options: argparse.Namespace, rows: tuple[SideResult, ...], capture: Capture) -> None:
    from ortlens.studies.engine import sides_text
    from ortlens.trace import store

    if options.json:
        print_json("bench", {"rows": [asdict(row) for row in rows], **recommended(capture)})
    else:
        print_text(f"{sides_text(rows, width=width())}\n\n{conclusion(rows)}")
    if options.save is not None:
        print_note(f"Saved to {store.save(capture, options.save)}")


def conclusion(rows: Sequence[SideResult]) -> str:
    """Say which way is fastest, as far as that is sure."""
    faster = sorted((row for row in rows if row.verdict == "faster"), key=lambda row: row.ratio or 1.0)
    if not faster:
        return "No way is faster than eager outside the noise."
    best, *others = faster
    close = [row.way for row in others if (row.ratio_low or 0.0) <= (best.ratio_high or 1.0)]
    beside = f"; {' and '.join(close)} cannot be told apart from it" if close else ""
    return f"Fastest: {best.way}, {best.ratio or 1.0:.2g}x of eager{beside}."


_TUNE = "Try the options that may make your model faster, in turns, and list what was measured."
_TUNE_ASKS = "Which options make it faster on this machine?"
_TUNE_EXAMPLES = """
    ortlens tune mymodels:net --input f32[32,256] --budget 60
"""
_BUDGET_S = 60.0


def add_tune(commands: Commands) -> None:
    """Add `tune` to the parser."""
    command = command_in(commands, "tune", _TUNE, _tune, asks=_TUNE_ASKS, examples=_TUNE_EXAMPLES)
    add_target(command)
    command.add_argument("--budget", metavar="S", type=SECONDS, default=_BUDGET_S, help="time limit in seconds (default: %(default)s)")
    add_backend_options(command)
    add_json(command, "the table")
    add_quiet(command)


def _tune(options: argparse.Namespace) -> None:
    given = options_from_pairs(options.option)
    with target_and_inputs(options) as (target, args, kwargs):
        from ortlens.backend.basis.options import OrtBackendOptions
        from ortlens.lens.observing.time_budget import TimeBudget
        from ortlens.studies.engine import sides_text
        from ortlens.studies.tune import tried

        chosen, rows = tried(target, args, kwargs, OrtBackendOptions.from_any(given or None), TimeBudget(options.budget))
    if options.json:
        print_json("tune", {"rows": [asdict(row) for row in rows]})
    else:
        print_text(f"{sides_text(rows, width=width())}\n\n{_advice(chosen, rows)}")


def _advice(chosen: OrtBackendOptions, rows: Sequence[Trial]) -> str:
    changed = ", ".join(f"{row.option}: {row.value}" for row in rows if row.chosen and row.option != "all")
    unset = [field.name for field in dataclasses.fields(chosen) if getattr(chosen, field.name) != field.default]
    return f"Keep {changed}." if changed else f"Nothing was faster outside the noise; keep {', '.join(unset) or 'the defaults'}."


_SURVEY = "Run many models, each in a process of its own: a crash, a hang or a lack of memory costs its own case. One page, one table."
_SURVEY_ASKS = "Which of many models run in ONNX Runtime, and how fast?"
_SURVEY_EXAMPLES = """
    ortlens survey cases.py -o results  # CASES in cases.py: a mapping from names to functions that return (model, args)
    ortlens survey cases.toml -o results --time-limit 120 --memory-limit 4G
    ortlens survey cases.py -o results --options min_partition_nodes=1 --options min_partition_nodes=8 freeze_weights=False
    ortlens survey cases.py -o results --scheduler tcp://head:8786  # on the workers of a Dask cluster
"""
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_survey(commands: Commands) -> None:
    """Add `survey` to the parser."""
    command = command_in(commands, "survey", _SURVEY, _survey, asks=_SURVEY_ASKS, examples=_SURVEY_EXAMPLES)
    command.add_argument("cases", metavar="CASES", help="FILE.py[:NAME], MODULE:NAME (default name: CASES), FILE.toml or FILE.json")
    command.add_argument(
        "-o", "--folder", metavar="FOLDER", type=Path, help="keep results here, and run only what is missing; index.html is the page"
    )
    command.add_argument("--only", metavar="GLOB", action="append", default=[], help="only cases of such a name; may be repeated")
    command.add_argument(
        "--options",
        metavar="KEY=VALUE",
        nargs="+",
        action="append",
        default=[],
        help="options of the ortlens backend; if repeated, every case runs under each",
    )
    command.add_argument("--workers", metavar="N", type=COUNT, help="cases at the same time (default: one per two cores)")
    command.add_argument(
        "--time-limit", metavar="S", type=SECONDS, default=600.0, help="seconds that a case may take (default: %(default)s)"
    )
    command.add_argument("--memory-limit", metavar="SIZE", type=_size, help="memory of a case, as 4G (default: its share of the machine's)")
    command.add_argument("--profile", action="store_true", help="also measure where the time inside ONNX Runtime goes, kernel by kernel")
    command.add_argument("--verify", action="store_true", help="also compare every value with PyTorch's, with float64 as the reference")
    command.add_argument("--no-reports", action="store_true", help="no report of each case: the page alone")
    command.add_argument("--retry", action="store_true", help="run cases again that have a reason and no result")
    command.add_argument("--scheduler", metavar="ADDRESS", help="run on a Dask cluster; pip install 'ortlens[dask]'")
    command.add_argument("--title", metavar="TEXT", help="title of the page (default: CASES)")
    add_json(command, "the table")
    add_quiet(command)


def _survey(options: argparse.Namespace) -> int:
    from ortlens.studies.cases import cases_from_text
    from ortlens.studies.survey import survey

    variants = [options_from_pairs(pairs) for pairs in options.options] or None
    globs = options.only or ["*"]
    cases = [case for case in cases_from_text(options.cases, variants) if any(fnmatch(case.name, glob) for glob in globs)]
    if not cases:
        raise UsageError(f"no case of {options.cases} has a name like {' or '.join(options.only)}")
    client = _client(options.scheduler)
    rows: dict[str, SurveyRow] = {}

    def tell(row: SurveyRow) -> None:
        rows[row.key] = row
        if not row.kept:
            print_note(_line(row))

    frame = survey(
        cases,
        client,
        folder=options.folder,
        workers=options.workers,
        time_limit=options.time_limit,
        memory_limit=options.memory_limit,
        profile=options.profile,
        verify=options.verify,
        reports=not options.no_reports,
        retry=options.retry,
        title=options.title or f"Survey of {Path(options.cases).name}",
        tell=tell,
    )
    _tell_survey([rows[key] for key in frame.key], options)
    return EXIT_OK if (frame.status == "ok").all() else EXIT_NO


def _client(address: str | None) -> Any:  # noqa: ANN401 - a dask.distributed.Client
    if address is None:
        return None
    from ortlens._optional import require

    try:
        return require("distributed", "--scheduler").Client(address, timeout=10)
    except (OSError, ValueError) as err:
        raise UsageError(f"there is no Dask scheduler at {address}: {err}") from err


def _line(row: SurveyRow) -> str:
    from ortlens.units import percent
    from ortlens.views.wording import visible

    how = row.reason or ("" if row.coverage is None else f"{percent(row.coverage)} in ONNX Runtime")
    name = f"{row.case} ({row.options})" if row.options else row.case
    return visible(f"{name}: {row.status}, {time_from_ns(row.case_ns)}; {how}".rstrip("; "))


def _tell_survey(rows: Sequence[SurveyRow], options: argparse.Namespace) -> None:
    if options.json:
        print_json("survey", {"rows": [asdict(row) for row in rows]})
    else:
        from ortlens.views.table import brief_columns, table

        print_text(table(rows, brief_columns(rows), width=width(), limit=None))
    if options.folder is not None:
        print_note(f"Page written to {options.folder.expanduser().absolute() / 'index.html'}")


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not (size := round(float(match["number"]) * _UNITS[match["unit"].upper()])):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 512M or 4G")
    return size
