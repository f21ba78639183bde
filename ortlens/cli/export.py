"""`ortlens export`: a saved capture as files that other tools read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.cli.commands import command_in
from ortlens.cli.exit_codes import EXIT_OK
from ortlens.cli.printing import print_text
from ortlens.cli.tables import csv_from_rows, rows_of
from ortlens.errors import UsageError
from ortlens.units import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from ortlens.cli.commands import Commands
    from ortlens.trace.records import Capture

_TEXT = "Write a saved capture as files: every table, the ONNX models, or the calls as a trace for ui.perfetto.dev."
_FORMATS = ("csv", "json", "trace")
_MODEL = re.compile(r"models/[\w.-]*\w\.onnx", re.ASCII)


def add(commands: Commands) -> None:
    """Add the command to the parser.

    Args:
        commands: Where commands are added.
    """
    from ortlens.trace.schema import TABLES

    command = command_in(commands, "export", _TEXT, _export)
    command.add_argument("capture", metavar="CAPTURE", help="a file or folder that lens.save() or another command wrote")
    command.add_argument("folder", metavar="FOLDER", type=Path, help="output folder; created if missing")
    text = "csv or json: a file per table, and the ONNX models; trace: trace.json for Perfetto (default: %(default)s)"
    command.add_argument("--format", choices=_FORMATS, default="csv", help=text)
    command.add_argument(
        "--table", metavar="NAME", nargs="+", action="extend", choices=tuple(TABLES), help=f"only these tables: {', '.join(TABLES)}"
    )
    command.add_argument("--force", action="store_true", help="replace existing files")


def _export(options: argparse.Namespace) -> int:
    from ortlens.trace.store import load

    if options.format == "trace" and options.table:
        raise UsageError("--format trace contains calls, not tables; drop --table, or use --format csv")
    capture = load(options.capture)
    folder: Path = options.folder.expanduser()
    names = _file_names(capture, options)
    _refuse_to_replace(folder, names, force=options.force)
    for name, data in _files(capture, options):
        path = folder / name
        _write(path, data)
    models = sum(name.endswith(".onnx") for name in names)
    others = [name for name in names if not name.endswith(".onnx")]
    print_text(f"In {folder.resolve()}: {', '.join([*others, *([counted(models, 'ONNX model')] if models else [])])}")
    return EXIT_OK


def _file_names(capture: Capture, options: argparse.Namespace) -> list[str]:
    if options.format == "trace":
        return ["trace.json"]
    return [*(f"{table}.{options.format}" for table in _tables(options)), *(() if options.table else _models(capture))]


def _tables(options: argparse.Namespace) -> Sequence[str]:
    from ortlens.trace.schema import TABLES

    return tuple(dict.fromkeys(options.table or TABLES))


def _models(capture: Capture) -> list[str]:
    """The models, by names that stay inside a folder and say what they are; the store refuses worse ones, and so does this door."""
    return [name for name in capture.attachments if _MODEL.fullmatch(name)]


def _files(capture: Capture, options: argparse.Namespace) -> Iterator[tuple[str, bytes]]:
    if options.format == "trace":
        from ortlens.views.trace_events import trace_from_capture

        yield "trace.json", json.dumps(trace_from_capture(capture), allow_nan=False).encode()
        return
    for table in _tables(options):
        rows = rows_of(capture, table)
        text = csv_from_rows(table, rows) if options.format == "csv" else json.dumps(rows, indent=1)
        yield f"{table}.{options.format}", text.encode("utf-8", "backslashreplace")
    if not options.table:
        yield from ((name, capture.attachments[name]) for name in _models(capture))


def _refuse_to_replace(folder: Path, names: Sequence[str], *, force: bool) -> None:
    """All or nothing: half an export beside old files would mix two captures."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder")
    there = [name for name in names if (folder / name).exists() or (folder / name).is_symlink()]
    if there and not force:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise UsageError(f"{folder / there[0]}{more} would be replaced; use --force, or choose another folder")


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as err:
        raise UsageError(f"cannot write {path}: {err.strerror or err}; choose another folder") from err
