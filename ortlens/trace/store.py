"""Save a capture and load it again, on any machine, with neither torch nor onnxruntime.

A `.ortlens` file is a zip of `manifest.json`, one `tables/<name>.json` per table (a JSON list per column) and the
attachments (`models/m0.onnx`). A folder holds the same files. The manifest lists every other member with its size and
digest, so damage is noticed in folders too. Equal captures give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ortlens._versions import version_of
from ortlens.errors import CaptureError
from ortlens.trace import archive, journal
from ortlens.trace.codec import columns_from_records, record_from_row, records_from_columns, row_from_record
from ortlens.trace.facts import figures_from_facts
from ortlens.trace.records import SCHEMA_VERSION, Capture
from ortlens.trace.schema import FIGURES, TABLES, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = "ortlens-capture"
SUFFIX = ".ortlens"

MAX_MANIFEST_BYTES = 8 * 2**20
"""Bytes of the manifest: the most members that a capture may have, a few hundred bytes each."""

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
            archive.write_folder(target, members)
        else:
            archive.write_zip(target, members)
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
        with archive.open_members(Path(path).expanduser()) as members:
            return _capture_from_members(members)
    except (CaptureError, *archive.DAMAGE) as err:
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
        with archive.open_members(folder) as members:
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
    archive.check_names(members)
    archive.check_sizes({name: len(data) for name, data in members.items()})
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


def _capture_from_members(members: archive.Members) -> Capture:
    manifest = _manifest(members)
    _check_version(manifest)
    listed = _listed(manifest)
    counts = _mapping(manifest, "tables", int)
    tables: dict[str, Any] = {table.name: _records(members, table, listed, counts) for table in TABLES.values()}
    attachments = {name: _member(members, name, listed, archive.MAX_TOTAL_BYTES) for name in listed if _is_attachment(name)}
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


def _manifest(members: archive.Members) -> dict[str, Any]:
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
    archive.check_names(listed)
    archive.check_sizes({name: entry.size for name, entry in listed.items()})
    return listed


def _listed_from_entry(name: str, entry: Mapping[str, Any]) -> _Listed:
    size, digest = entry.get("bytes"), entry.get("sha256")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(digest, str):
        raise CaptureError(f"member {_MANIFEST!r}: the entry of {name[:80]!r} has no size and digest")
    return _Listed(size, digest)


def _member(members: archive.Members, name: str, listed: Mapping[str, _Listed], limit: int) -> bytes:
    entry = listed[name]
    if entry.size > limit:
        raise CaptureError(f"member {name!r} has {entry.size} bytes; {limit} are allowed")
    data = members.read(name, entry.size)
    if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CaptureError(f"member {name!r} was changed after the capture was saved: its size or digest differs")
    return data


def _records(members: archive.Members, table: Table, listed: Mapping[str, _Listed], counts: Mapping[str, int]) -> tuple[Any, ...]:
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
