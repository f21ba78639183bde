"""The report in a real browser, from a file: with JavaScript and without, by keyboard, light and dark, on paper, and under attack."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import go
from tests.recorded import recorded
from tests.unit.views.sample_captures import SAMPLES

pytestmark = BROWSER_MARKS

PIECES = recorded("pieces")
PARTS = ("summary", "optimised", "tables", "environment", "measured")
_COLOUR = "(find) => getComputedStyle(document.querySelector(find[0]))[find[1]]"


def unfolded(page: Page) -> list[str]:
    found: list[str] = page.eval_on_selector_all("details.or-part[open]", "parts => parts.map((part) => part.id)")
    return found


def brightness(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_explorer_is_on_top_the_rest_folded_below_and_nothing_sticks_out(report: Callable[..., Page], scheme: str) -> None:
    page = report(PIECES, color_scheme=scheme)
    assert unfolded(page) == []
    explorer, first = page.locator(".or-explorer").bounding_box(), page.locator("#summary").bounding_box()
    assert explorer is not None
    assert first is not None
    assert explorer["height"] > 500
    assert first["y"] >= explorer["y"] + explorer["height"]
    for name in (".or-verdict", "#summary h2", "#tables td"):
        assert (brightness(page.evaluate(_COLOUR, [name, "color"])) > 128) == (scheme == "dark"), name
    assert (brightness(page.evaluate(_COLOUR, ["body", "backgroundColor"])) > 128) == (scheme == "light")
    page.eval_on_selector_all("details.or-part", "parts => parts.forEach((part) => { part.open = true; })")
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_whole_page_by_keyboard(report: Callable[..., Page]) -> None:
    page = report(PIECES)
    seen: list[str] = []
    for _ in range(80):
        page.keyboard.press("Tab")
        at = page.evaluate(
            "document.activeElement.dataset.tab ?? document.activeElement.closest('details.or-part > summary')?.parentNode.id ?? ''"
        )
        if at and at not in seen:
            seen.append(at)
        if at == "overview":
            page.keyboard.press("End")  # from tab to tab by arrows; Tab goes on to the panel
            page.keyboard.press("Home")
        if at == "summary":
            page.keyboard.press("Enter")
        if at == "measured":
            break
    assert seen == ["overview", *PARTS]
    assert unfolded(page) == ["summary"]


def test_the_page_takes_the_theme_of_the_explorer(report: Callable[..., Page]) -> None:
    page = report(PIECES, color_scheme="light")
    shades = []
    for _ in range(3):
        page.click(".ol-theme")
        shades.append(brightness(page.evaluate(_COLOUR, ["body", "backgroundColor"])) > 128)
    assert shades == [True, False, True]  # light, dark, as the system


def test_without_javascript_all_of_it_can_be_read(report: Callable[..., Page]) -> None:
    page = report(PIECES, java_script_enabled=False)
    assert not page.locator(".or-explorer").is_visible()
    assert page.locator("noscript").inner_text().startswith("The interactive explorer needs JavaScript")
    assert page.locator("details.or-part[open]").count() == len(PARTS)
    assert page.locator("#tables table").count() == 12


def test_on_paper_there_is_no_explorer_and_nothing_is_folded(report: Callable[..., Page]) -> None:
    page = report(PIECES, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator(".or-explorer").is_visible()
    for part in PARTS:
        shown = page.locator(f"#{part} > :not(summary):not(script)").first
        assert shown.is_visible(), part
        box = shown.bounding_box()
        assert box is not None
        assert box["height"] > 10, part
    page.set_viewport_size({"width": 688, "height": 1000})  # a page of A4 between its margins
    assert (
        page.evaluate("[...document.querySelectorAll('main *')].filter((one) => one.getBoundingClientRect().right > innerWidth + 1).length")
        == 0
    )
    assert brightness(page.evaluate(_COLOUR, ["#tables td", "color"])) < 100
    page.emulate_media(media="screen")
    paper = page.pdf(format="A4")
    assert 3 <= len(re.findall(rb"/Type /Page\b", paper)) <= 20
    assert unfolded(page) == []  # as before printing


def test_hostile_names_stay_names(report: Callable[..., Page]) -> None:
    page = report(SAMPLES["hostile"])
    assert page.query_selector("img") is None
    assert "<img src=x onerror=alert(1)>" in page.inner_text("h1")
    go(page, "tables")
    assert page.query_selector("img") is None


def test_damaged_data_unfolds_the_text(report: Callable[..., Page]) -> None:
    said: list[str] = []
    page = report(PIECES, edit=lambda text: text.replace('id="ortlens-data">', 'id="ortlens-data">AAAA'), heard=said)
    page.wait_for_selector("[role=alert]")
    assert "could not start" in page.inner_text("[role=alert]")
    assert set(unfolded(page)) == set(PARTS)
    assert "46 of 51 operators" in page.inner_text("main")
