"""A survey as one self-contained page: a table of all cases to filter and sort, and below each row what is known of it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from ortlens.analysis.numbers import numbers_of
from ortlens.analysis.overview import overview_of
from ortlens.analysis.speed import WORTH_APART, verdict_of_ratio
from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.answers import answer_tables
from ortlens.views.html import answers_html
from ortlens.views.policy import policy
from ortlens.views.report.write import MARK
from ortlens.views.static_table import safe, table_html
from ortlens.views.style import CSS as SUMMARY_CSS
from ortlens.views.survey_style import CSS, SCRIPT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ortlens.analysis.surveyed import SurveyRow, SurveyStatus
    from ortlens.trace.records import Capture

_WORDS: Mapping[SurveyStatus, str] = {
    "ok": "ok",
    "failed": "failed",
    "crashed": "crashed",
    "timeout": "time limit",
    "memory": "memory limit",
    "lost": "lost",
}
_MAX_TABLE_BYTES = 4_000
_MAX_WORDS = 400
_MAX_LOG = 4_000


class _Cell(NamedTuple):
    """A cell: what it shows, by what it is sorted, its class, and whether the text is HTML already."""

    text: str
    value: object = None
    look: str = ""
    markup: bool = False


def survey_page(rows: Sequence[SurveyRow], capture_of: Callable[[SurveyRow], Capture | None], *, title: str, folder: Path) -> str:
    """Make a page that loads nothing; names and reasons may hold anything, and without JavaScript everything is unfolded.

    `folder` is where the page will be: links to reports are relative to it.
    """
    columns = _columns(rows)
    looks = {name: cell.look.split()[0] for name, cell in _cells_of(rows[0]).items() if cell.look} if rows else {}
    heads = "".join(_heading(name, number, looks.get(name, "")) for number, name in enumerate(columns))
    options = "".join(f'<option value="{number}">{safe(name)}</option>' for number, name in enumerate(columns))
    bodies = "".join(_body(row, columns, capture_of(row), folder) for row in rows)
    head = [
        '<meta charset="utf-8">',
        MARK,
        f'<meta http-equiv="Content-Security-Policy" content="{policy((SCRIPT,))}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{safe(title)}</title>",
        f"<style>{SUMMARY_CSS}</style><style>{CSS}</style>",
    ]
    body = (
        f'<header><h1>{safe(title)}</h1><p class="os-verdict">{_verdict(rows)}</p><p class="os-about">{_about(rows)}</p></header>\n'
        f'<form class="os-tools" role="search" hidden><input type="search" id="os-filter" placeholder="Filter by name, option, operator, '
        f'reason" aria-label="Filter">{_chips(rows)}<label class="os-by">Sort by <select id="os-sort"><option value="">as given</option>'
        f'{options}</select></label><output id="os-count"></output></form>\n'
        f'<main><table class="os-table"><thead><tr>{heads}</tr></thead>\n{bodies}</table>'
        f'<p id="os-none" hidden>No case matches the filter.</p></main>\n<script>{SCRIPT}</script>'
    )
    return '<!doctype html>\n<html lang="en">\n<head>\n' + "\n".join(head) + f"\n</head>\n<body>\n{body}\n</body>\n</html>\n"


def _verdict(rows: Sequence[SurveyRow]) -> str:
    counts = Counter(row.status for row in rows)
    parts = [f"{counts['ok']} of {counted(len(rows), 'case')} {'has' if len(rows) == 1 else 'have'} a result"]
    parts += [f"{counts[status]} {words}" for status, words in _WORDS.items() if status != "ok" and counts[status]]
    return safe("; ".join(parts))


def _about(rows: Sequence[SurveyRow]) -> str:
    whole = sum(row.status == "ok" and row.coverage == 1 and row.partitions == 1 and not row.breaks for row in rows)
    timed = [row.ratio for row in rows if row.ratio is not None]
    facts = [f"{whole} run as a single partition", f"{sum(bool(row.breaks) for row in rows)} have graph breaks"]
    if timed:
        verdicts = Counter(verdict_of_ratio(ratio, WORTH_APART) for ratio in timed)
        facts.append(f"of {len(timed)} that were timed, {verdicts['faster']} are faster than PyTorch and {verdicts['slower']} slower")
    if wrong := sum(bool(row.wrong) for row in rows):
        facts.append(f"{wrong} give different results")
    return safe("; ".join(facts), _MAX_WORDS)


def _chips(rows: Sequence[SurveyRow]) -> str:
    counts = Counter(row.status for row in rows)
    chips = (
        f'<label class="os-chip"><input type="checkbox" value="{status}" checked> {words} <b>{counts[status]}</b></label>'
        for status, words in _WORDS.items()
        if counts[status]
    )
    return f'<span class="os-chips">{"".join(chips)}</span>'


def _heading(name: str, number: int, look: str) -> str:
    return f'<th scope="col" aria-sort="none" class="{look}"><button type="button" data-column="{number}">{safe(name)}</button></th>'


def _columns(rows: Sequence[SurveyRow]) -> list[str]:
    names = list(_cells_of(rows[0])) if rows else ["case"]
    empty = {"options": not any(row.options for row in rows), "backend": len({row.backend for row in rows}) < 2}  # noqa: PLR2004 - all the same
    empty["max error"] = all(row.max_abs is None for row in rows)
    return [name for name in names if not empty.get(name)]


def _cells_of(row: SurveyRow) -> dict[str, _Cell]:
    said = row.reason or row.finding or ""
    name = f'<button type="button" class="os-open" aria-expanded="true">{safe(row.case)}</button>'
    status = f'<span class="os-status os-{row.status}">{_WORDS[row.status]}</span>'
    error = "" if row.max_abs is None else f"{row.max_abs:.1e}"
    return {
        "case": _Cell(name, row.case.lower(), "os-case", markup=True),
        "options": _Cell(row.options or "default", row.options, "os-code"),
        "backend": _Cell(row.backend, row.backend),
        "status": _Cell(status, list(_WORDS).index(row.status), markup=True),
        "in ONNX Runtime": _coverage(row),
        "partitions": _number(row.partitions),
        "breaks": _number(row.breaks),
        "recompiles": _number(row.recompiles),
        "per call": _time(row.call_ns),
        "times PyTorch": _ratio(row),
        "compile": _time(row.compile_ns),
        "max error": _Cell(error, row.max_abs, "os-number" + (" os-slower" if row.wrong else "")),
        "first finding or reason": _Cell(f"<div>{safe(said, _MAX_WORDS)}</div>" if said else "", said.lower(), "os-words", markup=True),
    }


def _number(value: int | None) -> _Cell:
    return _Cell("" if value is None else f"{value:,}", value, "os-number")


def _time(ns: int | None) -> _Cell:
    return _Cell("" if not ns else time_from_ns(ns), ns, "os-number")


def _coverage(row: SurveyRow) -> _Cell:
    if row.coverage is None:
        return _Cell("", None, "os-number")
    bar = f'<span class="os-bar" aria-hidden="true"><span style="width:{int(row.coverage * 1000) / 10:.1f}%"></span></span>'
    return _Cell(f"{bar}{percent(row.coverage)}", row.coverage, "os-number", markup=True)


def _ratio(row: SurveyRow) -> _Cell:
    if row.ratio is None:
        return _Cell("", None, "os-number")
    look = {"faster": " os-faster", "slower": " os-slower"}.get(verdict_of_ratio(row.ratio, WORTH_APART), "")
    return _Cell(f"{row.ratio:.2f}", row.ratio, f"os-number{look}")


def _body(row: SurveyRow, columns: Sequence[str], capture: Capture | None, folder: Path) -> str:
    known = _cells_of(row)
    cells = "".join(_td(name, known[name]) for name in columns)
    text = " ".join([row.case, row.options, row.backend, row.status, row.reason, row.finding or "", *row.fallbacks]).lower()
    detail = "".join(_detail(row, capture, folder))
    return (
        f'<tbody data-status="{row.status}" data-text="{safe(text, 2000)}"><tr class="os-row">{cells}</tr>'
        f'<tr class="os-detail"><td colspan="{len(columns)}">{detail}</td></tr></tbody>\n'
    )


def _td(name: str, cell: _Cell) -> str:
    shown = cell.text if cell.markup else safe(cell.text, _MAX_WORDS)
    value = "" if cell.value is None else f' data-value="{safe(str(cell.value))}"'
    look = f' class="{cell.look}"' if cell.look else ""
    return f'<td data-label="{safe(name)}"{look}{value}>{shown}</td>'


def _detail(row: SurveyRow, capture: Capture | None, folder: Path) -> Iterator[str]:
    if row.reason:
        yield f'<p class="os-reason" role="note"><strong>{safe(_WORDS[row.status].capitalize())}:</strong> {safe(row.reason, 1000)}</p>'
    links = [_link(path, words, folder) for path, words in ((row.report, "Full report"), (row.capture, "Capture")) if path]
    facts = [time_from_ns(row.case_ns) + " in its process" if row.case_ns else ""]
    facts += [f"{size_from_bytes(row.peak_bytes)} of memory" if row.peak_bytes else "", f"on {row.host}" if row.host else ""]
    facts += ["from an earlier run" if row.kept else ""]
    yield f'<p class="os-facts">{" · ".join([*links, *(safe(fact) for fact in facts if fact)])}</p>'
    if capture is not None:
        if row.status != "ok":
            yield "<p>What was recorded until then:</p>"
        overview = overview_of(capture)
        tables = "".join(table_html(table, max_bytes=_MAX_TABLE_BYTES) for table in answer_tables(overview))
        yield f'<div class="ortlens-summary">{answers_html(overview, numbers_of(capture))}{tables}</div>'
    if row.log:
        yield f"<p>Last lines printed:</p><pre>{_log(row.log)}</pre>"


def _link(path: str, words: str, folder: Path) -> str:
    relative = quote(Path(os.path.relpath(path, folder)).as_posix())
    return f'<a href="{safe(relative, 1000)}">{words}</a>'


def _log(text: str) -> str:
    return "\n".join(safe(line, 1000) for line in text[-_MAX_LOG:].splitlines())
