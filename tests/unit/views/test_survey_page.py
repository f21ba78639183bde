"""The page of a survey: all that is shown is escaped, every case is there, and nothing is loaded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from ortlens.analysis.answers.overview import SurveyRow, figures_of
from ortlens.views.survey_page import survey_page
from tests.unit.views.elements import Elements
from tests.unit.views.sample_captures import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

    from ortlens.trace.records import Capture

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u202e\x00"\'&'


def good(name: str, capture: Capture, folder: Path) -> SurveyRow:
    figures = figures_of(capture)
    return SurveyRow(
        case=name, status="ok", capture=str(folder / name / "capture.ortlens"), report=str(folder / name / "r 1.html"), **figures
    )


@pytest.mark.parametrize("sample", ["empty", "demo_like", "foreign", "hostile"])
def test_every_capture_makes_a_row_and_a_part(sample: str, tmp_path: Path) -> None:
    page = survey_page([good("a", SAMPLES[sample], tmp_path)], lambda _: SAMPLES[sample], title="All", folder=tmp_path)
    assert Elements(page).tags.count("tbody") >= 1
    assert page.count('<tr class="os-row">') == page.count('<tr class="os-detail">') == 1
    assert 'class="ortlens-summary"' in page


def test_hostile_names_reasons_and_logs_are_text(tmp_path: Path) -> None:
    rows = [
        SurveyRow(
            case=HOSTILE, status="failed", reason=HOSTILE, log=HOSTILE, options=HOSTILE, backend=HOSTILE, host=HOSTILE, finding=HOSTILE
        ),
        SurveyRow(case="plain", status="ok", fallbacks=(HOSTILE,), report=str(tmp_path / HOSTILE.replace("/", "").replace("\x00", ""))),
    ]
    page = survey_page(rows, lambda _: None, title=HOSTILE, folder=tmp_path)
    tags = Elements(page)
    assert tags.tags.count("script") == 1
    assert "img" not in tags.tags
    assert not [name for name in tags.attributes if name.startswith("on")]
    assert "\u202e" not in page
    assert "\x00" not in page


def test_links_are_relative_and_quoted_and_nothing_is_loaded(tmp_path: Path) -> None:
    page = survey_page([good("a", SAMPLES["demo_like"], tmp_path)], lambda _: SAMPLES["demo_like"], title="All", folder=tmp_path)
    tags = Elements(page)
    assert tags.values("href", "src", "srcset", "action") == ["a/r%201.html", "a/capture.ortlens"]
    assert {"link", "iframe", "object", "embed"}.isdisjoint(tags.tags)
    assert "default-src 'none'" in page
    assert not re.search(r"https?://(?!www\.w3\.org)", page)


def test_columns_without_content_are_left_out(tmp_path: Path) -> None:
    rows = [SurveyRow(case="a", status="ok", ratio=0.5), SurveyRow(case="b", status="ok", wrong=1, max_abs=0.1)]
    page = survey_page(rows, lambda _: None, title="Mine", folder=tmp_path)
    assert 'data-label="options"' not in page
    assert 'data-label="backend"' not in page
    assert 'data-label="max_abs"' in page
    assert survey_page([], lambda _: None, title="None", folder=tmp_path).startswith("<!doctype html>")
