"""The one way in which ortlens writes files: whole or not at all, whatever ends the process or fills the disk meanwhile.

A file is written beside its place under a short name of its own (a legal name may have 255 bytes, and none are left for an ending), put
on the disk, and moved. What was there before stays until then. A folder is made the same way.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


_STANDARD_ERROR = 2
_PAUSES_S = (0.01, 0.03, 0.1, 0.3)


def temp_sibling(path: Path) -> Path:
    """Return an unused hidden name in the same folder, 25 characters long whatever the length of the other."""
    return path.with_name(f".ortlens-{secrets.token_hex(6)}.tmp")


def opened_above_streams(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a file, of bytes on Windows too, under a descriptor from 3 on, above those of the standard streams; no child inherits it.

    A daemon has closed these, and the system gives their numbers to the next files: what any library then prints would go into our file.
    """
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), mode)
    below: list[int] = []
    try:
        while descriptor <= _STANDARD_ERROR:
            below.append(descriptor)
            descriptor = os.dup(descriptor)
    finally:
        for number in below:
            os.close(number)
    return descriptor


def whole_file(path: Path) -> contextlib.AbstractContextManager[BinaryIO]:
    """Open a file that replaces `path` whole or not at all. A link is followed; a pipe or a device is written to as it is."""
    target = path.resolve() if path.is_symlink() else path
    return target.open("wb") if target.exists() and not target.is_file() and not target.is_dir() else replaced_file(target)


@contextlib.contextmanager
def replaced_file(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` whole or not at all, a link included; `mode` is as for `os.open`."""
    temporary = temp_sibling(path)
    try:
        with open(temporary, "xb", opener=functools.partial(opened_above_streams, mode=mode)) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        _put(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _put(made: Path, place: Path) -> None:
    """Move a file to its place. Windows refuses that while somebody reads what is there, which takes moments."""
    for pause in _PAUSES_S if os.name == "nt" else ():
        with contextlib.suppress(PermissionError):
            made.replace(place)
            return
        time.sleep(pause)
    made.replace(place)


def write_asked(path: str | os.PathLike[str], data: bytes, what: str) -> Path:
    """Write a file where a user asked for it, whole or not at all, and return its absolute path; `what` names it in a `UsageError`."""
    target = Path(path).expanduser().resolve()
    try:
        write_file(target, data)
    except OSError as err:
        raise UsageError(f"{what} cannot be written to {target}: {err.strerror or err}") from err
    return target


def write_file(path: Path, data: bytes) -> None:
    """Write bytes to a file, whole or not at all; see `whole_file`."""
    with whole_file(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def whole_folder(path: Path, *, mark: str) -> Iterator[Path]:
    """Yield a new folder beside `path`, which must not exist, or must be empty, to put files in; move it there whole or not at all.

    A kill may leave a hidden folder: one that has `mark`, written last and removed first, has everything.
    """
    made = temp_sibling(path)
    try:
        made.mkdir()
        yield made
        if path.exists():
            path.rmdir()
        made.rename(path)
    finally:
        _remove(made, mark)


def _remove(folder: Path, mark: str) -> None:
    with contextlib.suppress(OSError):
        (folder / mark).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)  # with the mark in it, nothing else may go
