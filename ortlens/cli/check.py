"""`ortlens check`: a saved capture against limits and a baseline, for CI."""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens._files import write_file
from ortlens.cli.commands import EXIT_NO, EXIT_OK, add_quiet, command_in
from ortlens.cli.printing import json_text, print_json, print_note, print_text, width
from ortlens.errors import UsageError
from ortlens.job.request import ParsedArgument

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ortlens.analysis.check import VerdictRow
    from ortlens.cli.commands import Commands
    from ortlens.trace.records import Capture

_TEXT = "Check a saved capture against limits and a baseline. Exits 1 when a limit is broken, or was asked for and not measured."
_EXAMPLES = """
    ortlens check run.ortlens --max-breaks 0 --min-coverage 90%
    ortlens check run.ortlens --baseline main.ortlens --max-slowdown 20% --junit check.xml
"""
_STDOUT = "-"
_LIMITS = ("max_breaks", "max_recompiles", "min_coverage", "max_abs_err", "max_slowdown")
_WHOLE = ParsedArgument(int, "a whole number")


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = command_in(commands, "check", _TEXT, _check, examples=_EXAMPLES)
    command.add_argument("capture", metavar="CAPTURE", nargs="?", help="a file or folder that lens.save() or another command wrote")
    command.add_argument("--max-breaks", metavar="N", type=_WHOLE, help="distinct graph breaks at most")
    command.add_argument("--max-recompiles", metavar="N", type=_WHOLE, help="recompiles at most")
    command.add_argument(
        "--min-coverage",
        metavar="SHARE",
        type=ParsedArgument(_share, "a share, as 0.9 or 90%"),
        help="least share of operations in ONNX Runtime: 0.9 or 90%%",
    )
    command.add_argument(
        "--max-abs-err",
        metavar="SIZE",
        type=ParsedArgument(float, "a number"),
        help="largest absolute difference from PyTorch at most; the capture must be verified",
    )
    command.add_argument(
        "--baseline",
        metavar="CAPTURE",
        help="an earlier capture of the same program: breaks, recompiles, operators, results and times must not be worse",
    )
    command.add_argument(
        "--max-slowdown",
        metavar="FACTOR",
        type=ParsedArgument(_factor, "a factor, as 1.2 or 20%"),
        help="with --baseline: how many times as long anything may take, as 1.2 or 20%%",
    )
    command.add_argument(
        "--json", metavar="FILE", nargs="?", const=_STDOUT, help="write the verdicts as JSON, to stdout if no file is named"
    )
    command.add_argument("--junit", metavar="FILE", type=Path, help="write them as JUnit XML")
    command.add_argument("--markdown", metavar="FILE", type=Path, help="write them as Markdown, for a pull request or a job summary")
    add_quiet(command)


def _share(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _factor(text: str) -> float:
    return 1 + float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _check(options: argparse.Namespace) -> int:
    from ortlens.analysis.check import limits_from, verdicts_of
    from ortlens.trace.store import load

    _take_back_the_capture(options)
    with _named_as_options():
        limits = limits_from(**{name: getattr(options, name) for name in _LIMITS})
    capture = load(options.capture)
    baseline = None if options.baseline is None else load(options.baseline)
    with _named_as_options():
        rows = verdicts_of(capture, limits, baseline)
    _write(options, capture, baseline, rows)
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
        print_json(plain)
    else:
        print_text(verdicts_text(rows))
    texts = {}
    if options.json not in (None, _STDOUT):
        texts[Path(options.json)] = json_text(plain) + "\n"
    if options.junit is not None:
        texts[options.junit] = verdicts_junit(rows, capture.name)
    if options.markdown is not None:
        texts[options.markdown] = verdicts_markdown(rows, capture.name, _comparison(baseline, capture))
    for path, text in texts.items():
        _write_file(path.expanduser(), text)


def _comparison(baseline: Capture | None, capture: Capture) -> str:
    from ortlens.analysis.compare.comparison import compared
    from ortlens.views.comparison_text import comparison_text

    return "" if baseline is None else comparison_text(compared(baseline, capture), width=width())


def _plain(capture: Capture, rows: tuple[VerdictRow, ...]) -> dict[str, object]:
    """Make the verdicts plain; a value that cannot be compared is infinite, which is null in JSON, and its message says so."""
    from ortlens.views.verdict_text import remedy, verdict_sentence

    verdicts = [{**asdict(row), "message": verdict_sentence(row), "to_do": remedy(row)} for row in rows]
    return {"ok": all(row.holds for row in rows), "capture": capture.name, "verdicts": verdicts}


def _write_file(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text.encode("utf-8", "backslashreplace"))
    except OSError as err:
        raise UsageError(f"cannot write {path}: {err.strerror or err}; choose another file") from err
    print_note(f"Written to {path}")
