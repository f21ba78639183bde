"""Records of a capture as an aligned text table, with times and sizes in human units, as plain rows, and as CSV."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from dataclasses import dataclass, fields
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING

from ortlens.trace.schema import TABLES
from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.wording import clipped, place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ortlens.trace.codec import Json
    from ortlens.trace.records import Capture, Record

_GAP = "  "
_MAX_CELL = 48
_MAX_PROSE = 600
_LEAST_PROSE, _READABLE_PROSE = 18, 40
_KEY_COLUMNS = 4
_FIRST = {
    "Graph": ("graph_id", "compile_id", "phase", "name", "node_count", "partition_count", "fallback_count", "coverage", "compile_ns"),
    "Break": ("reason", "place", "cost_ns", "advice", "occurrences", "overhead_ns", "break_id"),
    "Recompile": ("function", "guard", "place", "advice", "compile_id", "of_compile_id"),
    "Node": ("node", "target", "module", "partition_id", "reason_code", "place", "graph_id"),
    "Fallback": ("target", "reason", "place", "calls", "total_ns", "graph_id", "reason_code"),
    "Session": ("session_id", "partition_id", "input_signature", "calls", "p50_ns", "total_ns", "create_ns"),
    "Run": ("session_id", "graph_id", "call", "bind_ns", "run_ns", "output_ns", "total_ns"),
    "Kernel": ("op_type", "total_ns", "share", "node", "place", "session_id", "calls"),
    "Numeric": ("node", "ok", "max_abs", "max_rel", "place", "scope", "closer_to_fp64", "note"),
    "Finding": ("severity", "title", "place", "mitigation", "gain_ns", "measured", "evidence", "hazard"),
}
"""What a narrow table shows before anything else, by kind of record. `place` is `file` and `line` together."""

_SHARES = frozenset({"coverage", "share"})
_PROSE = frozenset({"advice", "evidence", "explanation", "guard", "hazard", "mitigation", "note", "reason", "threads_reason", "title"})
"""Sentences: wrapped where there is no room, never cut off."""


@dataclass(frozen=True, slots=True)
class _Column:
    """Cells below their heading, all still on one line each."""

    name: str
    head: str
    cells: list[str]
    to_right: bool

    @property
    def most(self) -> int:
        return max(len(cell) for cell in (self.head, *self.cells))

    def size(self, prose: int) -> int:
        """Return the width of the column where sentences get `prose` characters."""
        return min(self.most, max(len(self.head), prose)) if self.name in _PROSE else self.most


def table(records: Sequence[Record], columns: Sequence[str] = (), *, width: int | None = 100, limit: int | None = 30) -> str:
    """Lay records of one kind out as a text table; `no rows` when there are none.

    By default it shows the columns that hold something, the telling ones first; those that do not fit are named below. With `width=None` it
    shows every column, on one line per row.
    """
    if not records:
        return "no rows"
    shown = records if limit is None else records[:limit]
    names = tuple(columns) or _filled_columns(records)
    units = {item.name: item.metadata["unit"] for item in fields(records[0])}
    laid_out = [_column(name, units.get(name, ""), shown, is_wide=width is None) for name in names]
    sizes = [column.most for column in laid_out] if width is None else _fitting(laid_out, width)
    rows = zip(*([column.head, "-" * size, *column.cells] for column, size in zip(laid_out, sizes, strict=False)), strict=True)
    aligned = [(size, column.to_right) for column, size in zip(laid_out, sizes, strict=False)]
    lines = [line for cells in rows for line in _lines(cells, aligned)]
    return "\n".join([*lines, *_omissions(len(records) - len(shown), names[len(sizes) :])])


def _filled_columns(records: Sequence[Record]) -> tuple[str, ...]:
    names = [item.name for item in fields(records[0])]
    filled = [name for name in names if any(getattr(record, name) not in (None, (), "") for record in records)]
    if "file" in filled:
        filled = ["place" if name == "file" else name for name in filled if name != "line"]
    first = _FIRST.get(type(records[0]).__name__, ())
    return tuple(sorted(filled, key=lambda name: (first.index(name) if name in first else len(first), filled.index(name))))


def _column(name: str, unit: str, records: Sequence[Record], *, is_wide: bool) -> _Column:
    """Make heading and cells; for `place`, put the cells of `file` and `line` together."""
    if name == "place":
        both = [(getattr(record, "file", None), getattr(record, "line", None)) for record in records]
        return _Column(name, name, [place(file, line) if file else "" for file, line in both], to_right=False)
    values = [getattr(record, name) for record in records]
    to_right = all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)
    most = _MAX_PROSE if is_wide or name in _PROSE else _MAX_CELL
    head = name.removesuffix(f"_{unit}") if unit in ("ns", "bytes") else name
    return _Column(name, head, [_cell(value, name, unit, most) for value in values], to_right=to_right)


def _lines(cells: Sequence[str], aligned: Sequence[tuple[int, bool]]) -> Iterator[str]:
    """Yield a row as one line, or as several where a cell is longer than its column."""
    wrapped = [[cell] if len(cell) <= size else textwrap.wrap(cell, size) for cell, (size, _) in zip(cells, aligned, strict=True)]
    for parts in zip_longest(*wrapped, fillvalue=""):
        padded = (part.rjust(size) if to_right else part.ljust(size) for part, (size, to_right) in zip(parts, aligned, strict=True))
        yield _GAP.join(padded).rstrip()


def _cell(value: object, name: str, unit: str, most: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(value, name, unit)
    if name == "file":
        return place(str(value), None)
    if isinstance(value, tuple):
        return clipped(" ".join(str(item) for item in value), most)
    return clipped(str(value), most)


def _number(value: float, name: str, unit: str) -> str:
    if name in _SHARES:
        return percent(value)
    if unit == "ns":
        return time_from_ns(round(value))
    if unit == "bytes":
        return size_from_bytes(round(value))
    if isinstance(value, int):
        return str(value) if name == "line" else f"{value:,}"
    return f"{value:.3g}"


def _fitting(columns: Sequence[_Column], width: int) -> list[int]:
    """Size the leading columns that fit, at least one, since an empty table is useless; sentences share the room that is left."""
    squeezed = _leading([column.size(_LEAST_PROSE) for column in columns[:_KEY_COLUMNS]], width)
    readable = _leading([column.size(_READABLE_PROSE) for column in columns], width)  # no other column squeezes the sentences of these
    sizes = [column.size(_LEAST_PROSE) for column in columns[: max(squeezed, readable)]]
    left = width - sum(sizes) - len(_GAP) * (len(sizes) - 1)
    growing = sorted((at for at, size in enumerate(sizes) if columns[at].most > size), key=lambda at: columns[at].most - sizes[at])
    for done, at in enumerate(growing):
        more = min(columns[at].most - sizes[at], max(left, 0) // (len(growing) - done))
        sizes[at] += more
        left -= more
    return sizes


def _leading(sizes: Sequence[int], width: int) -> int:
    ends = accumulate(size + len(_GAP) for size in sizes)
    return max(sum(end - len(_GAP) <= width for end in ends), 1)


def _omissions(rows: int, columns: Sequence[str]) -> list[str]:
    notes = [f"... and {counted(rows, 'more row')}"] if rows > 0 else []
    if columns:
        notes.append(f"... not enough room for {counted(len(columns), 'column')}: {', '.join(columns)}")
    return notes


def records_of(capture: Capture, table: str) -> Sequence[Record]:
    """Look up the records of a table; of `findings`, those of the rules too."""
    from ortlens.analysis.problems.stream import findings_of

    records: Sequence[Record] = findings_of(capture) if table == "findings" else getattr(capture, table)
    return records


def rows_of(capture: Capture, table: str) -> list[dict[str, Json]]:
    """Return a table as plain data, with a mapping per row in the order of the columns."""
    from ortlens.trace.codec import row_from_record

    return [row_from_record(TABLES[table], record) for record in records_of(capture, table)]


def csv_from_rows(table: str, rows: Sequence[Mapping[str, Json]]) -> str:
    """Write rows as CSV, lists in them as JSON; the columns of the table are the heading, also without rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in TABLES[table].columns], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()})
    return text.getvalue()
