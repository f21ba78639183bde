"""A table of a capture as a Parquet file, whose columns keep their types for every reader, and their dtypes for pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens._optional import require
from ortlens.trace.frames import frame_from_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.trace.schema import Column, Table

_FEATURE = "The Parquet export"


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
