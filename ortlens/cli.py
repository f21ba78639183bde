"""The command line: parse, call, print. Only `main` turns errors into exit codes."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import sys
import traceback
from dataclasses import asdict
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ortlens.errors import OrtLensError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.doctor import Check
    from ortlens.trace.codec import Json
    from ortlens.trace.records import Capture

_DEFAULT_WIDTH = 100
_WIDTHS = (60, 120)
_DEFAULT_ROWS = 30
_MARKS = {"ok": "ok", "info": "--", "warning": "!", "error": "X"}

EXIT_OK = 0
EXIT_NO = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line.

    Returns:
        The parser; each command has its help and its function.
    """
    from ortlens import __version__

    top = argparse.ArgumentParser(
        prog="ortlens",
        description="Run PyTorch models through ONNX Runtime with torch.compile, and see what happened.",
        epilog="In Python: lens = ortlens.explain(model)(*args); print(lens.summary())",
    )
    top.add_argument("--version", action="version", version=f"ortlens {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_show(commands)
    _add_doctor(commands)
    return top


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, run: Callable[..., int]
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "demo", "Run a small bundled model through ONNX Runtime and explain what happened.", _demo)
    command.add_argument("--save", metavar="FILE", help="also save the capture, as demo.ortlens")


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ortlens.trace.schema import TABLES

    command = _command(commands, "show", "Show a saved capture: a summary, or one of its tables.", _show)
    command.add_argument("capture", metavar="CAPTURE", help="a file or folder that lens.save() or `ortlens demo --save` wrote")
    command.add_argument("--table", metavar="NAME", choices=tuple(TABLES), help=f"one table instead: {', '.join(TABLES)}")
    command.add_argument(
        "--rows", metavar="N", type=_row_count, default=_DEFAULT_ROWS, help="rows of a text table, 0 for all (default: %(default)s)"
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON: the overview, or every row of the table")
    form.add_argument("--csv", action="store_true", help="print every row of the table as CSV")


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "List versions and providers, say what is missing and how to get it. Exits 1 when the main job cannot run."
    command = _command(commands, "doctor", text, _doctor)
    command.add_argument("--json", action="store_true", help="print JSON")


def _row_count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative; 0 shows every row")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments after the program's name; by default those of the process.

    Returns:
        The exit code: 0 done, 1 a negative answer, 2 a wrong command or an error. Errors are one message on stderr;
        with ORTLENS_DEBUG=1 the traceback too.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except SystemExit as leaving:  # argparse: --help, --version, a wrong option
        return leaving.code if isinstance(leaving.code, int) else EXIT_OK
    except BrokenPipeError:  # the reader, `head` say, has enough; the interpreter must not flush into the pipe again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OrtLensError as err:
        return _fail(str(err))
    except Exception as err:  # noqa: BLE001 - the last line of the front end: a user gets a sentence, not a stack
        return _fail(f"unexpected {type(err).__name__}: {err}. Set ORTLENS_DEBUG=1 to see where, and please report it.")
    return code


def _run(arguments: list[str]) -> int:
    top = parser()
    commands = _commands(top)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    if asked is not None and asked not in commands:
        near = get_close_matches(asked, commands, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"there is no command {asked!r}.{hint} The commands are: {', '.join(commands)}.")
    options = top.parse_args(arguments)
    code: int = options.run(options)
    return code


def _commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001 - argparse offers no other way
    return dict(next(actions).choices)


def _fail(message: str) -> int:
    if os.environ.get("ORTLENS_DEBUG") == "1":
        traceback.print_exc()
    print(f"ortlens: {message}", file=sys.stderr)
    return EXIT_USAGE


def _demo(options: argparse.Namespace) -> int:
    from ortlens._versions import check_supported

    check_supported()
    _print(_DEMO_BEFORE)
    sys.stdout.flush()
    from ortlens.demo import run_demo

    result = run_demo()
    verdict = "Same answers" if result.is_match else "THE ANSWERS DIFFER"
    _print(f"{verdict}: over {result.calls} calls the largest difference from plain PyTorch is {result.max_abs_difference:.1e}.\n")
    capture = result.lens.captured()
    _print_summary(capture)
    saved = "demo.ortlens"
    if options.save:
        saved = str(result.lens.save(options.save))
        _print(f"\nSaved to {saved}")
    _print(_DEMO_AFTER.format(saved=saved, first="" if options.save else f"ortlens demo --save {saved} && "))
    return EXIT_OK if result.is_match else EXIT_NO


_DEMO_BEFORE = """\
Running a small attention model twice: in plain PyTorch, and through ONNX Runtime with torch.compile
while ortlens watches. On purpose, the model holds one graph break, one operator that ONNX lacks and
one recompile. This takes some seconds.
"""

_DEMO_AFTER = """
What to do next
  your own model    lens = ortlens.explain(model)(*args); print(lens.summary())
  look closer       {first}ortlens show {saved} --table fallbacks
  check this setup  ortlens doctor"""


def _show(options: argparse.Namespace) -> int:
    from ortlens.trace.store import load

    if options.csv and not options.table:
        raise UsageError("--csv needs --table NAME: the overview is no table. --json prints it.")
    capture = load(options.capture)
    if options.table:
        _print(_table(capture, options))
    elif options.json:
        from ortlens.analysis.overview import overview_of

        _print(json.dumps(asdict(overview_of(capture)), indent=2))
    else:
        _print_summary(capture)
    return EXIT_OK


def _table(capture: Capture, options: argparse.Namespace) -> str:
    from ortlens.analysis.findings.registry import findings_of
    from ortlens.trace.codec import row_from_record
    from ortlens.trace.schema import TABLES
    from ortlens.views.table import table

    records = findings_of(capture) if options.table == "findings" else getattr(capture, options.table)
    if not options.json and not options.csv:
        return table(records, width=_width(), limit=options.rows or None)
    rows = [row_from_record(TABLES[options.table], record) for record in records]
    if options.json:
        return json.dumps(rows, indent=2)
    return _csv([column.name for column in TABLES[options.table].columns], rows)


def _csv(names: list[str], rows: Sequence[Mapping[str, Json]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()})
    return text.getvalue().rstrip("\n")


def _doctor(options: argparse.Namespace) -> int:
    from ortlens.doctor import examine, is_ready

    checks = examine()
    ready = is_ready(checks)
    if options.json:
        _print(json.dumps({"ready": ready, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print("\n".join(_check_lines(checks)))
        _print("\nReady: `ortlens demo` shows it at work." if ready else "\nNot ready: mend the lines marked X.")
    return EXIT_OK if ready else EXIT_NO


def _check_lines(checks: Sequence[Check]) -> list[str]:
    size = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.status]:>2}  {check.name:<{size}}  {check.found}")
        if check.advice:
            lines.append(f"{'':>2}  {'':<{size}}  -> {check.advice}")
    return lines


def _print_summary(capture: Capture) -> None:
    from ortlens.views.text import summary

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    _print(summary(capture, width=_width(), colour=colour))


def _width() -> int:
    if not sys.stdout.isatty():
        return _DEFAULT_WIDTH
    low, high = _WIDTHS
    return min(max(shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns, low), high)


def _print(text: str) -> None:
    """Print to stdout whatever its encoding is; what it cannot hold is written out."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        from ortlens.views.wording import ascii_from_text

        text = ascii_from_text(text)
    print(text)
