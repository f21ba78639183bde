"""Tables of a capture as rows, and rows as CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.trace.codec import Json
    from ortlens.trace.records import Capture, Record


def records_of(capture: Capture, table: str) -> Sequence[Record]:
    """Look up the records of a table; of `findings`, those of the rules too."""
    from ortlens.analysis.findings.registry import findings_of

    records: Sequence[Record] = findings_of(capture) if table == "findings" else getattr(capture, table)
    return records


def rows_of(capture: Capture, table: str) -> list[dict[str, Json]]:
    """Return a table as plain data, with a mapping per row in the order of the columns."""
    from ortlens.trace.codec import row_from_record
    from ortlens.trace.schema import TABLES

    return [row_from_record(TABLES[table], record) for record in records_of(capture, table)]


def csv_from_rows(table: str, rows: Sequence[Mapping[str, Json]]) -> str:
    """Write rows as CSV, lists in them as JSON; the columns of the table are the heading, also without rows."""
    from ortlens.trace.schema import TABLES

    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in TABLES[table].columns], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()})
    return text.getvalue()
