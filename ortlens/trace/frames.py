"""A capture as pandas frames, with the columns and dtypes of the column table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.errors import CaptureError, OptionalDependencyError
from ortlens.trace.schema import Column, Table, table_by_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import pandas as pd

    from ortlens.trace.records import Capture


def frame_from_capture(capture: Capture, table_name: str) -> pd.DataFrame:
    """Make a frame of one table, in the order of recording; columns and dtypes are those of the table, also when it is empty."""
    table = table_by_name(table_name)
    return frame_from_records(table, getattr(capture, table.name))


def frame_from_records(table: Table, records: Sequence[Any]) -> pd.DataFrame:
    """Make a frame of records of one kind; columns and dtypes are those of the table, also when there are none."""
    pandas = _pandas()
    arrays = {column.name: _array(pandas, column, [getattr(record, column.name) for record in records]) for column in table.columns}
    frame: pd.DataFrame = pandas.DataFrame(arrays)
    return frame


def _pandas() -> ModuleType:
    try:
        import pandas as pd
    except ImportError as err:
        raise OptionalDependencyError(f"frames need pandas, which cannot be imported ({err}); install it: pip install pandas") from err
    return pd


def _array(pandas: ModuleType, column: Column, values: list[Any]) -> Any:  # noqa: ANN401 - numpy or pandas, by dtype
    try:
        return _array_of_kind(pandas, column, values)
    except (TypeError, ValueError, OverflowError) as err:
        raise CaptureError(f"column {column.name}: a value does not fit {column.dtype}: {err}") from err


def _array_of_kind(pandas: ModuleType, column: Column, values: list[Any]) -> Any:  # noqa: ANN401 - numpy or pandas, by dtype
    import numpy as np

    if column.kind == "str":
        return pandas.array(_encodable(values), dtype=column.dtype)
    if column.kind == "tuple":
        return _objects([value if value is None else tuple(_encodable(value)) for value in values])
    if column.kind == "float":
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    if column.nullable:
        return pandas.array(values, dtype=column.dtype)
    return np.array(values, dtype=column.dtype)


def _objects(values: list[Any]) -> Any:  # noqa: ANN401 - a numpy array of objects
    import numpy as np

    # np.array() would turn tuples of equal length into a second axis.
    array = np.empty(len(values), dtype=object)
    for position, value in enumerate(values):
        array[position] = value
    return array


def _encodable(values: Any) -> Any:  # noqa: ANN401 - a list or a tuple of texts, numbers and None
    """Spell lone surrogates out; one pass over the joined text tells that there are none, as nearly always."""
    joined = "".join([value for value in values if isinstance(value, str)])
    if joined.isascii():
        return values
    return [value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value for value in values]
