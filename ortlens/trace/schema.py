"""The one table of columns, read off the records, and what is made by it: pandas frames, and figures as named texts.

Every frame, the saved file and the reference page take names, dtypes, units and meanings from `TABLES`, and
`TABLES` takes them from the dataclasses in `records.py`.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from ortlens.errors import CaptureError, OptionalDependencyError, UsageError, near_hint
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

    import pandas as pd

    from ortlens.trace.records import Capture, Figures, SideResult


FORMATS = ("csv", "json", "trace")
"""Forms in which a capture is exported; the first two hold tables."""
Kind: TypeAlias = Literal["str", "int", "float", "bool", "tuple"]

_DTYPES: Mapping[Kind, tuple[str, str]] = {
    "int": ("int64", "Int64"),
    "float": ("float64", "float64"),
    "bool": ("bool", "boolean"),
    "str": ("string", "string"),
    "tuple": ("object", "object"),
}
"""Without and with missing values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a frame."""

    name: str  # name of the column and of the record's field
    dtype: str  # pandas dtype, as text
    unit: str  # `ns`, `bytes`, `flops`, or empty
    meaning: str  # one sentence
    nullable: bool  # true when a value may be missing
    kind: Kind  # type of a present value
    choices: tuple[str, ...] = ()  # the values allowed, when it is one of a fixed set
    items: tuple[type, ...] = ()  # types of the items, when it is a tuple
    rows: Table | None = None  # the columns of the items, when they are records
    required: bool = False  # true when the record has no default for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One frame: the records of one kind."""

    name: str  # name of the frame and of the capture's field
    record: type[Any]  # the record class
    meaning: str  # one sentence
    columns: tuple[Column, ...]  # the columns, in order


def _without_none(annotation: object) -> tuple[Any, bool]:
    """Return what is left of `X | None`, and whether None was there; a union of other things is left whole."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    members = get_args(annotation)
    rest = tuple(member for member in members if member is not types.NoneType)
    return (rest[0] if len(rest) == 1 else annotation), len(rest) < len(members)


def _column_from_field(spec: Field[Any], annotation: object) -> Column:
    inner, nullable = _without_none(annotation)
    origin = get_origin(inner)
    kind: Kind = "str" if origin is Literal else (origin or inner).__name__
    item = get_args(inner)[0] if origin is tuple else None
    items: tuple[type, ...] = () if item is None else get_args(item) or (item,)  # `int | str` gives both
    return Column(
        name=spec.name,
        dtype=_DTYPES[kind][nullable],
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


TABLES: Mapping[str, Table] = _tables_from_capture()  # every table by name, in the order in which they are shown
SHOWN_TABLES: Mapping[str, Table] = types.MappingProxyType({**TABLES, "actions": table_from_record("actions", r.ActionRow)})
"""What is shown and exported as a table: these, and what is computed from them."""
FIGURES = table_from_record("figures", r.Figures)  # the figures of a capture, as a table of one row


def table_by_name(name: str) -> Table:
    """Look up a table that is shown; the `UsageError` for an unknown name lists those there are."""
    try:
        return SHOWN_TABLES[name]
    except KeyError as err:
        raise UsageError(f"there is no table {name!r}.{near_hint(name, SHOWN_TABLES)} The tables are: {', '.join(SHOWN_TABLES)}") from err


def frame_from_records(table: Table, records: Sequence[Any]) -> pd.DataFrame:
    """Make a frame of records of one kind; columns and dtypes are those of the table, also when there are none."""
    pandas = _pandas()
    series = {column.name: _series(pandas, column, [getattr(record, column.name) for record in records]) for column in table.columns}
    frame: pd.DataFrame = pandas.DataFrame(series)
    return frame


def records_from_frame(frame: pd.DataFrame) -> list[Any]:
    """Make records of the rows of a frame, which may be filtered and sorted, have fewer columns, and columns of its own."""
    names = set(map(str, frame.columns))
    table = max(SHOWN_TABLES.values(), key=lambda table: len(names.intersection(column.name for column in table.columns)))
    missing = dict.fromkeys(column.name for column in table.columns)
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [table.record(**{name: row.get(name) for name in missing}) for row in rows]


def text_frame(columns: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Make a frame of cells that are texts, by heading."""
    frame: pd.DataFrame = _pandas().DataFrame(columns)
    return frame


def _pandas() -> ModuleType:
    try:
        import pandas as pd
    except ImportError as err:
        raise OptionalDependencyError(f"frames need pandas, which cannot be imported ({err}); install it: pip install pandas") from err
    return pd


def _series(pandas: ModuleType, column: Column, values: list[Any]) -> Any:  # noqa: ANN401 - a pandas Series
    if column.kind == "str":
        values = _encodable(values)
    elif column.kind == "tuple":
        values = [value if value is None else tuple(_encodable(value)) for value in values]
    try:
        return pandas.Series(values, dtype=column.dtype)
    except (TypeError, ValueError, OverflowError) as err:
        raise CaptureError(f"column {column.name}: a value does not fit {column.dtype}: {err}") from err


def _encodable(values: Any) -> Any:  # noqa: ANN401 - a list or a tuple of texts, numbers and None
    """Spell lone surrogates out; one pass over the joined text tells that there are none, as nearly always."""
    joined = "".join([value for value in values if isinstance(value, str)])
    if joined.isascii():
        return values
    return [value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value for value in values]


_WORDS = {True: "yes", False: "no"}
_UNMEASURED = "unmeasured: "


def facts_of(capture: Capture) -> dict[str, str]:
    """Name everything that is known about a capture as a whole: its environment, and its figures as text."""
    return {**capture.environment, **dict(_texts(capture.figures))}


def _texts(figures: Figures) -> Iterator[tuple[str, str]]:
    for column in FIGURES.columns:
        value = getattr(figures, column.name)
        is_default = value is None or value == () or (value is False and not column.nullable)
        if column.rows is None and not is_default and column.name != "ledger_walls":  # of which the median is told
            yield column.name, _text(value)
    for peak in figures.peaks:
        what = "bytes" if peak.dtype is None else f"flops_{peak.dtype}"
        where = f"threads_{peak.threads}" if peak.threads else peak.provider.removesuffix("ExecutionProvider").lower()
        yield f"peak_{what}_{where}", _text(peak.per_s)
    for way in figures.ways:
        yield f"bench_{way.way}", _way_text(way)


def _text(value: Any) -> str:  # noqa: ANN401 - any figure
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return _WORDS[value] if isinstance(value, bool) else f"{value:.4g}" if isinstance(value, float) else str(value)


def _way_text(way: SideResult) -> str:
    if way.call_ns is None:
        return f"{_UNMEASURED}{way.note}"[:300]
    low, ratio, high = (1.0 if value is None else value for value in (way.ratio_low, way.ratio, way.ratio_high))
    return f"call_ns={way.call_ns} ratio={ratio:.3f} low={low:.3f} high={high:.3f} {way.verdict}"
