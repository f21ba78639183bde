"""A survey as one self-contained page: a table of all cases to filter and sort, and below each row what is known of it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from ortlens.analysis.answers.overview import overview_of
from ortlens.analysis.numbers import numbers_of
from ortlens.analysis.speed import WORTH_APART, verdict_of_ratio
from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.html import answers_of
from ortlens.views.markup import asset, page_html
from ortlens.views.tables import answer_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.analysis.answers.surveyed import SurveyRow, SurveyStatus
    from ortlens.trace.records import Capture

_WORDS: Mapping[SurveyStatus, str] = {
    "ok": "ok",
    "failed": "failed",
    "crashed": "crashed",
    "timeout": "time limit",
    "memory": "memory limit",
    "lost": "lost",
}
_MAX_LOG = 4_000


class _Cell(NamedTuple):
    """A cell: what it shows, by what it is sorted, and its class."""

    text: str
    value: object = None
    look: str = ""


def survey_page(rows: Sequence[SurveyRow], capture_of: Callable[[SurveyRow], Capture | None], *, title: str, folder: Path) -> str:
    """Make a page that loads nothing; names and reasons may hold anything, and without JavaScript everything is unfolded.

    `folder` is where the page will be: links to reports are relative to it.
    """
    columns = _columns(rows)
    looks = {name: cell.look.split()[0] for name, cell in _cells_of(rows[0]).items() if cell.look} if rows else {}
    counts = Counter(row.status for row in rows)
    return page_html(
        "survey.html",
        title,
        styles=(asset("summary.css"), asset("survey.css")),
        scripts=(asset("survey.js"),),
        verdict=_verdict(rows),
        about=_about(rows),
        chips=[(status, words, counts[status]) for status, words in _WORDS.items() if counts[status]],
        columns=[(name, looks.get(name, "")) for name in columns],
        cases=[_case(row, columns, capture_of(row), folder) for row in rows],
    )


def _verdict(rows: Sequence[SurveyRow]) -> str:
    counts = Counter(row.status for row in rows)
    parts = [f"{counts['ok']} of {counted(len(rows), 'case')} {'has' if len(rows) == 1 else 'have'} a result"]
    parts += [f"{counts[status]} {words}" for status, words in _WORDS.items() if status != "ok" and counts[status]]
    return "; ".join(parts)


def _about(rows: Sequence[SurveyRow]) -> str:
    whole = sum(row.status == "ok" and row.coverage == 1 and row.partitions == 1 and not row.breaks for row in rows)
    timed = [row.ratio for row in rows if row.ratio is not None]
    facts = [f"{whole} run as a single partition", f"{sum(bool(row.breaks) for row in rows)} have graph breaks"]
    if timed:
        verdicts = Counter(verdict_of_ratio(ratio, WORTH_APART) for ratio in timed)
        facts.append(f"of {len(timed)} that were timed, {verdicts['faster']} are faster than PyTorch and {verdicts['slower']} slower")
    if wrong := sum(bool(row.wrong) for row in rows):
        facts.append(f"{wrong} give different results")
    return "; ".join(facts)


def _columns(rows: Sequence[SurveyRow]) -> list[str]:
    names = list(_cells_of(rows[0])) if rows else ["case"]
    empty = {"options": not any(row.options for row in rows), "backend": len({row.backend for row in rows}) < 2}  # noqa: PLR2004 - all the same
    empty["max error"] = all(row.max_abs is None for row in rows)
    return [name for name in names if not empty.get(name)]


def _cells_of(row: SurveyRow) -> dict[str, _Cell]:
    words = row.reason or row.finding or ""
    error = "" if row.max_abs is None else f"{row.max_abs:.1e}"
    return {
        "case": _Cell(row.case, row.case.lower(), "os-case"),
        "options": _Cell(row.options or "default", row.options, "os-code"),
        "backend": _Cell(row.backend, row.backend),
        "status": _Cell(_WORDS[row.status], list(_WORDS).index(row.status)),
        "in ONNX Runtime": _Cell("" if row.coverage is None else percent(row.coverage), row.coverage, "os-number"),
        "partitions": _number(row.partitions),
        "breaks": _number(row.breaks),
        "recompiles": _number(row.recompiles),
        "per call": _time(row.call_ns),
        "times PyTorch": _ratio(row),
        "compile": _time(row.compile_ns),
        "max error": _Cell(error, row.max_abs, "os-number os-slower" if row.wrong else "os-number"),
        "first finding or reason": _Cell(words, words.lower(), "os-words"),
    }


def _number(value: int | None) -> _Cell:
    return _Cell("" if value is None else f"{value:,}", value, "os-number")


def _time(ns: int | None) -> _Cell:
    return _Cell("" if not ns else time_from_ns(ns), ns, "os-number")


def _ratio(row: SurveyRow) -> _Cell:
    if row.ratio is None:
        return _Cell("", None, "os-number")
    look = {"faster": " os-faster", "slower": " os-slower"}.get(verdict_of_ratio(row.ratio, WORTH_APART), "")
    return _Cell(f"{row.ratio:.2f}", row.ratio, f"os-number{look}")


def _case(row: SurveyRow, columns: Sequence[str], capture: Capture | None, folder: Path) -> dict[str, Any]:
    known = _cells_of(row)
    links = [(path, words) for path, words in ((row.report, "Full report"), (row.capture, "Capture")) if path]
    facts = [time_from_ns(row.case_ns) + " in its process" if row.case_ns else ""]
    facts += [f"{size_from_bytes(row.peak_bytes)} of memory" if row.peak_bytes else "", f"on {row.host}" if row.host else ""]
    facts += ["from an earlier run" if row.kept else ""]
    overview = None if capture is None else overview_of(capture)
    return {
        "row": row,
        "status": _WORDS[row.status],
        "cells": [(name, known[name]) for name in columns],
        "text": " ".join([row.case, row.options, row.backend, row.status, row.reason, row.finding or "", *row.fallbacks]).lower(),
        "links": [(quote(Path(os.path.relpath(path, folder)).as_posix()), words) for path, words in links],
        "facts": [fact for fact in facts if fact],
        "answers": None if capture is None or overview is None else answers_of(overview, numbers_of(capture)),
        "tables": () if overview is None else answer_tables(overview),
        "log": row.log[-_MAX_LOG:].splitlines(),
    }
