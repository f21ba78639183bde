"""The commands that read saved captures: `show`, `report`, `export`, `compare`, and `check`, for CI."""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.cli.commands import (
    EXIT_NO,
    EXIT_OK,
    Command,
    answer,
    facts_of,
    json_text,
    print_answer,
    print_json,
    print_note,
    print_summary,
    print_text,
    recommended,
    tell_reviewers,
    width,
    write_text,
)
from ortlens.errors import UsageError
from ortlens.job.options import STDOUT
from ortlens.job.request import Request, backend_options, is_onnx_file, write_outputs
from ortlens.job.targets import inputs_from_texts
from ortlens.trace.records import same
from ortlens.units import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ortlens.analysis.answers.check import VerdictRow
    from ortlens.trace.records import Capture


def _show(options: argparse.Namespace) -> None:
    from ortlens.trace.store import load

    if options.csv and not options.table:
        raise UsageError("--csv needs --table NAME. --json prints the overview.")
    if options.csv and options.json:
        raise UsageError("--csv and --json are two forms of the same rows; leave one of them out")
    capture = load(options.capture)
    if options.table:
        print_text(_table(capture, options))
    elif options.json:
        print_json("show", facts_of(capture))
    else:
        print_summary(capture)


SHOW = Command(
    name="show",
    text="Show a saved capture: a summary, or one of its tables.",
    run=_show,
    asks="""
        What does a saved capture say?
        Which graphs, breaks, operators, sessions or kernels are there, row by row?
    """,
    examples="""
        ortlens show run.ortlens
        ortlens show run.ortlens --table breaks
        ortlens show run.ortlens --table nodes --rows 0 --wide | less -S  # every row and column
    """,
)


def _table(capture: Capture, options: argparse.Namespace) -> str:
    from ortlens.views.actions import records_of
    from ortlens.views.table import csv_from_rows, rows_of, table
    from ortlens.views.wording import SAVED

    records = records_of(capture, options.table)
    if not options.json and not options.csv:
        if not records:
            return SAVED.for_empty(options.table)
        return table(records, width=None if options.wide else width(), limit=options.rows or None)
    rows = rows_of(options.table, records)
    if options.json:
        return json_text(answer("table", {"table": options.table, "rows": rows}))
    return csv_from_rows(options.table, rows).rstrip("\n")


def _report(options: argparse.Namespace) -> None:
    from ortlens.views.capture_view import load

    output = options.output or _default_output(Path(options.capture))
    request = Request(report=output, redact=options.redact)
    written = write_outputs(request, load(options.capture), title=options.title)
    print_answer(options, "report", {"report": str(output.absolute())}, "\n".join(written))


REPORT = Command(
    name="report",
    text="Write the report of a saved capture: one HTML file that opens anywhere, offline.",
    run=_report,
    asks="How do I show somebody what was recorded?",
    examples="""
        ortlens report run.ortlens  # writes run.html
        ortlens report run.ortlens -o nightly.html --title Nightly --redact
    """,
)


def _default_output(capture: Path) -> Path:
    """Return a path beside the capture; an existing file that was not named is not replaced."""
    path = capture.with_name(f"{capture.stem or 'capture'}.html")
    if path.exists():
        raise UsageError(f"{path} already exists; use -o {path} to replace it, or choose another file")
    return path


def _export(options: argparse.Namespace) -> None:
    from ortlens.trace.store import load
    from ortlens.views.exporting import exported

    folder: Path = options.folder.expanduser()
    paths = exported(load(options.capture), folder, options.format, tables=tuple(options.table or ()), replace=options.force)
    facts = {"folder": str(folder.resolve()), "files": [path.relative_to(folder).as_posix() for path in paths]}
    models = sum(path.suffix == ".onnx" for path in paths)
    others = [path.name for path in paths if path.suffix != ".onnx"]
    text = f"In {folder.resolve()}: {', '.join([*others, *([counted(models, 'ONNX model')] if models else [])])}"
    print_answer(options, "export", facts, text)


EXPORT = Command(
    name="export",
    text="Write a saved capture as files for other tools: tables, ONNX models, a trace.",
    run=_export,
    asks="How do I get it into pandas, Perfetto or speedscope?",
    examples="""
        ortlens export run.ortlens folder  # every table as CSV, and the ONNX models
        ortlens export run.ortlens folder --format json --table runs sessions
        ortlens export run.ortlens folder --format trace  # trace.json for ui.perfetto.dev and speedscope.app
    """,
)


_OF_MODELS = ("min_sqnr", "max_slowdown", "input", "provider", "provider_library", "budget_s")


def _compare(options: argparse.Namespace) -> int:
    are_models = [is_onnx_file(text) for text in (options.before, options.after)]
    if all(are_models):
        return _compare_models(options)
    if any(are_models) or any(getattr(options, name) for name in _OF_MODELS):
        what = "two captures, or two ONNX models with inputs, providers and limits"
        raise UsageError(f"compare takes {what}, not {options.before} and {options.after}; `ortlens check` has limits of captures")
    from ortlens.views.capture_view import load

    comparison = load(options.before).compare(load(options.after))
    beside = f"\n\nSide by side: {comparison.report(options.html)}" if options.html else ""
    print_answer(options, "compare", comparison.to_dict(), comparison.summary(width=width()) + beside)
    return EXIT_OK


def _compare_models(options: argparse.Namespace) -> int:
    from ortlens._versions import check_supported

    args, kwargs = inputs_from_texts(options.input).arrays(options.seed)
    check_supported()
    from ortlens.studies.compare_models import compare_models
    from ortlens.views.verdict_text import verdicts_text

    chosen = backend_options(options)
    found = compare_models(options.before, options.after, *args, options=chosen, budget_s=options.budget_s, **kwargs)
    with _named_as_options():
        rows = found.verdicts(**same(options, *_OF_MODELS[:2]))
    ok = all(row.holds for row in rows)
    if options.html:
        print_note(f"Written to {found.report(options.html)}")
    text = found.summary(width=width()) + ("\n\n" + verdicts_text(rows) if rows else "")
    print_answer(options, "compare_models", asdict(found) | {"ok": ok, "verdicts": rows}, text)
    return EXIT_OK if ok else EXIT_NO


COMPARE = Command(
    name="compare",
    text="Compare two captures of one program: splits, placement, times outside the noise. Or two ONNX models, value by value.",
    run=_compare,
    asks="""
        What differs since an earlier capture, and is it slower?
        What did quantising or float16 change in an ONNX model, and is it faster?
    """,
    examples="""
        ortlens compare before.ortlens after.ortlens
        ortlens compare before.ortlens after.ortlens --html compare.html  # side by side, opens anywhere
        ortlens compare before.ortlens after.ortlens --json | jq .verdict
        ortlens compare fp32.onnx int8.onnx --input f32[1,3,224,224] --min-sqnr 20 --max-slowdown 1.0
    """,
)


_LIMITS = ("max_breaks", "max_recompiles", "max_skipped", "min_coverage", "max_abs_err", "min_sqnr", "max_slowdown", "max_pieces")


def _check(options: argparse.Namespace) -> int:
    from ortlens.analysis.answers.check import limits_from, verdicts_of
    from ortlens.trace.store import load

    if options.capture is None and options.json not in (None, STDOUT):  # argparse took `--json CAPTURE` for the file of --json
        options.capture, options.json = options.json, STDOUT
    if options.capture is None:
        raise UsageError("check needs a CAPTURE: a file that lens.save() or another command wrote")
    with _named_as_options():
        limits = limits_from(**{name: getattr(options, name) for name in _LIMITS})
    capture = load(options.capture)
    baseline = None if options.baseline is None else load(options.baseline)
    with _named_as_options():
        rows = verdicts_of(capture, limits, baseline, provider=options.provider)
    _write(options, capture, baseline, rows)
    tell_reviewers(capture, options.sarif, rows)
    return EXIT_OK if all(row.holds for row in rows) else EXIT_NO


CHECK = Command(
    name="check",
    text="Check a saved capture against limits and a baseline. Exits 1 when a limit is broken, or was asked for and not measured.",
    run=_check,
    asks="Did this change break graphs, or make the model slower or wrong?",
    examples="""
        ortlens check run.ortlens --max-breaks 0 --min-coverage 90%
        ortlens check run.ortlens --baseline main.ortlens --max-slowdown 20% --junit check.xml --sarif check.sarif
    """,
)


@contextlib.contextmanager
def _named_as_options() -> Iterator[None]:
    """Refuse limits by the names that were typed, not by those of `lens.check`."""
    try:
        yield
    except UsageError as err:
        raise UsageError(re.sub("|".join(_LIMITS), lambda name: f"--{name[0].replace('_', '-')}", str(err))) from err


def _write(options: argparse.Namespace, capture: Capture, baseline: Capture | None, rows: tuple[VerdictRow, ...]) -> None:
    from ortlens.views.verdict_text import remedy, verdict_sentence, verdicts_junit, verdicts_markdown, verdicts_text

    # A value that cannot be compared is infinite, which is null in JSON, and its message says so.
    verdicts = [{**asdict(row), "message": verdict_sentence(row), "to_do": remedy(row)} for row in rows]
    plain = {"ok": all(row.holds for row in rows), "capture": capture.name, "verdicts": verdicts, **recommended(capture)}
    if options.json == STDOUT:
        print_json("check", plain)
    else:
        print_text(verdicts_text(rows))
    texts = {}
    if options.json not in (None, STDOUT):
        texts[Path(options.json)] = json_text(answer("check", plain)) + "\n"
    if options.junit is not None:
        texts[options.junit] = verdicts_junit(rows, capture.name)
    if options.markdown is not None:
        from ortlens.views.comparison import Comparison

        comparison = "" if baseline is None else Comparison(baseline, capture).summary(width=width())
        texts[options.markdown] = verdicts_markdown(rows, capture.name, comparison)
    for path, text in texts.items():
        write_text(path, text)
