"""Named byte strings in a zip file or a folder: bounded reading, all-or-nothing writing.

Whatever is read may come from anybody. Nothing is extracted to disk, no link is followed, every name is checked against
one strict pattern and every size against a limit before a byte is unpacked.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ortlens._files import whole_file, whole_folder
from ortlens.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

MAX_MEMBERS = 10_000
"""Members of a capture: thirteen tables, and the models of more partitions than anybody could look at."""

MAX_DIRECTORY_BYTES = 8 * 2**20
"""Bytes of a zip's directory, which Python reads whole: `MAX_MEMBERS` names of several hundred bytes."""

MAX_TOTAL_BYTES = 2**30
"""Bytes of all members unpacked, since a loaded capture is held in memory; models are kept without their weights."""

MAX_RATIO = 200
"""How many times smaller a member may be packed. Text packs 5 to 50 times; deflate's own end, reached by bombs, is 1032."""

RATIO_FREE_BYTES = 2**20
"""Members below this are exempt from `MAX_RATIO`: short tables of equal values pack extremely well and do no harm."""

DAMAGE = (OSError, ValueError, RuntimeError, EOFError, LookupError, ArithmeticError, struct.error, zlib.error, zipfile.BadZipFile)
"""What Python's zip, JSON and file functions raise on damaged input; not a bug of ours, so it becomes a `CaptureError`."""

_MAX_NAME = 240  # characters; leaves room for the folder's own path within the 260 of Windows
_COMPONENT = re.compile(r"[A-Za-z0-9_+=@-](?:[A-Za-z0-9._+=@-]{0,118}[A-Za-z0-9_+=@-])?")
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})
_END = struct.Struct("<4s4H2LH")  # a zip's end-of-directory record
_ZIP64_LOCATOR_BYTES = 20


class Members(Protocol):
    """What a capture is read from."""

    def read(self, name: str, limit: int) -> bytes:
        """Read one member; raise `CaptureError` where it is missing, damaged, no plain file, or larger than `limit` bytes."""


def check_names(names: Iterable[str]) -> None:
    """Refuse names that are not safe and unambiguous on every file system.

    Names are relative, as `models/m0.onnx`, of letters, digits and `._+=@-`; none may occur twice (letter case aside), or as both file and
    folder.
    """
    seen: set[str] = set()
    for name in names:
        if not _is_safe(name):
            raise CaptureError(f"member {name[:80]!r}: the name is not allowed in a capture")
        if name.lower() in seen:
            raise CaptureError(f"member {name!r}: the name occurs twice")
        seen.add(name.lower())
    for name in seen:
        parts = name.split("/")
        if any("/".join(parts[:depth]) in seen for depth in range(1, len(parts))):
            raise CaptureError(f"member {name!r}: one of its folders is also a file")


def _is_safe(name: str) -> bool:
    parts = name.split("/")
    return len(name) <= _MAX_NAME and all(_COMPONENT.fullmatch(part) and part.split(".")[0].lower() not in _DEVICES for part in parts)


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Refuse more members or unpacked bytes than a capture may hold."""
    if len(sizes) > MAX_MEMBERS:
        raise CaptureError(f"{len(sizes)} members are more than the {MAX_MEMBERS} that a capture may hold")
    total = sum(sizes.values())
    if total > MAX_TOTAL_BYTES:
        raise CaptureError(f"{total} bytes unpacked are more than the {MAX_TOTAL_BYTES} that a capture may hold")


@contextmanager
def open_members(path: Path) -> Iterator[Members]:
    """Open a capture, a zip file or a folder, for reading; raise `CaptureError` for anything else, and for a hostile one."""
    if not path.exists():
        raise CaptureError("there is no such file or folder")
    if path.is_dir():
        yield _Folder(path)
        return
    if not path.is_file():
        raise CaptureError("not a file or folder")
    with path.open("rb") as stream:
        _check_directory(stream)
        with zipfile.ZipFile(stream) as archive:
            yield _Zip(archive)


def _check_directory(stream: BinaryIO) -> None:
    """Bound the zip's directory before `zipfile` reads it whole.

    The writer leaves no comment and never needs zip64, so the record must be the very last thing in the file; what
    comes after it, or a zip64 locator before it, is damage or an attempt to show two readers two directories.
    """
    size = stream.seek(0, os.SEEK_END)
    tail_bytes = min(size, _END.size + _ZIP64_LOCATOR_BYTES)
    stream.seek(size - tail_bytes)
    tail = stream.read(tail_bytes)
    if tail_bytes < _END.size or not tail[-_END.size :].startswith(b"PK\5\6"):
        raise CaptureError("not a capture file, or truncated (no zip directory at its end)")
    _, _, _, _, entries, directory_bytes, _, comment_bytes = _END.unpack(tail[-_END.size :])
    if comment_bytes or tail.startswith(b"PK\6\7"):
        raise CaptureError("the zip directory has parts that capture files do not have")
    if entries > MAX_MEMBERS or directory_bytes > MAX_DIRECTORY_BYTES:
        raise CaptureError(f"the zip directory has {entries} entries in {directory_bytes} bytes; {MAX_MEMBERS} entries are allowed")


class _Zip:
    """Members of a zip file."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        infos = [info for info in archive.infolist() if not info.filename.endswith("/")]  # not is_dir(): an empty name raises there
        # Of a name with a NUL byte, zipfile keeps the part before it; the check is for what is really there.
        check_names(info.orig_filename for info in infos)
        for info in infos:
            _check_entry(info)
        self._infos = {info.filename: info for info in infos}
        check_sizes({name: info.file_size for name, info in self._infos.items()})

    def read(self, name: str, limit: int) -> bytes:
        info = self._infos.get(name)
        if info is None:
            raise CaptureError(f"member {name!r} is missing")
        if info.file_size > limit:
            raise CaptureError(f"member {name!r} has {info.file_size} bytes; {limit} are allowed")
        try:
            with self._archive.open(info) as stream:
                return stream.read(info.file_size + 1)  # one more, so that the end is reached and the checksum compared
        except DAMAGE as err:
            raise CaptureError(f"member {name!r} is damaged: {err}") from err


def _check_entry(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    if stat.S_ISLNK(info.external_attr >> 16):
        raise CaptureError(f"member {name!r} is a symbolic link")
    if info.flag_bits & 0x1:
        raise CaptureError(f"member {name!r} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise CaptureError(f"member {name!r} is packed by method {info.compress_type}; captures use store and deflate")
    if info.file_size > max(RATIO_FREE_BYTES, info.compress_size * MAX_RATIO):
        raise CaptureError(f"member {name!r} unpacks from {info.compress_size} to {info.file_size} bytes, more than {MAX_RATIO} times")


class _Folder:
    """Members of a folder; only those asked for are looked at."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str, limit: int) -> bytes:
        check_names((name,))
        try:
            self._check_plain(name)
            descriptor = os.open(self._folder / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
            with os.fdopen(descriptor, "rb") as stream:
                data = stream.read(limit + 1)
        except FileNotFoundError as err:
            raise CaptureError(f"member {name!r} is missing") from err
        except OSError as err:
            raise CaptureError(f"member {name!r} cannot be read: {err}") from err
        if len(data) > limit:
            raise CaptureError(f"member {name!r} has more than the {limit} bytes allowed")
        return data

    def _check_plain(self, name: str) -> None:
        # A link may point anywhere, and opening a pipe or a device may block or never end.
        at = self._folder
        for part in name.split("/"):
            at = at / part
            mode = at.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise CaptureError(f"member {name!r} is, or lies behind, a symbolic link")
        if not stat.S_ISREG(mode):
            raise CaptureError(f"member {name!r} is not a plain file")


def write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    """Write members, in the order given, as a zip file, whole or not at all; equal members give equal bytes."""
    with whole_file(path) as stream:
        _write_archive(stream, members)


def _write_archive(stream: BinaryIO, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(stream, "w", allowZip64=False) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.create_system = 3  # Unix, whatever wrote it, so that the bytes do not depend on the machine
            archive.writestr(info, data, compress_type=_compression(data), compresslevel=6)


def _compression(data: bytes) -> int:
    """Choose deflate, except for what would pack so well that the reader took it for a bomb."""
    bomb_like = len(data) > RATIO_FREE_BYTES and len(zlib.compress(data, 6)) * MAX_RATIO <= len(data)
    return zipfile.ZIP_STORED if bomb_like else zipfile.ZIP_DEFLATED


def write_folder(path: Path, members: Mapping[str, bytes]) -> None:
    """Write members as a folder, whole or not at all; the caller has made sure that one to be replaced holds nothing else.

    The first is written last, and of an old folder removed first: a folder that has it, as a kill leaves one beside, has all.
    """
    with whole_folder(path, mark=next(iter(members)), replace=True) as made:
        for name, data in reversed(list(members.items())):
            target = made / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
