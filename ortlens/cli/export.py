"""`ortlens export`: a saved capture as files that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.cli.commands import OneOf, add_quiet, command_in
from ortlens.cli.exit_codes import EXIT_OK
from ortlens.cli.printing import print_text
from ortlens.units import counted

if TYPE_CHECKING:
    import argparse

    from ortlens.cli.commands import Commands

_TEXT = "Write a saved capture as files for other tools: tables, ONNX models, a trace for Perfetto, node data for Model Explorer."
_EXAMPLES = """
    ortlens export run.ortlens folder  # every table as CSV, and the ONNX models
    ortlens export run.ortlens folder --format parquet --table runs sessions
    ortlens export run.ortlens folder --format trace  # trace.json for ui.perfetto.dev
    ortlens export run.ortlens folder --format model-explorer  # node data beside the ONNX models
"""
_FORMATS = ("csv", "json", "parquet", "trace", "model-explorer")


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    from ortlens.trace.schema import TABLES

    command = command_in(commands, "export", _TEXT, _export, examples=_EXAMPLES)
    command.add_argument("capture", metavar="CAPTURE", help="a file or folder that lens.save() or another command wrote")
    command.add_argument("folder", metavar="FOLDER", type=Path, help="output folder; created if missing")
    text = (
        "csv, json or parquet: a file per table, and the ONNX models; trace: trace.json for Perfetto; model-explorer: times and errors "
        "per ONNX node (default: %(default)s)"
    )
    command.add_argument("--format", metavar="FORMAT", type=OneOf(_FORMATS), default="csv", help=text)
    command.add_argument(
        "--table", metavar="NAME", nargs="+", action="extend", type=OneOf(tuple(TABLES)), help=f"only these tables: {', '.join(TABLES)}"
    )
    command.add_argument("--force", action="store_true", help="replace existing files")
    add_quiet(command)


def _export(options: argparse.Namespace) -> int:
    from ortlens.trace.store import load
    from ortlens.views.exporting import exported

    folder: Path = options.folder.expanduser()
    paths = exported(load(options.capture), folder, options.format, tables=tuple(options.table or ()), replace=options.force)
    models = sum(path.suffix == ".onnx" for path in paths)
    others = [path.name for path in paths if path.suffix != ".onnx"]
    print_text(f"In {folder.resolve()}: {', '.join([*others, *([counted(models, 'ONNX model')] if models else [])])}")
    return EXIT_OK
