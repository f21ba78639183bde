"""Printing to stdout: width, colours and encoding of the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from ortlens.trace.records import Capture

_DEFAULT_WIDTH = 100
_WIDTHS = (60, 120)


def print_summary(capture: Capture, *, on_stderr: bool = False) -> None:
    """Print the summary of a capture, with bold labels in a terminal that wants them.

    Args:
        capture: The capture.
        on_stderr: Whether stdout belongs to another program.
    """
    from ortlens.views.text import summary

    stream = sys.stderr if on_stderr else sys.stdout
    colour = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    _print(summary(capture, width=_width(stream), colour=colour), stream)


def print_written(lines: Sequence[str]) -> None:
    """Print which files were written, below a free line; nothing when there are none.

    Args:
        lines: From `ortlens.job.work.write_outputs`.
    """
    if lines:
        print_text("\n".join(["", *lines]))


def print_error(text: str) -> None:
    """Print to stderr, which leaves stdout to what was asked for.

    Args:
        text: The text, without the last line's end.
    """
    print(text, file=sys.stderr)


def width() -> int:
    """The columns to fill.

    Returns:
        Those of the terminal, within bounds; 100 in a pipe.
    """
    return _width(sys.stdout)


def _width(stream: TextIO) -> int:
    if not stream.isatty():
        return _DEFAULT_WIDTH
    low, high = _WIDTHS
    return min(max(shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns, low), high)


def print_text(text: str) -> None:
    """Print to stdout whatever its encoding is; what it cannot hold is written out.

    Args:
        text: The text, without the last line's end.
    """
    _print(text, sys.stdout)


def _print(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        from ortlens.views.wording import ascii_from_text

        text = ascii_from_text(text)
    print(text, file=stream)
