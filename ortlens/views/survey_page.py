"""A survey as one self-contained page: a table of all cases to filter and sort, and below each row what is known of it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ortlens.analysis.speed import WORTH_APART, verdict_of_ratio
from ortlens.units import counted, size_from_bytes, time_from_ns
from ortlens.views.markup import asset, page_html
from ortlens.views.screen import capture_screen
from ortlens.views.table import shown_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.analysis.answers.overview import SurveyRow
    from ortlens.trace.records import Capture
    from ortlens.views.table import ShownColumn

_MAX_LOG = 4_000


def survey_page(rows: Sequence[SurveyRow], capture_of: Callable[[SurveyRow], Capture | None], *, title: str, folder: Path) -> str:
    """Make a page that loads nothing; names and reasons may hold anything, and without JavaScript everything is unfolded.

    `folder` is where the page will be: links to reports are relative to it.
    """
    columns = [column for column in shown_columns(rows) if column.name != "backend" or len(set(column.cells)) > 1]
    cells = list(zip(*(column.cells for column in columns), strict=True))
    counts = Counter(row.status for row in rows)
    return page_html(
        "survey.html",
        title,
        styles=(asset("summary.css"), asset("survey.css")),
        scripts=(asset("survey.js"),),
        verdict=_verdict(rows),
        about=_about(rows),
        chips=list(counts.items()),
        columns=columns,
        cases=[_case(row, list(zip(columns, texts, strict=True)), capture_of(row), folder) for row, texts in zip(rows, cells, strict=True)],
    )


def _verdict(rows: Sequence[SurveyRow]) -> str:
    counts = Counter(row.status for row in rows)
    parts = [f"{counts['ok']} of {counted(len(rows), 'case')} {'has' if len(rows) == 1 else 'have'} a result"]
    parts += [f"{count} {status}" for status, count in counts.items() if status != "ok"]
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


def _case(row: SurveyRow, cells: Sequence[tuple[ShownColumn, str]], capture: Capture | None, folder: Path) -> dict[str, Any]:
    links = [(path, words) for path, words in ((row.report, "Full report"), (row.capture, "Capture")) if path]
    facts = [time_from_ns(row.case_ns) + " in its process" if row.case_ns else ""]
    facts += [f"{size_from_bytes(row.peak_bytes)} of memory" if row.peak_bytes else "", f"on {row.host}" if row.host else ""]
    facts += ["from an earlier run" if row.kept else ""]
    pace = "same" if row.ratio is None else verdict_of_ratio(row.ratio, WORTH_APART)
    return {
        "row": row,
        "cells": [(column, text, getattr(row, column.name)) for column, text in cells],
        "looks": {"ratio": f"os-{pace}", "max_abs": "os-slower" if row.wrong else ""},
        "text": " ".join([row.case, row.options, row.backend, row.status, row.reason, row.finding or "", *row.fallbacks]).lower(),
        "links": [(quote(Path(os.path.relpath(path, folder)).as_posix()), words) for path, words in links],
        "facts": [fact for fact in facts if fact],
        "screen": None if capture is None else capture_screen(capture),
        "log": row.log[-_MAX_LOG:].splitlines(),
    }
