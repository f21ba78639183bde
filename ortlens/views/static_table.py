"""Tables as plain HTML, for notebooks and the report: bounded, and saying what they leave out."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from ortlens.units import counted
from ortlens.views.wording import clipped

MAX_ROWS = 12
"""Rows of a table in a notebook."""

MAX_BYTES = 7_500
"""Bytes of the rows of one table in a notebook; six tables and the frame stay below 60 kB."""

_MAX_CELL = 120
_MAX_WORDS = 240  # cells of words, where a cut sentence would be useless
_KEPT_WHOLE = 50  # shorter places and operators stay on one line
_MAX_TEXT = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticTable:
    """A table whose cells are texts already.

    Attributes:
        title: Its name.
        help: What it shows and what to do with it, in a line.
        source: Frame that holds all of it.
        total: Rows that there are.
        head: Names of the columns.
        rows: Text of the cells, of the first rows only: a huge capture must not make looking at it slow.
        numbers: Columns set to the right.
        code: Columns set as code.
        words: Columns of sentences.
        whole: Columns of short names that are not to be wrapped.
    """

    title: str
    help: str
    source: str
    total: int
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()
    code: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset({"reason", "hint", "what", "what to do"})
    whole: frozenset[str] = frozenset({"id", "where", "operator"})


def safe(text: str, width: int = _MAX_TEXT) -> str:
    """Cut text, write control characters out and escape markup: it is harmless in HTML, within tags and in attributes."""
    return escape(clipped(text, width), quote=True)


def table_html(table: StaticTable, *, max_bytes: int = MAX_BYTES) -> str:
    """Write a table; rows beyond `max_bytes` are left out, and counted in the caption."""
    body: list[str] = []
    size = 0
    for row in table.rows:
        html = _row(table, row)
        size += len(html.encode())
        if size > max_bytes:
            break
        body.append(html)
    head = "".join(f'<th scope="col"{_style(table, name)}>{safe(name)}</th>' for name in table.head)
    caption = f"<caption><strong>{safe(table.title)}</strong> {safe(table.help)}{_more(table, len(body))}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _row(table: StaticTable, row: tuple[str, ...]) -> str:
    return f"<tr>{''.join(_cell(table, name, text) for name, text in zip(table.head, row, strict=True))}</tr>"


def _cell(table: StaticTable, name: str, text: str) -> str:
    shown = safe(text, _MAX_WORDS if name in table.words else _MAX_CELL)
    code = f"<code>{shown}</code>" if name in table.code and shown else shown
    whole = ' class="ol-whole"' if name in table.whole and len(text) <= _KEPT_WHOLE else ""
    return f"<td{_style(table, name) or whole}>{code}</td>"


def _style(table: StaticTable, name: str) -> str:
    return ' class="ol-number"' if name in table.numbers else ""


def _more(table: StaticTable, shown: int) -> str:
    left = table.total - shown
    return f" {counted(left, 'more row')} in <code>.{table.source}</code>." if left else ""
