"""The commands that read saved captures: `show`, `report`, `export`, `merge`, `compare`, and `check`, for CI."""

from __future__ import annotations

import argparse
import contextlib
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.cli.commands import EXIT_NO, EXIT_OK, OneOf, add_quiet, command_in
from ortlens.cli.printing import (
    add_json,
    answer,
    facts_of,
    json_text,
    print_json,
    print_summary,
    print_text,
    print_written,
    recommended,
    width,
    write_text,
)
from ortlens.cli.reviewing import add_sarif, tell_reviewers
from ortlens.errors import UsageError
from ortlens.job.request import ParsedArgument, Request, add_outputs, request_from_options
from ortlens.job.work import write_outputs
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ortlens.analysis.answers.check import VerdictRow
    from ortlens.cli.commands import Commands
    from ortlens.trace.records import Capture


_CAPTURE = "a file or folder that lens.save() or another command wrote"
_DEFAULT_ROWS = 30

_SHOW = "Show a saved capture: a summary, or one of its tables."
_SHOW_ASKS = """
    What does a saved capture say?
    Which graphs, breaks, operators, sessions or kernels are there, row by row?
"""
_SHOW_EXAMPLES = """
    ortlens show run.ortlens
    ortlens show run.ortlens --table breaks
    ortlens show run.ortlens --table nodes --rows 0 --wide | less -S  # every row and column
"""
_REPORT = "Write the report of a saved capture: one HTML file that opens anywhere, offline."
_REPORT_ASKS = "How do I show somebody what was recorded?"
_REPORT_EXAMPLES = """
    ortlens report run.ortlens  # writes run.html
    ortlens report run.ortlens -o nightly.html --title Nightly --redact
"""
_EXPORT = "Write a saved capture as files for other tools: tables, ONNX models, a trace, the flame graph, node data for Model Explorer."
_EXPORT_ASKS = "How do I get it into pandas, Perfetto, speedscope or Model Explorer?"
_EXPORT_EXAMPLES = """
    ortlens export run.ortlens folder  # every table as CSV, and the ONNX models
    ortlens export run.ortlens folder --format json --table runs sessions
    ortlens export run.ortlens folder --format trace  # trace.json for ui.perfetto.dev
    ortlens export run.ortlens folder --format speedscope  # flame.speedscope.json for speedscope.app
    ortlens export run.ortlens folder --format model-explorer  # node data beside the ONNX models
"""
_MERGE = "Merge the captures of the ranks of one job. What differs between ranks, and a rank that keeps the others waiting, are findings."
_MERGE_ASKS = "Which rank keeps the others waiting, and what differs between ranks?"
_MERGE_EXAMPLES = """
    ortlens merge train.rank*.ortlens -o train.ortlens  # after ortlens run -m torch.distributed.run ... train.py
    ortlens merge train.rank*.ortlens -o train.ortlens --html train.html
"""
_COMPARE = "Compare two saved captures of one program: what runs elsewhere, breaks and recompiles, and times outside the noise."
_COMPARE_ASKS = "What differs since an earlier capture, and is it slower?"
_COMPARE_EXAMPLES = """
    ortlens compare before.ortlens after.ortlens
    ortlens compare before.ortlens after.ortlens --html compare.html  # side by side, opens anywhere
    ortlens compare before.ortlens after.ortlens --json | jq .verdict
"""


def add_show(commands: Commands) -> None:
    """Add `show` to the parser."""
    from ortlens.trace.schema import TABLES

    command = command_in(commands, "show", _SHOW, _show, asks=_SHOW_ASKS, examples=_SHOW_EXAMPLES)
    command.add_argument("capture", metavar="CAPTURE", help=_CAPTURE)
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


def _show(options: argparse.Namespace) -> None:
    from ortlens.trace.store import load

    if options.csv and not options.table:
        raise UsageError("--csv needs --table NAME. --json prints the overview.")
    capture = load(options.capture)
    if options.table:
        print_text(_table(capture, options))
    elif options.json:
        print_json("show", facts_of(capture))
    else:
        print_summary(capture)


def _table(capture: Capture, options: argparse.Namespace) -> str:
    from ortlens.analysis.problems.stream import records_of
    from ortlens.views.table import csv_from_rows, rows_of, table

    if not options.json and not options.csv:
        return table(records_of(capture, options.table), width=None if options.wide else width(), limit=options.rows or None)
    rows = rows_of(capture, options.table)
    if options.json:
        return json_text(answer("table", {"table": options.table, "rows": rows}))
    return csv_from_rows(options.table, rows).rstrip("\n")


def add_report(commands: Commands) -> None:
    """Add `report` to the parser."""
    command = command_in(commands, "report", _REPORT, _report, asks=_REPORT_ASKS, examples=_REPORT_EXAMPLES)
    command.add_argument("capture", metavar="CAPTURE", help=_CAPTURE)
    command.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="output file; replaces an existing report (default: CAPTURE.html)"
    )
    command.add_argument("--title", metavar="TEXT", help="its title (default: the capture's name)")
    command.add_argument("--redact", action="store_true", help="shorten paths to file names, and leave out source lines and values")
    add_json(command, "where it is")
    add_quiet(command)


def _report(options: argparse.Namespace) -> None:
    from ortlens.views.capture_view import load

    output = options.output or _default_output(Path(options.capture))
    request = Request(report=output.expanduser(), redact=options.redact)
    written = write_outputs(request, load(options.capture), title=options.title)
    if options.json:
        print_json("report", {"report": str(output.expanduser().absolute())})
    else:
        print_text("\n".join(written))


def _default_output(capture: Path) -> Path:
    """Return a path beside the capture; an existing file that was not named is not replaced."""
    path = capture.with_name(f"{capture.stem or 'capture'}.html")
    if path.exists():
        raise UsageError(f"{path} already exists; use -o {path} to replace it, or choose another file")
    return path


def add_export(commands: Commands) -> None:
    """Add `export` to the parser."""
    from ortlens.trace.schema import FORMATS, TABLES

    command = command_in(commands, "export", _EXPORT, _export, asks=_EXPORT_ASKS, examples=_EXPORT_EXAMPLES)
    command.add_argument("capture", metavar="CAPTURE", help=_CAPTURE)
    command.add_argument("folder", metavar="FOLDER", type=Path, help="output folder; created if missing")
    text = (
        "csv or json: a file per table, and the ONNX models; trace: trace.json for Perfetto; speedscope: the flame graph; "
        "model-explorer: times and errors per ONNX node (default: %(default)s)"
    )
    command.add_argument("--format", metavar="FORMAT", type=OneOf(FORMATS), default="csv", help=text)
    command.add_argument(
        "--table", metavar="NAME", nargs="+", action="extend", type=OneOf(tuple(TABLES)), help=f"only these tables: {', '.join(TABLES)}"
    )
    command.add_argument("--force", action="store_true", help="replace existing files")
    add_json(command, "which files there are")
    add_quiet(command)


def _export(options: argparse.Namespace) -> None:
    from ortlens.trace.store import load
    from ortlens.views.exporting import exported

    folder: Path = options.folder.expanduser()
    paths = exported(load(options.capture), folder, options.format, tables=tuple(options.table or ()), replace=options.force)
    if options.json:
        print_json("export", {"folder": str(folder.resolve()), "files": [path.relative_to(folder).as_posix() for path in paths]})
        return
    models = sum(path.suffix == ".onnx" for path in paths)
    others = [path.name for path in paths if path.suffix != ".onnx"]
    print_text(f"In {folder.resolve()}: {', '.join([*others, *([counted(models, 'ONNX model')] if models else [])])}")


def add_merge(commands: Commands) -> None:
    """Add `merge` to the parser."""
    command = command_in(commands, "merge", _MERGE, _merge, asks=_MERGE_ASKS, examples=_MERGE_EXAMPLES)
    command.add_argument("captures", metavar="CAPTURE", nargs="+", help="one per rank")
    add_outputs(command, "-o", saved="for example as job.ortlens")
    add_json(command, "the overview, and a row per rank,")
    add_quiet(command)


def _merge(options: argparse.Namespace) -> None:
    from ortlens.analysis.ranks import rank_rows
    from ortlens.views.capture_view import merge
    from ortlens.views.table import table

    request = request_from_options(options)
    view = merge(options.captures)
    rows: Any = rank_rows(view.captured())  # a table lays out any record
    if options.json:
        print_json("merge", {**facts_of(view.captured()), "ranks": [asdict(row) for row in rows]})
    else:
        print_summary(view.captured())
        print_text(f"\n{table(rows, width=width(), limit=None)}")
    print_written(write_outputs(request, view), beside_json=options.json)


def add_compare(commands: Commands) -> None:
    """Add `compare` to the parser."""
    command = command_in(commands, "compare", _COMPARE, _compare, asks=_COMPARE_ASKS, examples=_COMPARE_EXAMPLES)
    command.add_argument("before", metavar="BEFORE", help="the first capture, a baseline: a file or folder that lens.save() wrote")
    command.add_argument("after", metavar="AFTER", help="the second capture: what it became")
    command.add_argument("--html", metavar="FILE", help="write both side by side as one HTML file; replaces an existing report")
    add_json(command, "the verdict, times and changes")


def _compare(options: argparse.Namespace) -> None:
    from ortlens.views.capture_view import load

    comparison = load(options.before).compare(load(options.after))
    written = comparison.report(options.html) if options.html else None
    if options.json:
        print_json("compare", comparison.to_dict())
        return
    print_text(comparison.summary(width=width()))
    if written is not None:
        print_text(f"\nSide by side: {written}")


_CHECK = "Check a saved capture against limits and a baseline. Exits 1 when a limit is broken, or was asked for and not measured."
_CHECK_ASKS = "Did this change break graphs, or make the model slower or wrong?"
_CHECK_EXAMPLES = """
    ortlens check run.ortlens --max-breaks 0 --min-coverage 90%
    ortlens check run.ortlens --baseline main.ortlens --max-slowdown 20% --junit check.xml --sarif check.sarif
"""
_STDOUT = "-"
_WHOLE = ParsedArgument(int, "a whole number")


def _share(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _factor(text: str) -> float:
    return 1 + float(text[:-1]) / 100 if text.endswith("%") else float(text)


_TERMS: Mapping[str, tuple[str, Callable[[str], Any] | None, str]] = {
    "max_breaks": ("N", _WHOLE, "distinct graph breaks at most"),
    "max_recompiles": ("N", _WHOLE, "recompiles at most"),
    "min_coverage": ("SHARE", ParsedArgument(_share, "a share, as 0.9 or 90%"), "least share of operations in ONNX Runtime: 0.9 or 90%%"),
    "max_abs_err": (
        "SIZE",
        ParsedArgument(float, "a number"),
        "largest absolute difference from PyTorch at most; the capture must be verified",
    ),
    "baseline": (
        "CAPTURE",
        None,
        "an earlier capture of the same program: breaks, recompiles, operators, results and times must not be worse",
    ),
    "max_slowdown": (
        "FACTOR",
        ParsedArgument(_factor, "a factor, as 1.2 or 20%"),
        "with --baseline: how many times as long anything may take, as 1.2 or 20%%",
    ),
}
_LIMITS = tuple(name for name in _TERMS if name != "baseline")


def add_check(commands: Commands) -> None:
    """Add `check` to the parser."""
    command = command_in(commands, "check", _CHECK, _check, asks=_CHECK_ASKS, examples=_CHECK_EXAMPLES)
    command.add_argument("capture", metavar="CAPTURE", nargs="?", help="a file or folder that lens.save() or another command wrote")
    for name, (metavar, kind, text) in _TERMS.items():
        typed: dict[str, Any] = {} if kind is None else {"type": kind}
        command.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text, **typed)
    command.add_argument(
        "--json", metavar="FILE", nargs="?", const=_STDOUT, help="write the verdicts as JSON, to stdout if no file is named"
    )
    command.add_argument("--junit", metavar="FILE", type=Path, help="write them as JUnit XML")
    command.add_argument("--markdown", metavar="FILE", type=Path, help="write them as Markdown, for a pull request or a job summary")
    add_sarif(command)
    add_quiet(command)


def _check(options: argparse.Namespace) -> int:
    from ortlens.analysis.answers.check import limits_from, verdicts_of
    from ortlens.trace.store import load

    _take_back_the_capture(options)
    with _named_as_options():
        limits = limits_from(**{name: getattr(options, name) for name in _LIMITS})
    capture = load(options.capture)
    baseline = None if options.baseline is None else load(options.baseline)
    with _named_as_options():
        rows = verdicts_of(capture, limits, baseline)
    _write(options, capture, baseline, rows)
    tell_reviewers(capture, options.sarif, rows)
    return EXIT_OK if all(row.holds for row in rows) else EXIT_NO


@contextlib.contextmanager
def _named_as_options() -> Iterator[None]:
    """Refuse limits by the names that were typed, not by those of `lens.check`."""
    try:
        yield
    except UsageError as err:
        raise UsageError(re.sub("|".join(_LIMITS), lambda name: f"--{name[0].replace('_', '-')}", str(err))) from err


def _take_back_the_capture(options: argparse.Namespace) -> None:
    """Take back the capture of `--json CAPTURE`, which argparse takes for the file of --json."""
    if options.capture is None and options.json not in (None, _STDOUT):
        options.capture, options.json = options.json, _STDOUT
    if options.capture is None:
        raise UsageError("check needs a CAPTURE: a file or folder that lens.save() or another command wrote")


def _write(options: argparse.Namespace, capture: Capture, baseline: Capture | None, rows: tuple[VerdictRow, ...]) -> None:
    from ortlens.views.verdict_text import verdicts_junit, verdicts_markdown, verdicts_text

    plain = _plain(capture, rows)
    if options.json == _STDOUT:
        print_json("check", plain)
    else:
        print_text(verdicts_text(rows))
    texts = {}
    if options.json not in (None, _STDOUT):
        texts[Path(options.json)] = json_text(answer("check", plain)) + "\n"
    if options.junit is not None:
        texts[options.junit] = verdicts_junit(rows, capture.name)
    if options.markdown is not None:
        from ortlens.views.comparison import Comparison

        comparison = "" if baseline is None else Comparison(baseline, capture).summary(width=width())
        texts[options.markdown] = verdicts_markdown(rows, capture.name, comparison)
    for path, text in texts.items():
        write_text(path, text)


def _plain(capture: Capture, rows: tuple[VerdictRow, ...]) -> dict[str, object]:
    """Make the verdicts plain; a value that cannot be compared is infinite, which is null in JSON, and its message says so."""
    from ortlens.views.verdict_text import remedy, verdict_sentence

    verdicts = [{**asdict(row), "message": verdict_sentence(row), "to_do": remedy(row)} for row in rows]
    return {"ok": all(row.holds for row in rows), "capture": capture.name, "verdicts": verdicts, **recommended(capture)}
