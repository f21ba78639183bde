"""Save a capture and load it again, on any machine, with neither torch nor onnxruntime: a `.ortlens` file is a finished journal.

Files are written all or nothing, and equal captures give equal bytes. Nothing of what is read is executed, unpickled or written to disk.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens._files import whole_file
from ortlens._versions import version_of
from ortlens.errors import CaptureError
from ortlens.trace import journal
from ortlens.trace.codec import columns_from_records, row_from_record
from ortlens.trace.schema import FIGURES, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.trace.records import Capture


def save(capture: Capture, path: str | os.PathLike[str]) -> Path:
    """Write a capture, whole or not at all, and return the absolute path."""
    try:
        target = Path(path).expanduser().resolve()
        names_folder = os.fspath(path).endswith((os.sep, os.altsep or os.sep)) or target.is_dir()
        parts = list(_entries(capture, names_folder=names_folder))
        with whole_file(target) as stream:
            stream.writelines(parts)
    except (CaptureError, OSError, ValueError, RuntimeError) as err:
        raise CaptureError(f"cannot save the capture to {path}: {err}") from err
    return target


def load(path: str | os.PathLike[str]) -> Capture:
    """Read a capture from a `.ortlens` file, or from a journal, which may still grow."""
    if not os.fspath(path):
        raise CaptureError("cannot load a capture: its name is empty")
    try:
        return journal.read(Path(path).expanduser()).capture()
    except FileNotFoundError as err:
        raise CaptureError(f"cannot load the capture {path}: there is no such file") from err
    except (CaptureError, OSError, ValueError, RuntimeError, LookupError, ArithmeticError, TypeError) as err:
        raise CaptureError(f"cannot load the capture {path}: {err}") from err


def _entries(capture: Capture, *, names_folder: bool) -> Iterator[bytes]:
    """Write all that goes into the file: the head, tables and attachments in the order of their names, and the end."""
    if names_folder:
        raise CaptureError("this names a folder, and a capture is a file, such as run.ortlens")
    _check(capture)
    environment = {str(key): str(capture.environment[key]) for key in sorted(capture.environment, key=str)}
    head = {"name": str(capture.name), "backend": str(capture.backend), "environment": environment}
    yield journal.SAVED
    yield journal.framed_entry({"head": head, "created": str(capture.created), "ortlens": version_of("ortlens") or "unknown"})
    yield journal.framed_entry({"figures": row_from_record(FIGURES, capture.figures)})
    held = 0
    for name, table in sorted(TABLES.items()):
        records = getattr(capture, name)
        columns = columns_from_records(table, records)
        data = json.dumps(columns, allow_nan=False, separators=(",", ":")).encode("ascii")
        if len(data) > journal.MAX_TEXT_BYTES:
            raise CaptureError(f"table {name}: {len(data)} bytes are more than the {journal.MAX_TEXT_BYTES} that a table may have")
        held += len(data)
        yield journal.packed_entry({"table": name, "rows": len(records)}, data)
    for name, data in sorted(capture.attachments.items()):
        held += len(data)
        yield journal.packed_entry({"attach": name}, data)
    if held > journal.MAX_TOTAL_BYTES:
        raise CaptureError(f"{held} bytes are more than the {journal.MAX_TOTAL_BYTES} that a capture may hold")
    yield journal.framed_entry({"end": True, "entries": 3 + len(TABLES) + len(capture.attachments)})


def _check(capture: Capture) -> None:
    """Refuse attachments that could not be read back."""
    attachments: dict[Any, Any] = dict(capture.attachments)
    for name, data in attachments.items():
        if not isinstance(name, str):
            raise CaptureError(f"attachment {name!r}: the name is not text")
        if not isinstance(data, bytes):
            raise CaptureError(f"attachment {name!r}: {type(data).__name__} is not bytes")
    if len(attachments) > journal.MAX_ATTACHMENTS:
        raise CaptureError(f"{len(attachments)} attachments are more than {journal.MAX_ATTACHMENTS}")
    journal.check_names(attachments)
