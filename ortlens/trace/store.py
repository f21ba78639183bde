"""Save a capture and load it again, on any machine, with neither torch nor onnxruntime.

A `.ortlens` file is a zip of `manifest.json`, one `tables/<name>.json` per table (a JSON list per column) and the
attachments (`models/m0.onnx`). A folder holds the same files. The manifest lists every other member with its size and
digest, so damage is noticed in folders too. Equal captures give equal bytes.

Whatever is read may come from anybody. Nothing is extracted to disk, no link is followed, every name is checked against one strict pattern
and every size against a limit before a byte is unpacked. Files are written all or nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from ortlens._files import whole_file, whole_folder
from ortlens._versions import version_of
from ortlens.errors import CaptureError
from ortlens.trace import journal
from ortlens.trace.codec import columns_from_records, record_from_row, records_from_columns, row_from_record
from ortlens.trace.facts import figures_from_facts
from ortlens.trace.records import SCHEMA_VERSION, Capture
from ortlens.trace.schema import FIGURES, TABLES, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO


MAX_MEMBERS = 10_000  # members of a capture: thirteen tables, and the models of more partitions than anybody could look at
MAX_DIRECTORY_BYTES = 8 * 2**20  # bytes of a zip's directory, which Python reads whole: `MAX_MEMBERS` names of several hundred bytes
MAX_TOTAL_BYTES = 2**30  # bytes of all members unpacked, since a loaded capture is held in memory; models are kept without their weights
MAX_RATIO = 200  # how many times smaller a member may be packed. Text packs 5 to 50 times; deflate's own end, reached by bombs, is 1032
RATIO_FREE_BYTES = 2**20  # members below this are exempt from `MAX_RATIO`: short tables of equal values pack extremely well and do no harm
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


FORMAT = "ortlens-capture"
SUFFIX = ".ortlens"

MAX_MANIFEST_BYTES = 8 * 2**20  # bytes of the manifest: the most members that a capture may have, a few hundred bytes each
MAX_TABLE_BYTES = 64 * 2**20
"""Bytes of one table's JSON, some 150,000 nodes. Parsed JSON takes up to twenty times its text, so this bounds memory."""

_MAX_DIGITS = 20  # a 64-bit integer and its sign
_MANIFEST = "manifest.json"
_TABLE_FOLDER = "tables"


class _Listed(NamedTuple):
    """What the manifest says about another member."""

    size: int
    sha256: str


def save(capture: Capture, path: str | os.PathLike[str]) -> Path:
    """Write a capture, whole or not at all, and return the absolute path.

    A path that ends in `.ortlens` becomes a zip file; any other, an existing folder, or one that ends in a separator becomes a folder,
    which must not hold other files.
    """
    try:
        target = Path(path).expanduser().resolve()
        members = _members_from_capture(capture)
        if _names_folder(os.fspath(path), target):
            _check_replaceable(target)
            write_folder(target, members)
        else:
            write_zip(target, members)
    except (CaptureError, OSError, ValueError, RuntimeError) as err:
        raise CaptureError(f"cannot save the capture to {path}: {err}") from err
    return target


def load(path: str | os.PathLike[str]) -> Capture:
    """Read a capture from a `.ortlens` file, a saved folder, or a journal, which may still grow.

    Nothing in it is executed, unpickled or written to disk.
    """
    if not os.fspath(path):
        raise CaptureError("cannot load a capture: its name is empty")
    try:
        if journal.is_journal(Path(path).expanduser()):
            return journal.read(Path(path).expanduser()).capture()
        with open_members(Path(path).expanduser()) as members:
            return _capture_from_members(members)
    except (CaptureError, *DAMAGE) as err:
        raise CaptureError(f"cannot load the capture {path}: {err}") from err


def _names_folder(text: str, target: Path) -> bool:
    separators = tuple(separator for separator in (os.sep, os.altsep) if separator)
    return text.endswith(separators) or target.is_dir() or target.suffix.lower() != SUFFIX


def _check_replaceable(folder: Path) -> None:
    """Refuse to put a capture in the place of anything but an earlier capture or an empty folder."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CaptureError(f"this is a file; a name ending in {SUFFIX} saves a file, any other name a folder")
    own = {_MANIFEST, *_listed_in(folder)}
    own |= {parent.as_posix() for name in own for parent in PurePosixPath(name).parents}
    for entry in folder.rglob("*"):  # up to the first that is foreign: the folder may be somebody's home
        name = entry.relative_to(folder).as_posix()
        if name not in own or entry.is_symlink():
            raise CaptureError(f"the folder contains other files, such as {name!r}; choose a new or empty folder")


def _listed_in(folder: Path) -> Mapping[str, _Listed]:
    try:
        with open_members(folder) as members:
            return _listed(_manifest(members))
    except CaptureError:
        return {}


def _members_from_capture(capture: Capture) -> dict[str, bytes]:
    """Collect everything that goes into the file, the manifest first and the rest sorted by name."""
    for name, data in capture.attachments.items():
        if not isinstance(name, str) or not _is_attachment(name):
            raise CaptureError(f"attachment {name!r}: the name is not text, or is taken by the capture itself")
        if not isinstance(data, bytes):
            raise CaptureError(f"attachment {name!r}: {type(data).__name__} is not bytes")
    tables = {_member_of(table): _bytes_from_table(table, capture) for table in TABLES.values()}
    members = dict(sorted({**tables, **capture.attachments}.items()))
    members = {_MANIFEST: _bytes_from_manifest(_manifest_from_capture(capture, members)), **members}
    check_names(members)
    check_sizes({name: len(data) for name, data in members.items()})
    return members


def _is_attachment(name: str) -> bool:
    return name.lower() != _MANIFEST and name.lower().split("/")[0] != _TABLE_FOLDER


def _member_of(table: Table) -> str:
    return f"{_TABLE_FOLDER}/{table.name}.json"


def _bytes_from_table(table: Table, capture: Capture) -> bytes:
    records = getattr(capture, table.name)
    columns = columns_from_records(table, records)
    # A column per line: the files of a folder can be read and compared by eye.
    lines = ",\n".join(
        f"{json.dumps(name)}:{json.dumps(values, allow_nan=False, separators=(',', ':'))}" for name, values in columns.items()
    )
    data = f'{{"rows":{len(records)},"columns":{{\n{lines}\n}}}}\n'.encode("ascii")
    if len(data) > MAX_TABLE_BYTES:
        raise CaptureError(f"table {table.name}: {len(data)} bytes are more than the {MAX_TABLE_BYTES} that a table may have")
    return data


def _manifest_from_capture(capture: Capture, members: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "ortlens": version_of("ortlens") or "unknown",
        "name": str(capture.name),
        "backend": str(capture.backend),
        "created": str(capture.created),
        "environment": {str(key): str(value) for key, value in capture.environment.items()},
        "figures": row_from_record(FIGURES, capture.figures),
        "tables": {name: len(getattr(capture, name)) for name in TABLES},
        "members": {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()},
    }


def _bytes_from_manifest(manifest: Mapping[str, Any]) -> bytes:
    data = (json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False) + "\n").encode("ascii")
    if len(data) > MAX_MANIFEST_BYTES:
        raise CaptureError(f"the manifest has {len(data)} bytes; {MAX_MANIFEST_BYTES} are allowed")
    return data


def _capture_from_members(members: Members) -> Capture:
    manifest = _manifest(members)
    _check_version(manifest)
    listed = _listed(manifest)
    counts = _mapping(manifest, "tables", int)
    tables: dict[str, Any] = {table.name: _records(members, table, listed, counts) for table in TABLES.values()}
    attachments = {name: _member(members, name, listed, MAX_TOTAL_BYTES) for name in listed if _is_attachment(name)}
    environment = _mapping(manifest, "environment", str)
    figures = record_from_row(FIGURES, _mapping(manifest, "figures", object))
    if manifest["schema_version"] == 1:
        figures, environment = figures_from_facts(environment)
    return Capture(
        name=_text(manifest, "name"),
        backend=_text(manifest, "backend"),
        created=_text(manifest, "created"),
        environment=environment,
        figures=figures,
        attachments=attachments,
        **tables,
    )


def _manifest(members: Members) -> dict[str, Any]:
    manifest = _parsed(_MANIFEST, members.read(_MANIFEST, MAX_MANIFEST_BYTES))
    if manifest.get("format") != FORMAT:
        raise CaptureError(f"member {_MANIFEST!r}: this is not an ortlens capture (its format is not {FORMAT!r})")
    return manifest


def _check_version(manifest: Mapping[str, Any]) -> None:
    version = manifest.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CaptureError(f"member {_MANIFEST!r}: the schema version is missing or not a positive number")
    if version > SCHEMA_VERSION:
        writer = _text(manifest, "ortlens")[:40]
        raise CaptureError(
            f"it was written by ortlens {writer} with schema {min(version, 10**9)}; "
            f"ortlens {version_of('ortlens') or 'unknown'} reads schemas up to {SCHEMA_VERSION}: upgrade ortlens to open it"
        )


def _listed(manifest: Mapping[str, Any]) -> dict[str, _Listed]:
    """Read which members the manifest lists, and check their names, count and sizes."""
    listed = {name: _listed_from_entry(name, entry) for name, entry in _mapping(manifest, "members", dict).items()}
    check_names(listed)
    check_sizes({name: entry.size for name, entry in listed.items()})
    return listed


def _listed_from_entry(name: str, entry: Mapping[str, Any]) -> _Listed:
    size, digest = entry.get("bytes"), entry.get("sha256")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(digest, str):
        raise CaptureError(f"member {_MANIFEST!r}: the entry of {name[:80]!r} has no size and digest")
    return _Listed(size, digest)


def _member(members: Members, name: str, listed: Mapping[str, _Listed], limit: int) -> bytes:
    entry = listed[name]
    if entry.size > limit:
        raise CaptureError(f"member {name!r} has {entry.size} bytes; {limit} are allowed")
    data = members.read(name, entry.size)
    if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CaptureError(f"member {name!r} was changed after the capture was saved: its size or digest differs")
    return data


def _records(members: Members, table: Table, listed: Mapping[str, _Listed], counts: Mapping[str, int]) -> tuple[Any, ...]:
    """Read the records of a table; none when an earlier writer did not know the table."""
    name = _member_of(table)
    if name not in listed:
        if table.name in counts:
            raise CaptureError(f"member {name!r} is missing")
        return ()
    content = _parsed(name, _member(members, name, listed, MAX_TABLE_BYTES))
    rows = content.get("rows")
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0 or rows != counts.get(table.name):
        raise CaptureError(f"member {name!r}: its number of rows differs from the manifest")
    try:
        return records_from_columns(table, rows, _mapping(content, "columns", list))
    except CaptureError as err:
        raise CaptureError(f"member {name!r}: {err}") from err


def _parsed(name: str, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, parse_int=_short_int)
    except RecursionError as err:
        raise CaptureError(f"member {name!r}: the JSON is nested too deeply") from err
    except ValueError as err:
        raise CaptureError(f"member {name!r} is not valid JSON: {str(err)[:200]}") from err
    if not isinstance(content, dict):
        raise CaptureError(f"member {name!r} is not a JSON object")
    return content


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _short_int(text: str) -> int:
    # Reading a number of a million digits takes minutes, and not every Python refuses to by itself.
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer has {len(text)} digits")
    return int(text)


def _text(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key, "")
    if not isinstance(value, str):
        raise CaptureError(f"member {_MANIFEST!r}: {key} is not text")
    return value


def _mapping(mapping: Mapping[str, Any], key: str, kind: type) -> dict[str, Any]:
    value = mapping.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(item, kind) for item in value.values()):
        raise CaptureError(f"{key} is not a JSON object of {kind.__name__} values")
    return value
