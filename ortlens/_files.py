"""The one way in which ortlens writes files: whole or not at all, whatever ends the process or fills the disk meanwhile.

A file is written beside its place under a short name of its own (a legal name may have 255 bytes, and none are left for an ending), put
on the disk, and moved. What was there before stays until then. A folder is made the same way.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO


_STANDARD_ERROR = 2


def temp_sibling(path: Path) -> Path:
    """Return an unused hidden name in the same folder, 25 characters long whatever the length of the other."""
    return path.with_name(f".ortlens-{secrets.token_hex(6)}.tmp")


def opened_above_streams(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file under a descriptor from 3 on, above those of the standard streams; no child process inherits it.

    A daemon has closed these, and the system gives their numbers to the next files: what any library then prints would go into our file.
    """
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)
    below: list[int] = []
    try:
        while descriptor <= _STANDARD_ERROR:
            below.append(descriptor)
            descriptor = os.dup(descriptor)
    finally:
        for number in below:
            os.close(number)
    return descriptor


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` whole or not at all. A link is followed; a pipe or a device is written to as it is."""
    target = path.resolve() if path.is_symlink() else path
    if target.exists() and not target.is_file() and not target.is_dir():
        with target.open("wb") as stream:
            yield stream
        return
    temporary = temp_sibling(target)
    try:
        with open(temporary, "xb", opener=opened_above_streams) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


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
def whole_folder(path: Path, *, mark: str, replace: bool = False) -> Iterator[Path]:
    """Yield a new folder beside `path` to put files in, and move it there whole or not at all.

    Without `replace`, `path` must not exist, or must be empty. Replacing is one step on Linux; elsewhere there is no folder for an instant.
    A kill may leave a hidden folder, the old one or the new one: one that has `mark`, written last and removed first, has everything.
    """
    made, old = temp_sibling(path), temp_sibling(path)
    try:
        made.mkdir()
        yield made
        if not path.exists():
            made.rename(path)
        elif replace:
            _swap(made, path, old)
        else:
            path.rmdir()
            made.rename(path)
    finally:
        _remove(made, mark)
        _remove(old, mark)


def _remove(folder: Path, mark: str) -> None:
    try:
        (folder / mark).unlink(missing_ok=True)
    except OSError:
        return  # with the mark in it, nothing else may go
    shutil.rmtree(folder, ignore_errors=True)


def _swap(new: Path, path: Path, old: Path) -> None:
    exchange = _exchange()
    if exchange is not None and exchange(_HERE, os.fsencode(new), _HERE, os.fsencode(path), _EXCHANGE) == 0:
        return
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise


_HERE = -100  # AT_FDCWD of fcntl.h: names are as for any other call
_EXCHANGE = 2  # RENAME_EXCHANGE of stdio.h


@functools.cache
def _exchange() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """Find Linux's `renameat2`, which exchanges two folders and which Python does not offer; None where there is no such call."""
    try:
        function = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):  # another C library, another system, Windows
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function
