"""Records as an aligned text table, with times and sizes in human units."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.wording import clipped, place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.trace.records import Record

_GAP = "  "
_MAX_CELL = 48
_FIRST = {
    "Graph": ("graph_id", "compile_id", "phase", "name", "node_count", "partition_count", "fallback_count", "coverage", "compile_ns"),
    "Break": ("break_id", "file", "line", "source", "reason", "occurrences"),
    "Recompile": ("compile_id", "of_compile_id", "function", "file", "line", "guard"),
    "Node": ("graph_id", "node", "target", "module", "partition_id", "reason_code", "file", "line"),
    "Fallback": ("graph_id", "target", "reason_code", "file", "line", "calls", "total_ns", "reason"),
    "Session": ("session_id", "partition_id", "input_signature", "calls", "p50_ns", "total_ns", "create_ns"),
    "Run": ("session_id", "graph_id", "call", "bind_ns", "run_ns", "output_ns", "total_ns"),
    "Finding": ("severity", "title", "file", "line", "mitigation"),
}
"""What a narrow table shows before anything else, by kind of record."""

_SHARES = frozenset({"coverage", "share"})


def table(records: Sequence[Record], columns: Sequence[str] = (), *, width: int = 100, limit: int | None = 30) -> str:
    """Lay records out as a text table.

    Args:
        records: Records of one kind.
        columns: Columns to show, in order; by default every one that holds something, the telling ones first.
        width: Characters per line. Columns that do not fit are left out and named below the table.
        limit: Rows at most; None for all.

    Returns:
        The table, numbers to the right, without a trailing line break; `no rows` when there are none.
    """
    if not records:
        return "no rows"
    shown = records if limit is None else records[:limit]
    names = tuple(columns) or _filled_columns(records)
    units = {item.name: item.metadata["unit"] for item in fields(records[0])}
    laid_out = [_column(name, units[name], shown) for name in names]
    fitting = _fitting(laid_out, width)
    lines = [_GAP.join(cells).rstrip() for cells in zip(*laid_out[:fitting], strict=True)]
    return "\n".join([*lines, *_omissions(len(records) - len(shown), names[fitting:])])


def _filled_columns(records: Sequence[Record]) -> tuple[str, ...]:
    names = (item.name for item in fields(records[0]))
    filled = [name for name in names if any(getattr(record, name) not in (None, (), "") for record in records)]
    first = _FIRST.get(type(records[0]).__name__, ())
    return tuple(sorted(filled, key=lambda name: (first.index(name) if name in first else len(first), filled.index(name))))


def _column(name: str, unit: str, records: Sequence[Record]) -> list[str]:
    """Head, rule and cells of one column, all of the same width."""
    values = [getattr(record, name) for record in records]
    to_right = all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)
    cells = [_cell(value, name, unit) for value in values]
    head = name.removesuffix(f"_{unit}") if unit in ("ns", "bytes") else name
    size = max(len(cell) for cell in (head, *cells))
    align: Callable[[str, int], str] = str.rjust if to_right else str.ljust
    return [align(head, size), "-" * size, *(align(cell, size) for cell in cells)]


def _cell(value: object, name: str, unit: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(value, name, unit)
    if name == "file":
        return place(str(value), None)
    if isinstance(value, tuple):
        return clipped(" ".join(str(item) for item in value), _MAX_CELL)
    return clipped(str(value), _MAX_CELL)


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


def _fitting(columns: list[list[str]], width: int) -> int:
    """How many leading columns fit; at least one, since an empty table is useless."""
    used = 0
    for number, column in enumerate(columns):
        used += len(column[0]) + (len(_GAP) if number else 0)
        if used > width and number:
            return number
    return len(columns)


def _omissions(rows: int, columns: Sequence[str]) -> list[str]:
    notes = [f"... and {counted(rows, 'more row')}"] if rows > 0 else []
    if columns:
        notes.append(f"... not enough room for {counted(len(columns), 'column')}: {', '.join(columns)}")
    return notes
