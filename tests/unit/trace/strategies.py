"""Hypothesis strategies for captures, made from the column table, so that a new column is tested at birth."""

import json
import zlib
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ortlens.trace import journal
from ortlens.trace.records import Capture, Record
from ortlens.trace.schema import FIGURES, TABLES, Column, Table

INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1])

# Surrogates included; a high one before a low one is joined, as JSON spells the two alike.
TEXT = st.text(st.characters(exclude_categories=()), max_size=12).map(
    lambda text: text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
) | st.sampled_from(["", "</script><b>", '"\\\n\r\u2028', "\x00", "NaN", "../../etc/passwd", "\udcff", "=1+1", "\u202e"])

_NAMES = st.from_regex(r"[a-z0-9]{1,6}(/[a-z0-9]{1,6}){0,2}\.(onnx|bin)", fullmatch=True)


_ITEMS: dict[type, SearchStrategy[Any]] = {int: INT64, str: TEXT, float: st.floats(allow_nan=False, allow_infinity=False)}


def _values(column: Column) -> SearchStrategy[Any]:
    if column.rows is not None:
        return st.lists(records(column.rows), max_size=2).map(tuple)
    kinds: dict[str, SearchStrategy[Any]] = {
        "str": st.sampled_from(column.choices) if column.choices else TEXT,
        "int": INT64,
        "float": st.floats(),
        "bool": st.booleans(),
        "tuple": st.lists(st.one_of(*(_ITEMS[item] for item in column.items)), max_size=3).map(tuple),
    }
    value = kinds[column.kind]
    return st.none() | value if column.nullable else value


def records(table: Table) -> SearchStrategy[Record]:
    """Records of one table, every field drawn from all that its column may hold."""
    return st.builds(table.record, **{column.name: _values(column) for column in table.columns})


def captures() -> SearchStrategy[Capture]:
    """Whole captures."""
    tables = {name: st.lists(records(table), max_size=3).map(tuple) for name, table in TABLES.items()}
    return st.builds(
        Capture,
        name=TEXT,
        backend=TEXT,
        created=TEXT,
        environment=st.dictionaries(TEXT, TEXT, max_size=3),
        figures=records(FIGURES),
        attachments=st.dictionaries(_NAMES, st.binary(max_size=50), max_size=3),
        **tables,
    )


def _filled(table: Table) -> Any:  # noqa: ANN401 - a record of the table
    """A record with its required fields filled in, texts with the name of the column."""
    fill: dict[str, Any] = {"int": 3, "float": 0.5, "bool": True, "tuple": ("x",)}
    values: dict[str, Any] = {c.name: c.choices[0] if c.choices else fill.get(c.kind, c.name) for c in table.columns if c.required}
    values |= {c.name: (fill[c.items[0].__name__],) for c in table.columns if c.required and c.items and str not in c.items}
    return table.record(**values)


def small_capture() -> Capture:
    """One record in every table, and one attachment."""
    tables: dict[str, Any] = {name: (_filled(table),) for name, table in TABLES.items()}
    return Capture(name="small", environment={"torch": "2.13"}, attachments={"models/m0.onnx": b"onnx" * 50}, **tables)


def entries_in(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """The entries of a journal, each with its bytes unpacked."""
    found, at = [], data.index(b"\n") + 1
    while at < len(data):
        length = int(data[at : at + 8], 16)
        text, _, held = data[at + 18 : at + 18 + length].partition(b"\n")
        entry = json.loads(text)
        found.append((entry, zlib.decompress(held) if entry.pop("size", None) else held))
        at += 18 + length + 1
    return found


def journal_of(entries: Iterable[tuple[Any, bytes]]) -> bytes:
    """A journal of entries, as somebody who knows the format would make it."""
    return journal.SAVED + b"".join(journal.packed_entry(entry, held) if held else journal.framed_entry(entry) for entry, held in entries)
