"""Records of one kind as a table for people: the columns that their metadata names, with times and sizes in human units.

As aligned text, as cells for a page, as plain rows, and as CSV.
"""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ortlens.trace.schema import SHOWN_TABLES
from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.wording import clipped, function, guard, place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ortlens.trace.codec import Json

MAX_ROWS = 12  # of a table in a notebook: as many as anyone reads. The explorer and the frames have all
MAX_BYTES = 7_500  # of the rows of one table in a notebook; six tables and the frame stay below 60 kB
_MARKUP = 30  # bytes of the tags around a cell
_GAP = "  "
_MAX_CELL, _MAX_SENTENCE, _MAX_PROSE = 48, 240, 600  # characters; a sentence that is cut is useless
_LEAST_PROSE, _READABLE_PROSE = 18, 40
_KEY_COLUMNS = 4
_PLAIN = 1e-3, 1e3, 1e7  # fractions between these are written without an exponent, from the second on without decimals

Look: TypeAlias = Literal["text", "number", "code", "prose"]

_PROSE = frozenset(
    {"advice", "do", "evidence", "explanation", "guard", "finding", "hazard", "mitigation", "note", "reason", "threads_reason", "title"}
)
"""Sentences: wrapped where there is no room, never cut off."""
_CODE = frozenset({"guard", "input_signature", "options", "source", "target", "values"})
_SHARES = frozenset({"coverage", "share"})
_FUNCTIONS = frozenset({"function", "name"})


class ShownColumn(NamedTuple):
    """Cells below their heading, each on one line."""

    name: str
    head: str
    look: Look
    cells: list[str]

    @property
    def most(self) -> int:
        """Characters of the longest."""
        return max(len(cell) for cell in (self.head, *self.cells))

    def size(self, prose: int) -> int:
        """Return the width of the column where sentences get `prose` characters."""
        return min(self.most, max(len(self.head), prose)) if self.name in _PROSE else self.most


@dataclass(frozen=True, kw_only=True)
class ShownTable:
    """A table of a notebook or a page: the brief columns of records, as far as they hold something."""

    title: str  # its name, and its order
    source: str  # frame that holds all of it
    records: Sequence[Any]  # what its rows are made from
    names: tuple[str, ...] = ()  # columns; those of the metadata by default
    limit: int = MAX_ROWS  # rows that are made: a huge capture must not make looking at it slow

    @property
    def meaning(self) -> str:
        """What a row is, as the docs have it."""
        return (type(self.records[0]).__doc__ or "").splitlines()[0]

    @cached_property
    def columns(self) -> list[ShownColumn]:
        """The columns, with the texts of the first rows."""
        return shown_columns(self.records, self.names, self.limit)

    def rows(self, max_bytes: int = MAX_BYTES) -> list[list[tuple[ShownColumn, str]]]:
        """Return the rows, each cell with its column, without those beyond a size in HTML."""
        found: list[list[tuple[ShownColumn, str]]] = []
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            max_bytes -= sum(len(escape(cell).encode()) + _MARKUP for cell in cells)
            if max_bytes < 0:
                break
            found.append(list(zip(self.columns, cells, strict=True)))
        return found

    def more(self, shown: int) -> str:
        """Count the rows that are not shown; empty where all are."""
        return counted(len(self.records) - shown, "more row") if len(self.records) > shown else ""


def shown_columns(records: Sequence[Any], names: Sequence[str] = (), limit: int | None = None) -> list[ShownColumn]:
    """Make the columns of the first records for a page: those of the metadata that hold something, or those named."""
    return [
        _column(name, records[:limit], _MAX_SENTENCE if name in _PROSE else _MAX_SENTENCE // 2) for name in names or brief_columns(records)
    ]


def table(records: Sequence[Any], columns: Sequence[str] = (), *, width: int | None = 100, limit: int | None = 30) -> str:
    """Lay records of one kind out as a text table; `no rows` when there are none.

    By default it shows the columns that hold something, the brief ones first; those that do not fit are named below. With `width=None` it
    shows every column, on one line per row.
    """
    if not records:
        return "no rows"
    shown = records if limit is None else records[:limit]
    names = tuple(columns) or brief_columns(records, only_brief=False)
    laid_out = [_column(name, shown, _MAX_PROSE if width is None or name in _PROSE else _MAX_CELL) for name in names]
    sizes = [column.most for column in laid_out] if width is None else _fitting(laid_out, width)
    rows = zip(*([column.head, "-" * size, *column.cells] for column, size in zip(laid_out, sizes, strict=False)), strict=True)
    aligned = [(size, column.look == "number") for column, size in zip(laid_out, sizes, strict=False)]
    lines = [line for cells in rows for line in _lines(cells, aligned)]
    if left := len(records) - len(shown):
        lines.append(f"... and {counted(left, 'more row')}")
    if hidden := names[len(sizes) :]:
        lines.append(f"... not enough room for {counted(len(hidden), 'column')}: {', '.join(hidden)}")
    return "\n".join(lines)


def brief_columns(records: Sequence[Any], *, only_brief: bool = True) -> tuple[str, ...]:
    """List the columns that hold something, the brief ones first: those that are shown where there is no room for all, or all of them.

    `place` is `file` and `line` together.
    """
    if not records:
        return ()
    briefs = {item.name: item.metadata.get("brief") or 0 for item in fields(records[0])}
    names = [name for name, brief in briefs.items() if brief or not only_brief]
    filled = [name for name in names if any(getattr(record, name) not in (None, (), "") for record in records)]
    if "file" in filled:
        filled = [name for name in filled if name != "line"]
    last = len(briefs)
    return tuple("place" if name == "file" else name for name in sorted(filled, key=lambda name: briefs[name] or last))


def _column(name: str, records: Sequence[Any], most: int) -> ShownColumn:
    """Make heading and cells; for `place`, put the cells of `file` and `line` together."""
    if name == "place":
        both = [(getattr(record, "file", None), getattr(record, "line", None)) for record in records]
        return ShownColumn(name, name, "text", [place(file, line) if file else "" for file, line in both])
    unit = next((item.metadata.get("unit", "") for record in records[:1] for item in fields(record) if item.name == name), "")
    values = [getattr(record, name) for record in records]
    is_number = all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)
    look: Look = "number" if is_number else "code" if name in _CODE else "prose" if name in _PROSE else "text"
    head = name.removesuffix(f"_{unit}") if unit in ("ns", "bytes") else f"{name} {unit}" if unit.startswith("of ") else name
    head = head.replace("_per_s", "/s")
    return ShownColumn(name, head, look, [_cell(value, name, unit, most) for value in values])


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
    text = function(str(value)) if name in _FUNCTIONS else guard(str(value)) if name == "guard" else str(value)
    return clipped(text, most)


def _number(value: float, name: str, unit: str) -> str:
    if not math.isfinite(value):  # in a damaged file
        return str(value)
    if name in _SHARES:
        return percent(value)
    if unit == "ns":
        return time_from_ns(round(value))
    if unit == "bytes":
        return size_from_bytes(round(value))
    if isinstance(value, int):
        return str(value) if name == "line" else f"{value:,}"
    low, whole, high = _PLAIN
    return f"{value:,.0f}" if whole <= abs(value) < high else f"{value:.3g}" if not value or low <= abs(value) < high else f"{value:.1e}"


def _fitting(columns: Sequence[ShownColumn], width: int) -> list[int]:
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


def rows_of(table: str, records: Sequence[Any]) -> list[dict[str, Json]]:
    """Return the records of a table as plain data, with a mapping per row in the order of the columns."""
    from ortlens.trace.codec import row_from_record

    return [row_from_record(SHOWN_TABLES[table], record) for record in records]


def csv_from_rows(table: str, rows: Sequence[Mapping[str, Json]]) -> str:
    """Write rows as CSV, lists in them as JSON; the columns of the table are the heading, also without rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in SHOWN_TABLES[table].columns], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()})
    return text.getvalue()
