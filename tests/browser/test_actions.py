"""The list of actions, the command palette and the address, in a real browser."""

from collections.abc import Callable

from playwright.sync_api import Browser, Page

from ortlens.units import time_from_ns
from tests.browser.page import BROWSER_MARKS, WIDE
from tests.browser.walk import go, selected, settled
from tests.recorded import recorded

pytestmark = BROWSER_MARKS

TWELVE = recorded("twelve")
_REFUSED = "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed')); }"


def tab(page: Page) -> str | None:
    return page.get_attribute("[role=tab][aria-selected=true]", "data-tab")


def test_actions_are_ranked_lead_to_their_line_and_are_copied(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    page.click(".ol-card-first button:text-is('All 7 actions')")
    assert tab(page) == "actions"
    cards = page.locator(".ol-action")
    assert cards.count() == 7  # two operators and five breaks, of which what entering costs is a part
    spent = sum(row.call_ns or 0 for row in TWELVE.fallbacks if row.target == "prims.bessel_j0.default")
    assert f"takes {time_from_ns(spent)} per call in PyTorch" in cards.first.inner_text()
    assert "● measured" in cards.first.inner_text()
    cards.first.locator("h4 .ol-link").click()
    assert "record.py:106" in selected(page)
    assert cards.first.get_attribute("aria-current") == "true"

    page.evaluate(_REFUSED)
    card = page.locator(".ol-action:has-text('.item()')").first
    assert card.locator(".ol-diff-after code").inner_text() == "scale = x.mean()"
    page.locator(".ol-action:has-text('LOGGER.debug')").first.locator(".ol-paste button").click()
    assert page.input_value("textarea.ol-copy") == "torch._dynamo.config.ignore_logging_functions.add(logging.Logger.debug)"
    page.keyboard.press("Tab")
    card.locator("button:text-is('Copy as issue')").click()
    assert page.input_value("textarea.ol-copy").startswith("### graph break: scale = x.mean().item()")


def test_ctrl_k_goes_anywhere_by_a_few_letters_and_gives_the_focus_back(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    for letters, leads_to, name in (
        ("numerics", "numerics", None),
        ("table kernels", "tables", None),
        ("mode.default stages.4", "graph", "mode"),
        ("line bessel", "source", "record.py:106"),
        ("graph break item()", "breaks", "Unsupported Tensor.item()"),
    ):
        page.focus("[role=tab][aria-selected=true]")
        page.keyboard.press("Control+k")
        page.keyboard.type(letters)
        assert page.locator(".ol-palette [role=option]").count() > 0, letters
        page.keyboard.press("Enter")
        settled(page)
        assert tab(page) == leads_to, letters
        assert name is None or name in selected(page)
        assert page.locator(".ol-palette").count() == 0
    page.focus("[data-tile=splits]")
    page.keyboard.press("Control+k")
    page.keyboard.type("no such thing at all")
    assert "Nothing fits" in page.inner_text(".ol-palette")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.tile") == "splits"
    page.click(".ol-goto")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute(".ol-palette [aria-selected=true]", "data-at") == "2"
    assert page.get_attribute(".ol-palette-field", "aria-activedescendant") == page.get_attribute(".ol-palette [aria-selected=true]", "id")


def test_the_address_shows_what_its_sender_saw(report: Callable[..., Page], browser: Browser) -> None:
    page = report(TWELVE)
    assert "#" not in page.url
    page.keyboard.press("Control+k")  # the page is all of it, so it is heard wherever the focus is
    page.keyboard.type("mode.default stages.4")
    page.keyboard.press("Enter")
    go(page, "flame")
    page.click("[data-metric=bytes]")
    settled(page)
    address = page.url
    assert "tab=flame" in address
    sent = browser.new_page(viewport=WIDE)
    sent.goto(address)
    sent.wait_for_selector("[data-ortlens-ready]")
    assert tab(sent) == "flame"
    assert selected(sent) == selected(page)
    assert sent.get_attribute("[data-metric=bytes]", "aria-pressed") == "true"
    sent.evaluate("() => { location.hash = '#tab=breaks&selected=break:b1'; }")
    settled(sent)
    assert tab(sent) == "breaks"
    sent.evaluate("() => { location.hash = '#tab=tables&table=evil&selected=nothing%3Ahere&metric=x'; }")
    settled(sent)
    assert tab(sent) == "tables"
    assert sent.locator(".ol-details-name").count() == 0
    sent.close()
