"""The page of a survey in a real browser: filtered, sorted and unfolded, with names that are markup."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page

from ortlens.analysis.answers.overview import SurveyRow
from ortlens.views.survey_page import survey_page
from tests.browser.page import BROWSER_MARKS
from tests.recorded import recorded

pytestmark = BROWSER_MARKS

PIECES = recorded("pieces")
HOSTILE = "<img src=x onerror=alert(1)>"
ROWS = (
    SurveyRow(case="slow", status="ok", call_ns=9_000_000, eager_ns=3_000_000, ratio=3.0),
    SurveyRow(case="fast", status="ok", call_ns=1_000_000, eager_ns=3_000_000, ratio=1 / 3),
    SurveyRow(case=HOSTILE, status="crashed", reason="SIGSEGV (segmentation fault) while compiling"),
)


def cases(page: Page) -> list[str]:
    return [row.split("\n")[0].split("\t")[0].strip() for row in page.locator(".os-table tbody:visible > tr:first-child").all_inner_texts()]


def test_cases_are_filtered_sorted_and_unfolded(opened: Callable[..., Page], tmp_path: Path) -> None:
    page = opened(survey_page(ROWS, lambda row: PIECES if row.case == "slow" else None, title="Models", folder=tmp_path))
    assert len(cases(page)) == 3
    page.fill("#os-filter", "sigsegv")
    assert [HOSTILE in case for case in cases(page)] == [True]
    assert page.inner_text("#os-count") == "1 of 3"
    page.fill("#os-filter", "no such thing")
    assert page.locator("#os-none").is_visible()
    page.fill("#os-filter", "")
    page.locator(".os-chip input[value=ok]").uncheck()
    assert [HOSTILE in case for case in cases(page)] == [True]
    page.locator(".os-chip input[value=ok]").check()
    page.locator(".os-table > thead button", has_text="ratio").click()
    first = page.locator(".os-table tbody").first
    assert "fast" in first.inner_text()
    slow = page.locator(".os-table tbody", has_text="slow").first
    assert slow.locator("> tr").nth(1).is_hidden()
    slow.locator(".os-open").click()
    assert "5 graph breaks" in slow.locator("> tr").nth(1).inner_text()
    assert slow.locator(".os-open").get_attribute("aria-expanded") == "true"
