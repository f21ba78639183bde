"""A capture as files that other tools read."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from typing import TYPE_CHECKING

from ortlens._files import temp_sibling, write_file
from ortlens.errors import UsageError
from ortlens.trace.parquet import parquet_from_records
from ortlens.trace.schema import TABLES, table_by_name
from ortlens.views.node_data import node_data_from_capture
from ortlens.views.plain_tables import csv_from_rows, records_of, rows_of
from ortlens.views.trace_events import trace_from_capture

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from ortlens.trace.records import Capture

FORMATS = ("csv", "json", "parquet", "trace", "model-explorer")
_OF_TABLES = FORMATS[:3]
_MODEL = re.compile(r"models/[\w.-]*\w\.onnx", re.ASCII)


def exported(capture: Capture, folder: Path, form: str, *, tables: Sequence[str] = (), replace: bool = False) -> list[Path]:
    """Write a capture as files; all of them, or none where one would replace another or cannot be written.

    Without `tables`, all of them and the ONNX models. Nothing to write is a `UsageError`.
    """
    if form not in FORMATS:
        raise UsageError(f"there is no format {form!r}; the formats are: {', '.join(FORMATS)}")
    if tables and form not in _OF_TABLES:
        raise UsageError(f"the format {form} contains no tables; leave out which, or choose one of {', '.join(_OF_TABLES)}")
    names = _names(capture, form, tables)
    _refuse_to_replace(folder, names, replace=replace)
    _write(folder, _files(capture, form, tables))
    return [folder / name for name in names]


def _names(capture: Capture, form: str, tables: Sequence[str]) -> list[str]:
    if form == "trace":
        return ["trace.json"]
    if form == "model-explorer":
        data = list(node_data_from_capture(capture))
        if not data:
            raise UsageError("nothing was profiled or verified: lens.profile(...) gives times to the nodes, lens.verify(...) differences")
        return [*data, *_models(capture)]
    return [*(f"{table_by_name(name).name}.{form}" for name in _chosen(tables)), *(() if tables else _models(capture))]


def _chosen(tables: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(tables or TABLES))


def _models(capture: Capture) -> list[str]:
    """List the models whose names stay inside a folder and say what they are; the store refuses worse ones too."""
    return [name for name in capture.attachments if _MODEL.fullmatch(name)]


def _files(capture: Capture, form: str, tables: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    if form == "trace":
        yield "trace.json", json.dumps(trace_from_capture(capture), allow_nan=False).encode()
        return
    if form == "model-explorer":
        for name, data in node_data_from_capture(capture).items():
            yield name, json.dumps(data, indent=1, allow_nan=False).encode()
    else:
        yield from ((f"{name}.{form}", _table(capture, name, form)) for name in _chosen(tables))
    if not tables:
        yield from ((name, capture.attachments[name]) for name in _models(capture))


def _table(capture: Capture, name: str, form: str) -> bytes:
    if form == "parquet":
        return parquet_from_records(TABLES[name], records_of(capture, name))
    rows = rows_of(capture, name)
    text = csv_from_rows(name, rows) if form == "csv" else json.dumps(rows, indent=1)
    return text.encode("utf-8", "backslashreplace")


def _refuse_to_replace(folder: Path, names: Sequence[str], *, replace: bool) -> None:
    """Refuse to replace files unless told to: half an export beside old files would mix two captures."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder")
    if of_folders := [name for name in names if (folder / name).is_dir()]:
        raise UsageError(f"{folder / of_folders[0]} is a folder; choose another folder to export to")
    there = [name for name in names if (folder / name).exists() or (folder / name).is_symlink()]
    if there and not replace:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise UsageError(f"{folder / there[0]}{more} would be replaced; use --force (in Python replace=True), or choose another folder")


def _write(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write all files, first to a folder of their own in there, so that a full disk leaves what was there before."""
    is_new = not folder.exists()
    made = temp_sibling(folder / "_")
    try:
        for name, data in files:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(made / name, data)
        ready = {path: folder / path.relative_to(made) for path in made.rglob("*") if path.is_file()}
        for target in ready.values():
            target.parent.mkdir(exist_ok=True)
        for path, target in ready.items():
            path.replace(target)
    except OSError as err:
        raise UsageError(f"cannot write to {folder}: {err.strerror or err}; choose another folder") from err
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()  # nothing came of it
