"""Every page that is written but the report, which has a test of its own, in a real browser: a script that got into it does not run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ortlens.analysis.surveyed import SurveyRow
from ortlens.views.netron.frame import netron_view
from ortlens.views.survey_page import survey_page
from tests.browser.page import BROWSER_MARKS
from tests.browser.test_netron import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page

pytestmark = BROWSER_MARKS

PLANTED = (
    "<script>document.title='planted'</script><img src='data:,' onerror=\"document.title='planted'\">"
    "<svg onload=\"document.title='planted'\"></svg><img src='https://example.invalid/x.png'>"
)


def survey(folder: Path) -> str:
    rows = [SurveyRow(case="a", status="failed", reason="b")]
    return survey_page(rows, lambda _: None, title="All", folder=folder)


def model(folder: Path) -> str:
    return netron_view(MODELS, "p0", optimized=False).save(folder / "m.html").read_text(encoding="utf-8")


def model_without_netron(folder: Path) -> str:
    view = replace(netron_view(MODELS, "p0", optimized=False), viewer=None, trouble="none")
    return view.save(folder / "m.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("made", "ruled"), [(survey, True), (model, True), (model_without_netron, True), (survey, False)])
def test_a_script_in_a_page_does_not_run(
    opened: Callable[..., Page],
    tmp_path: Path,
    made: Callable[[Path], str],
    ruled: bool,  # noqa: FBT001 - with the rules, and once without them, to see that it is they
) -> None:
    text, heard = made(tmp_path), list[str]()
    assert text.count("Content-Security-Policy") >= 1
    kept = text if ruled else re.sub(r"<meta http-equiv=.Content-Security-Policy. [^>]*>", "", text, count=1)
    page = opened(f"{kept}{PLANTED}", heard=heard)
    page.wait_for_timeout(300)
    assert (page.title() == "planted") is not ruled
    reached = {line.split()[1] for line in heard if line.startswith("request: http")}
    assert reached == {line.split()[1] for line in heard if line.startswith("refused: http")}
