"""Columns packed for the explorer: shared strings, differences where they are shorter, each list once.

The browser unpacks them (`frontend/src/data.js`). Everything is plain JSON: NaN and infinities travel as their names, and
integers beyond 2**53 lose their last digits there, as every number in a browser does.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.trace.schema import Column, Table

Packed: TypeAlias = dict[str, Any]

_MAX_TEXT = 10_000  # characters of one text; a name of a megabyte must not sink the page
_PLAIN = frozenset({str, int, float, bool, tuple, type(None)})
_SUMS: Mapping[tuple[str, str], tuple[str, ...]] = {("runs", "total_ns"): ("bind_ns", "run_ns", "output_ns")}


class Texts:
    """The strings of all columns, each once, in the order in which they came."""

    def __init__(self) -> None:
        """Start empty."""
        self._codes: dict[str, int] = {}

    def code(self, text: object) -> int:
        """Return the place of a text in `strings`; -1 for None."""
        if text is None:
            return -1
        return self._codes.setdefault(_bounded(str(text)), len(self._codes))

    def strings(self) -> list[str]:
        """Return all texts; the code of each is its place."""
        return list(self._codes)


def packed_table(table: Table, records: Sequence[Any], total: int, texts: Texts) -> Packed:
    """Pack the shown records of one kind, `total` being how many were recorded; strings go to `texts`."""
    columns = {column.name: [getattr(record, column.name) for record in records] for column in table.columns}
    packed = {
        column.name: _about(column) | (_sum(table.name, column.name, columns) or packed_column(column, columns[column.name], texts))
        for column in table.columns
    }
    return {"meaning": table.meaning, "rows": len(records), "total": total, "columns": packed}


def packed_column(column: Column, values: list[Any], texts: Texts) -> Packed:
    """Pack the values of one column as `enc` and what it needs; a constant is stored once, strings go to `texts`."""
    plain = values if set(map(type, values)) <= _PLAIN else [_plain(value) for value in values]
    if column.kind != "tuple" and _all_same(plain):
        return _const(plain[0] if plain else None)
    pack: Mapping[str, Callable[[list[Any]], Packed]] = {
        "str": lambda found: {"enc": "text", "codes": _ints([texts.code(value) for value in found])},
        "int": lambda found: {"enc": "ints", "values": _ints(found)},
        "float": lambda found: {"enc": "floats", "values": [_float(value) for value in found]},
        "bool": lambda found: {"enc": "bools", "values": [None if value is None else int(value) for value in found]},
        "tuple": lambda found: _lists(found, texts),
    }
    return pack[column.kind](plain)


def _about(column: Column) -> Packed:
    return {"kind": "list" if column.kind == "tuple" else column.kind, "unit": column.unit, "meaning": column.meaning}


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a recorder was given
    """Return the Python number inside a numpy or torch scalar; everything else as it is."""
    return value.item() if hasattr(value, "item") else value


def _all_same(values: list[Any]) -> bool:
    # By identity or by equality within a type: NaN is not itself, and True must not pass for 1.
    return not values or all(value is values[0] or (type(value) is type(values[0]) and value == values[0]) for value in values)


def _const(value: Any) -> Packed:  # noqa: ANN401 - a value of any kind
    if isinstance(value, str):
        return {"enc": "const", "value": _bounded(value)}
    return {"enc": "const", "value": _float(value) if isinstance(value, float) else value}


def _float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _ints(values: list[Any]) -> list[Any] | Packed:
    """Pack whole numbers as they are, or as differences where that is shorter."""
    if len(values) < 2 or None in values:  # noqa: PLR2004 - one value has no difference
        return values
    steps = [after - before for before, after in itertools.pairwise(values)]
    return {"base": values[0], "delta": steps} if len(json.dumps(steps)) < len(json.dumps(values)) else values


def _lists(values: list[Any], texts: Texts) -> Packed:
    """Pack tuples; each distinct one once, when that saves something."""
    distinct = list(dict.fromkeys(values))
    shared = len(distinct) * 2 < len(values)
    stored = distinct if shared else values
    items = [item for value in stored if value is not None for item in value]
    text = all(isinstance(item, str) for item in items)
    packed: Packed = {
        "enc": "lists",
        "text": text,
        "items": _ints([texts.code(item) for item in items])
        if text
        else [_bounded(item) if isinstance(item, str) else item for item in items],
        "lengths": [-1 if value is None else len(value) for value in stored],
    }
    if shared:
        places = {value: place for place, value in enumerate(distinct)}
        packed["codes"] = _ints([places[value] for value in values])
    return packed


def _sum(table: str, column: str, columns: Mapping[str, list[Any]]) -> Packed | None:
    """Store a column that is the sum of others as such; None where it is not.

    Calls of another backend are not split, so the sum must hold for all rows.
    """
    parts = _SUMS.get((table, column))
    if parts is None or not columns[column]:
        return None
    added = map(sum, zip(*(columns[part] for part in parts), strict=True))
    return {"enc": "sum", "of": list(parts)} if all(map(int.__eq__, added, columns[column])) else None


def bounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Cut every text in plain data to what a page can bear; long ones have their length behind their head."""
    if isinstance(value, str):
        return _bounded(value)
    if isinstance(value, dict):
        return {key: bounded(item) for key, item in value.items()}
    return [bounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text):,} characters)"
