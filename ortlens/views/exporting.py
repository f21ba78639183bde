"""A capture as files that other tools read."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from ortlens._files import temp_sibling, write_file
from ortlens._optional import require
from ortlens.analysis.index import partitions_by_id
from ortlens.errors import UsageError
from ortlens.trace.schema import FORMATS, TABLES, frame_from_records, table_by_name
from ortlens.views.table import csv_from_rows, records_of, rows_of
from ortlens.views.trace_events import trace_from_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ortlens.trace.records import Capture, Kernel
    from ortlens.trace.schema import Column, Table

_OF_TABLES = FORMATS[:3]
_MODEL = re.compile(r"models/[\w.-]*\w\.onnx", re.ASCII)

_FEATURE = "The Parquet export"

_SHADES = (0.0, "#ffffff"), (0.5, "#f0e442"), (1.0, "#d55e00")


def exported(capture: Capture, folder: Path, form: str, *, tables: Sequence[str] = (), replace: bool = False) -> list[Path]:
    """Write a capture as files; all of them, or none where one would replace another or cannot be written.

    Without `tables`, all of them and the ONNX models. Nothing to write is a `UsageError`.
    """
    if form not in FORMATS:
        raise UsageError(f"there is no format {form!r}; the formats are: {', '.join(FORMATS)}")
    if tables and form not in _OF_TABLES:
        raise UsageError(f"the format {form} contains no tables; leave out which, or choose one of {', '.join(_OF_TABLES)}")
    files = _files(capture, form, tables)
    _refuse_to_replace(folder, list(files), replace=replace)
    _write(folder, files)
    return [folder / name for name in files]


def _files(capture: Capture, form: str, tables: Sequence[str]) -> dict[str, Callable[[], bytes]]:
    """Map the names of the files to what makes each; models have names that stay inside a folder, and the store refuses worse ones too."""
    if form == "trace":
        return {"trace.json": lambda: json.dumps(trace_from_capture(capture), allow_nan=False).encode()}
    models = {name: partial(bytes, data) for name, data in capture.attachments.items() if _MODEL.fullmatch(name)}
    if form == "model-explorer":
        data = {name: partial(_json, found) for name, found in node_data_from_capture(capture).items()}
        if not data:
            raise UsageError("nothing was profiled or verified: lens.profile(...) gives times to the nodes, lens.verify(...) differences")
        return {**data, **models}
    chosen = {f"{(table := table_by_name(name).name)}.{form}": partial(_table, capture, table, form) for name in tables or TABLES}
    return {**chosen, **({} if tables else models)}


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, indent=1, allow_nan=False).encode()


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


def _write(folder: Path, files: Mapping[str, Callable[[], bytes]]) -> None:
    """Write all files, first to a folder of their own in there, so that a full disk leaves what was there before."""
    is_new = not folder.exists()
    made = temp_sibling(folder / "_")
    try:
        for name, make in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(made / name, make())
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


def parquet_from_records(table: Table, records: Sequence[Any]) -> bytes:
    """Write records of one kind as a Parquet file; the metadata of each field has its unit and meaning.

    Integers that may be missing stay integers; a sequence that mixes numbers and texts, as shapes with symbolic sizes do, becomes a list of
    texts.
    """
    arrow, writer = require("pyarrow", _FEATURE), require("pyarrow.parquet", _FEATURE)
    frame = frame_from_records(table, records)
    for column in table.columns:
        if len(set(column.items)) > 1:
            frame[column.name] = frame[column.name].map(lambda value: None if value is None else [str(item) for item in value])
    fields = [arrow.field(column.name, _type(arrow, column), metadata=_about(column)) for column in table.columns]
    made = arrow.Table.from_pandas(frame, schema=arrow.schema(fields), preserve_index=False)
    sink = arrow.BufferOutputStream()
    writer.write_table(made, sink)
    file: bytes = sink.getvalue().to_pybytes()
    return file


def _type(arrow: Any, column: Column) -> Any:  # noqa: ANN401 - pyarrow ships no types
    simple = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    if column.kind != "tuple":
        return next(made for kind, made in simple.items() if kind.__name__ == column.kind)
    return arrow.list_(simple[column.items[0]] if len(set(column.items)) == 1 else arrow.string())


def _about(column: Column) -> dict[str, str]:
    return {"meaning": column.meaning, **({"unit": column.unit} if column.unit else {})}


def node_data_from_capture(capture: Capture) -> dict[str, dict[str, Any]]:
    """Collect times and errors of ONNX nodes by file name; empty when nothing was profiled or verified.

    A profiled model has `m0.kernel_time.json` and `m0.share.json`, a verified one `m0.max_abs.json`. The time of a kernel that computes
    several ONNX nodes is split evenly among them.
    """
    files: dict[str, dict[str, Any]] = {}
    for model_id, kernels in _profiled(capture).items():
        total = sum(kernel.mean_ns or 0 for kernel in kernels) or 1
        times: dict[str, float] = {}
        for kernel in kernels:
            for node in kernel.onnx_nodes:
                times[node] = times.get(node, 0.0) + (kernel.mean_ns or 0) / len(kernel.onnx_nodes)
        files[f"{model_id}.kernel_time.json"] = _file("kernel time per run, µs", {node: ns / 1000 for node, ns in times.items()})
        files[f"{model_id}.share.json"] = _file("share of kernel time, %", {node: 100 * ns / total for node, ns in times.items()})
    for model_id, errors in _errors(capture).items():
        files[f"{model_id}.max_abs.json"] = _file("largest difference from PyTorch", errors)
    return {name: data for name, data in files.items() if data["results"]}


def _profiled(capture: Capture) -> dict[str, list[Kernel]]:
    """Group kernels by model; of several profiled sessions of one model, those of the busiest."""
    busiest: dict[str, str] = {}
    seen = {kernel.session_id for kernel in capture.kernels}
    for session in sorted(capture.sessions, key=lambda session: session.total_ns):
        if session.session_id in seen and session.model_id:
            busiest[session.model_id] = session.session_id
    return {model: [kernel for kernel in capture.kernels if kernel.session_id == session] for model, session in sorted(busiest.items())}


def _errors(capture: Capture) -> dict[str, dict[str, float]]:
    """Find by model the largest difference of each FX node's value, at the ONNX node that makes it."""
    partitions = partitions_by_id(capture)
    makers = {(node.partition_id, node.node): node.onnx_nodes[-1] for node in capture.nodes if node.onnx_nodes}
    errors: dict[str, dict[str, float]] = {}
    for row in capture.numerics:
        maker, partition = makers.get((row.partition_id, row.node)), partitions.get(row.partition_id or "")
        if maker and partition and partition.model_id and row.max_abs is not None and math.isfinite(row.max_abs):
            known = errors.setdefault(partition.model_id, {})
            known[maker] = max(known.get(maker, 0.0), row.max_abs)
    return errors


def _file(name: str, values: Mapping[str, float]) -> dict[str, Any]:
    return {
        "name": name,
        "results": {node: {"value": value} for node, value in values.items()},
        "gradient": [{"stop": stop, "bgColor": shade} for stop, shade in _SHADES],
    }
