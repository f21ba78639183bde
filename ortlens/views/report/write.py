"""A page written to disk: whole, or not at all, and over nothing but a page of the same kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortlens._files import write_file
from ortlens.errors import UsageError
from ortlens.views.markup import MARK

if TYPE_CHECKING:
    import os

_HEAD = 4096  # bytes in which the mark is looked for


def write_report(path: str | os.PathLike[str], page: str) -> Path:
    """Write a page with `MARK` at its top, and return the absolute path; a file that is no report raises `UsageError`."""
    target = checked_target(path)
    try:
        write_file(target, page.encode("utf-8"))
    except OSError as err:
        raise UsageError(f"the report cannot be written to {target}: {err.strerror or err}") from err
    return target


def checked_target(path: str | os.PathLike[str]) -> Path:
    """Check that a report may be written there, before the work of making it, and return the absolute path."""
    try:
        target = Path(path).expanduser().resolve()
        if target.is_dir():
            raise UsageError(f"{target} is a folder; name a file in it, such as {target / 'report.html'}")
        if not target.parent.is_dir():
            raise UsageError(f"there is no folder {target.parent}; create it first, or choose another file")
        if target.exists() and not _is_report(target):
            raise UsageError(f"{target} exists and is not an ortlens report, so it is not overwritten. Remove it, or choose another file")
    except (OSError, RuntimeError, TypeError, ValueError) as err:
        if isinstance(err, UsageError):
            raise
        raise UsageError(f"a report cannot be written to {path!r}: {err}") from err
    return target


def _is_report(target: Path) -> bool:
    if not target.is_file():  # a pipe or a device: reading it may never end
        return False
    with target.open("rb") as stream:
        head = stream.read(_HEAD)
    return not head or MARK.encode() in head
