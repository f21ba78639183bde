"""What commands share: exit codes, adding one to the parser, and printing: width, colours and encoding of terminals; JSON, remarks."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import sys
import textwrap
from contextvars import ContextVar
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens._files import write_asked
from ortlens._process import with_value
from ortlens.job.options import Parser, add_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - what add_subparsers returns, by no public name
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from ortlens.analysis.answers.check import VerdictRow
    from ortlens.trace.records import Capture


EXIT_OK = 0
EXIT_NO = 1  # a negative answer: results differ, a limit does not hold, the main job cannot run here
EXIT_USAGE = 2  # the command is wrong, or an error stopped it
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

_MOST_COLUMNS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: its name, what it does, the questions that it answers, a line each, and examples, as typed, comments behind two blanks."""

    name: str
    text: str
    run: Callable[[argparse.Namespace], int | None]  # returns the exit code; None for `EXIT_OK`
    asks: str
    examples: str
    usage: str | None = None

    def add(self, commands: Commands) -> None:
        """Add it to the parser, with its options."""
        questions, lines = (textwrap.dedent(block).strip() for block in (self.asks, self.examples))
        parser: argparse.ArgumentParser = commands.add_parser(
            self.name,
            usage=self.usage,
            help=self.text,
            description=textwrap.fill(self.text, min(shutil.get_terminal_size().columns, _MOST_COLUMNS) - 2, break_on_hyphens=False),
            epilog=f"answers:\n{textwrap.indent(questions, '  ')}\n\nexamples:\n{textwrap.indent(lines, '  ')}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if isinstance(parser, Parser):
            parser.asks = tuple(questions.splitlines())
        parser.set_defaults(run=self.run)
        add_options(parser, self.name)


_DEFAULT_WIDTH = 100
_WIDTHS = (60, 120)
_VERSION = 1  # of what `--json` prints
_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


def quietly(*, is_quiet: bool) -> contextlib.AbstractContextManager[None]:
    """Print nothing but errors and JSON meanwhile, if that was asked for."""
    return with_value(_QUIET, is_quiet)


def print_summary(capture: Capture, *, on_stderr: bool = False) -> None:
    """Print the summary of a capture, with bold labels in a terminal that wants them; on stderr where stdout is another program's."""
    from ortlens.views.rendering import summary
    from ortlens.views.wording import COMMAND

    if _QUIET.get():
        return
    if not on_stderr:
        _print(summary(capture, width=width(), colour=_wants_colour(sys.stdout), hints=COMMAND), sys.stdout)
    elif sys.stderr is not None and not sys.stderr.closed:
        print_error(summary(capture, width=width(sys.stderr), colour=_wants_colour(sys.stderr), hints=COMMAND))


def _wants_colour(stream: TextIO) -> bool:
    """Tell whether a stream gets colour: only a terminal, unless the environment says otherwise (no-color.org, force-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def print_written(lines: Sequence[str], *, beside_json: bool = False) -> None:
    """Print which files `write_outputs` wrote, below a blank line; beside an answer in JSON as a note. Nothing when there are none."""
    if lines and beside_json:
        print_note("\n".join(lines))
    elif lines:
        print_text("\n".join(["", *lines]))


def print_note(text: str) -> None:
    """Print to stderr what is no error, such as which file was written."""
    if not _QUIET.get():
        print_error(text)


def print_error(text: str) -> None:
    """Print to stderr where there is one: a program under `ortlens run` may have closed it."""
    if sys.stderr is not None:
        with contextlib.suppress(ValueError, OSError):
            _print(text, sys.stderr)


def width(stream: TextIO | None = None) -> int:
    """Return the columns to fill on a stream, stdout if None: those of the terminal, within bounds; 100 in a pipe."""
    if not (stream or sys.stdout).isatty():
        return _DEFAULT_WIDTH
    low, high = _WIDTHS
    return min(max(shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns, low), high)


def print_text(text: str) -> None:
    """Print to stdout whatever its encoding is; what it cannot hold is written out."""
    if not _QUIET.get():
        _print(text, sys.stdout)


def print_json(name: str, value: Mapping[str, object]) -> None:
    """Print the answer of a command as JSON to stdout, also with `--quiet`."""
    _print(json_text(answer(name, value)), sys.stdout)


def print_answer(options: argparse.Namespace, name: str, value: Mapping[str, object], text: str) -> None:
    """Print an answer as JSON, where `--json` asks for that, else as text."""
    if options.json:
        print_json(name, value)
    else:
        print_text(text)


def answer(name: str, value: Mapping[str, object]) -> dict[str, object]:
    """Put the name and version of its schema before an answer; docs/json_schema.py describes each by its name."""
    return {"schema": f"ortlens/{name}/{_VERSION}", **value}


def facts_of(capture: Capture) -> dict[str, object]:
    """Return what is known of a capture: the overview, and what to do as in `lens.actions`."""
    from ortlens.analysis.answers.overview import overview_of

    return overview_of(capture) | recommended(capture)


def recommended(capture: Capture) -> dict[str, object]:
    """Return what to do as in `lens.actions`, as a part of an answer."""
    from ortlens.views.actions import action_rows

    return {"recommendations": action_rows(capture)}


def write_text(path: Path, text: str) -> None:
    """Write a file that was asked for, and say on stderr where it is."""
    path = path.expanduser()
    with contextlib.suppress(OSError):  # of which writing says more
        path.parent.mkdir(parents=True, exist_ok=True)
    write_asked(path, text.encode("utf-8", "backslashreplace"), "the answer")
    print_note(f"Written to {path}")


def tell_reviewers(capture: Capture, sarif: Path | None, rows: Sequence[VerdictRow] = ()) -> None:
    """Print annotations where GitHub Actions runs the command, to stderr, which it reads as well as stdout; write SARIF if asked for."""
    is_on_github = os.environ.get("GITHUB_ACTIONS") == "true"
    if not is_on_github and sarif is None:
        return
    from ortlens import __version__
    from ortlens.views.remarks import Checkout, github_lines, remarks_of, sarif_log

    checkout = Checkout(_root())
    remarks = remarks_of(capture, rows, checkout)
    for line in github_lines(remarks) if is_on_github else ():
        print_note(line)
    if sarif is not None:
        write_text(sarif, json_text(sarif_log(remarks, capture, checkout, __version__)) + "\n")


def _root() -> Path:
    """Find the checkout: GitHub's workspace, else the repository around the current folder, else that folder."""
    here = Path.cwd()
    if given := os.environ.get("GITHUB_WORKSPACE"):
        return Path(given)
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def json_text(value: object, *, indent: int | None = 2) -> str:
    """Write data and records as JSON that every parser reads: null replaces infinity and NaN, which JSON does not have."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _print(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        from ortlens.views.wording import ascii_from_text

        text = ascii_from_text(text)
    print(text, file=stream)
