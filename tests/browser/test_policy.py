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

    from playwright.sync_api import Browser

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


@pytest.mark.parametrize("made", [survey, model, model_without_netron])
@pytest.mark.parametrize("ruled", [True, False])
def test_a_script_in_a_page_does_not_run(
    browser: Browser,
    tmp_path: Path,
    made: Callable[[Path], str],
    ruled: bool,  # noqa: FBT001 - with the rules, and without them, to see that it is they
) -> None:
    text = made(tmp_path)
    assert text.count("Content-Security-Policy") >= 1
    kept = text if ruled else re.sub(r"<meta http-equiv=.Content-Security-Policy. [^>]*>", "", text, count=1)
    file, asked = tmp_path / "page.html", list[str]()
    file.write_text(f"{kept}{PLANTED}", encoding="utf-8")
    page = browser.new_page()
    page.on("response", lambda response: asked.append(response.url) if response.url.startswith("http") else None)
    page.goto(file.as_uri())
    page.wait_for_timeout(300)
    assert (page.title() == "planted") is not ruled
    assert asked == []
    page.close()
