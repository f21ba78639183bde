"""Every page that is written, in a real browser: a script that got into it does not run."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page

from ortlens.analysis.answers.overview import SurveyRow
from ortlens.views.netron import netron_view
from ortlens.views.report import report_page
from ortlens.views.survey_page import survey_page
from tests.browser.page import BROWSER_MARKS
from tests.browser.test_netron import MODELS
from tests.recorded import recorded

pytestmark = BROWSER_MARKS

PLANTED = (
    "<script>document.documentElement.dataset.planted='inline'</script>"
    "<img src='data:,' onerror=\"document.documentElement.dataset.planted='handler'\">"
    "<svg onload=\"document.documentElement.dataset.planted='svg'\"></svg>"
    "<a href=\"javascript:document.documentElement.dataset.planted='link'\" id='planted'>x</a>"
    "<script src='https://example.invalid/x.js'></script><img src='https://example.invalid/x.png'>"
    "<link rel='stylesheet' href='https://example.invalid/x.css'>"
    "<iframe srcdoc=\"<script>parent.document.documentElement.dataset.planted='frame'</script>\"></iframe><form action='https://example.invalid/'></form>"
)


def survey(folder: Path) -> str:
    rows = [SurveyRow(case="a", status="failed", reason="b")]
    return survey_page(rows, lambda _: None, title="All", folder=folder)


def model(folder: Path) -> str:
    return netron_view(MODELS, "p0", optimized=False).save(folder / "m.html").read_text(encoding="utf-8")


def model_without_netron(folder: Path) -> str:
    view = replace(netron_view(MODELS, "p0", optimized=False), viewer=None, trouble="none")
    return view.save(folder / "m.html").read_text(encoding="utf-8")


def report(_: Path) -> str:
    return report_page(recorded("pieces"))


@pytest.mark.parametrize("made", [survey, model, model_without_netron, report])
def test_a_script_in_a_page_does_not_run(opened: Callable[..., Page], tmp_path: Path, made: Callable[[Path], str]) -> None:
    text = f"{made(tmp_path)}{PLANTED}"
    heard: list[str] = []
    page = opened(text, heard=heard, frames=True)
    page.evaluate("document.getElementById('planted').click()")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.dataset.planted ?? null") is None
    assert sum("Content Security Policy" in message for message in heard) >= 6
    asked = {line.split()[1] for line in heard if line.startswith("request: http")}
    assert asked == {line.split()[1] for line in heard if line.startswith("refused: http") and line.endswith(" csp")}
    without = re.sub(r"<meta http-equiv=.Content-Security-Policy. [^>]*>", "", text, count=1)  # it is the rules that keep it from running
    assert opened(without, heard=[], frames=True).evaluate("document.documentElement.dataset.planted ?? null") is not None
