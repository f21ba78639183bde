"""Records to plain JSON and back, checked value by value against the column table.

JSON has no NaN or infinity, so those floats travel as the texts `NaN`, `Infinity` and `-Infinity`. Integers are 64-bit
signed, as in the frames. Text may hold lone surrogates (undecodable file names do): JSON escapes keep them; only a high
one directly before a low one comes back as the single character that the two spell.
"""

from __future__ import annotations

import math
import reprlib
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ortlens.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.trace.schema import Column, Table

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

MAX_ROWS = 1_000_000  # rows of one table: five times what the recorder keeps of calls; bounds the records that a small file can ask for
_INT64 = range(-(2**63), 2**63)
_FLOAT_FROM_NAME = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class _WrongValueError(ValueError):
    """A value does not fit its column; the caller adds the table, the row and the column."""


def row_from_record(table: Table, record: object) -> dict[str, Json]:
    """Write a record as a JSON object, in column order; a value that its column cannot hold raises `CaptureError`."""
    return {name: values[0] for name, values in columns_from_records(table, (record,)).items()}


def record_from_row(table: Table, row: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a record of the table
    """Read a record from a parsed JSON object; unknown entries are ignored, missing ones take their defaults."""
    return records_from_columns(table, 1, {name: [value] for name, value in row.items()})[0]


def columns_from_records(table: Table, records: Sequence[object]) -> dict[str, list[Json]]:
    """Write records, at most `MAX_ROWS`, as one JSON list per column, in column order; without records the lists are empty."""
    _check_row_count(table, len(records))
    return {
        column.name: _converted(table, column, [getattr(record, column.name) for record in records], _json_from_value)
        for column in table.columns
    }


def records_from_columns(table: Table, rows: int, columns: Mapping[str, Any]) -> tuple[Any, ...]:
    """Read `rows` records from a parsed JSON list per column; unknown columns are ignored, missing ones take their defaults."""
    _check_row_count(table, rows)
    if missing := [column.name for column in table.columns if column.required and column.name not in columns]:
        raise CaptureError(f"table {table.name}: column {missing[0]} is missing")
    present = [column for column in table.columns if column.name in columns]
    lists = [_converted(table, column, _list_of(table, column, columns, rows), _value_from_json) for column in present]
    names = [column.name for column in present]
    if not names:  # every value has its default
        return tuple(table.record() for _ in range(rows))
    return tuple(table.record(**dict(zip(names, values, strict=True))) for values in zip(*lists, strict=True))


def _check_row_count(table: Table, rows: int) -> None:
    if rows > MAX_ROWS:
        raise CaptureError(f"table {table.name}: {rows} rows are more than the {MAX_ROWS} that a capture may hold")


def _list_of(table: Table, column: Column, columns: Mapping[str, Any], rows: int) -> list[Any]:
    values = columns[column.name]
    if not isinstance(values, list):
        raise CaptureError(f"table {table.name}: column {column.name} is {_shown(values)}, not a list")
    if len(values) != rows:
        raise CaptureError(f"table {table.name}: column {column.name} has {len(values)} values for {rows} rows")
    return values


def _converted(table: Table, column: Column, values: list[Any], convert: Callable[[Column, Any], Any]) -> list[Any]:
    converted: list[Any] = []
    try:
        for value in values:
            converted.append(convert(column, value))  # noqa: PERF401 - its length says which row failed
    except _WrongValueError as err:
        raise CaptureError(f"table {table.name}, row {len(converted)}, column {column.name}: {err}") from err
    return converted


def _json_from_value(column: Column, value: Any) -> Json:  # noqa: ANN401 - a field of any kind
    if value is None and column.nullable:
        return None
    if column.kind == "tuple":
        if not isinstance(value, (tuple, list)):
            _refuse(value, "a tuple")
        if column.rows is not None:
            return [row_from_record(column.rows, item) for item in value]
        return [_checked_item(column, plain(item)) for item in value]
    checked = _checked(column, plain(value))
    return json_float(checked) if column.kind == "float" else checked


def _value_from_json(column: Column, value: Any) -> object:  # noqa: ANN401 - parsed JSON
    if value is None and column.nullable:
        return None
    if column.kind == "tuple":
        if not isinstance(value, list):
            _refuse(value, "a list")
        if column.rows is not None:
            rows = [item if isinstance(item, dict) else _refuse(item, "an object") for item in value]
            return tuple([record_from_row(column.rows, row) for row in rows])
        return tuple([_checked_item(column, item) for item in value])
    if column.kind == "float" and isinstance(value, str) and value in _FLOAT_FROM_NAME:
        return _FLOAT_FROM_NAME[value]
    return _checked(column, value)


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever a recorder was given
    """Return the Python number inside a numpy or torch scalar; everything else as it is."""
    return value if isinstance(value, (str, int, float)) or not hasattr(value, "item") else value.item()


def _checked_item(column: Column, value: Any) -> int | float | str:  # noqa: ANN401 - parsed JSON
    if float in column.items:
        return value if isinstance(value, float) and math.isfinite(value) else _refuse(value, "a finite number")
    if isinstance(value, int) and not isinstance(value, bool) and int in column.items:
        return _checked_int(value)
    if not isinstance(value, str) or str not in column.items:
        _refuse(value, " or ".join(item.__name__ for item in column.items))
    return value


_PLAIN: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}
"""By kind of column: what a value may be, and how a message calls that. True and false are no numbers."""


def _checked(column: Column, value: Any) -> Any:  # noqa: ANN401 - parsed JSON
    allowed, wanted = _PLAIN[column.kind]
    kind = type(value)
    if not issubclass(kind, allowed) or (kind is bool and bool not in allowed):
        _refuse(value, wanted)
    if column.choices and value not in column.choices:
        _refuse(value, f"one of {', '.join(column.choices)}")
    if column.kind == "int":
        return _checked_int(value)
    try:
        return float(value) if column.kind == "float" else value
    except OverflowError:
        _refuse(value, "a double-precision number")


def _checked_int(value: int) -> int:
    if value not in _INT64:
        _refuse(value, "a 64-bit integer")
    return value


def json_float(value: float) -> float | str:
    """Return a number, or the name of one that JSON has not."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _refuse(value: object, wanted: str) -> NoReturn:
    raise _WrongValueError(f"{_shown(value)} is not {wanted}")


def _shown(value: object) -> str:
    """Return a bounded text of an untrusted value; printing a huge integer in full would itself fail."""
    if isinstance(value, int) and value not in _INT64:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)
