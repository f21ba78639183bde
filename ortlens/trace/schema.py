"""The one table of columns, read off the records.

Every frame, the saved file and the reference page take names, dtypes, units and meanings from `TABLES`, and
`TABLES` takes them from the dataclasses in `records.py`.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from ortlens.errors import UsageError
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind: TypeAlias = Literal["str", "int", "float", "bool", "tuple"]

_DTYPES: Mapping[tuple[str, bool], str] = {
    ("int", False): "int64",
    ("int", True): "Int64",
    ("float", False): "float64",
    ("float", True): "float64",
    ("bool", False): "bool",
    ("bool", True): "boolean",
    ("str", False): "string",
    ("str", True): "string",
    ("tuple", False): "object",
    ("tuple", True): "object",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a frame.

    Attributes:
        name: Name of the column and of the record's field.
        dtype: pandas dtype, as text.
        unit: `ns`, `bytes`, `flops`, or empty.
        meaning: One sentence.
        nullable: True when a value may be missing.
        kind: Type of a present value.
        choices: The values allowed, when it is one of a fixed set.
        items: Types of the items, when it is a tuple.
        rows: The columns of the items, when they are records.
        required: True when the record has no default for it.
    """

    name: str
    dtype: str
    unit: str
    meaning: str
    nullable: bool
    kind: Kind
    choices: tuple[str, ...] = ()
    items: tuple[type, ...] = ()
    rows: Table | None = None
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One frame: the records of one kind.

    Attributes:
        name: Name of the frame and of the capture's field.
        record: The record class.
        meaning: One sentence.
        columns: The columns, in order.
    """

    name: str
    record: type[Any]
    meaning: str
    columns: tuple[Column, ...]


def _without_none(annotation: object) -> tuple[Any, bool]:
    """Return what is left of `X | None`, and whether None was there; a union of other things is left whole."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    members = get_args(annotation)
    rest = tuple(member for member in members if member is not types.NoneType)
    return (rest[0] if len(rest) == 1 else annotation), len(rest) < len(members)


def _item_types(annotation: Any) -> tuple[type, ...]:  # noqa: ANN401 - annotations have no common type
    """Return the types that `tuple[X, ...]` holds; `int | str` gives both."""
    item = get_args(annotation)[0]
    return get_args(item) or (item,)


def _column_from_field(spec: Field[Any], annotation: object) -> Column:
    inner, nullable = _without_none(annotation)
    origin = get_origin(inner)
    kind: Kind = "str" if origin is Literal else (origin or inner).__name__
    items = _item_types(inner) if origin is tuple else ()
    return Column(
        name=spec.name,
        dtype=_DTYPES[kind, nullable],
        unit=spec.metadata["unit"],
        meaning=spec.metadata["meaning"],
        nullable=nullable,
        kind=kind,
        choices=get_args(inner) if origin is Literal else (),
        items=items,
        rows=table_from_record(spec.name, items[0]) if any(map(is_dataclass, items)) else None,
        required=spec.default is MISSING,
    )


def table_from_record(name: str, record: type[Any]) -> Table:
    """Make the table of a dataclass whose fields are declared with `records.column`."""
    hints = get_type_hints(record)
    columns = tuple(_column_from_field(spec, hints[spec.name]) for spec in fields(record))
    return Table(name=name, record=record, meaning=(record.__doc__ or "").splitlines()[0], columns=columns)


def _tables_from_capture() -> Mapping[str, Table]:
    # A table is whatever field of a capture is a tuple: a new one needs no second list.
    hints = get_type_hints(r.Capture)
    kinds = {spec.name: get_args(hints[spec.name])[0] for spec in fields(r.Capture) if get_origin(hints[spec.name]) is tuple}
    return types.MappingProxyType({name: table_from_record(name, record) for name, record in kinds.items()})


TABLES: Mapping[str, Table] = _tables_from_capture()
"""Every table by name, in the order in which they are shown."""

FIGURES = table_from_record("figures", r.Figures)
"""The figures of a capture, as a table of one row."""


def table_by_name(name: str) -> Table:
    """Look up a table; the `UsageError` for an unknown name lists those there are."""
    try:
        return TABLES[name]
    except KeyError as err:
        raise UsageError(f"there is no table {name!r}; the tables are: {', '.join(TABLES)}") from err
