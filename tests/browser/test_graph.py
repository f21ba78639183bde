"""The graph in a real browser: models that were recorded, by mouse and by keyboard alone, in light and dark, and bad input."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page

from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import selected, settled

pytestmark = BROWSER_MARKS

FOLDER = Path(__file__).parents[2] / "frontend" / "test" / "captures"
RECORDED = {name: (FOLDER / f"{name}.payload.gz").read_bytes() for name in ("llama", "partitions", "training")}
LAYERS = "layers.0\N{EN DASH}31"


def graph(page: Page) -> Locator:
    page.click("[data-tab=graph]")
    stage = page.locator(".olg-stage")
    stage.wait_for()
    settled(page)
    return stage


def box(page: Page, title: str) -> Locator:
    return page.locator(".olg-box").filter(has=page.locator(f".olg-title:text-is('{title}')"))


def toggle(page: Page, title: str) -> None:
    box(page, title).locator(".olg-toggle").click()
    settled(page)


def titles(page: Page) -> list[str]:
    return page.locator(".olg-title").all_text_contents()


def current(page: Page) -> str:
    """What a screen reader says of the box that the keyboard is at."""
    settled(page)
    box_id = page.get_attribute(".olg-stage", "aria-activedescendant")
    return page.get_attribute(f"[id='{box_id}']", "aria-label") or ""


def inside(page: Page, locator: Locator) -> bool:
    stage, found = page.locator(".olg-stage").bounding_box(), locator.bounding_box()
    assert stage is not None
    assert found is not None
    return (
        stage["x"] <= found["x"] + 1
        and stage["y"] <= found["y"] + 1
        and found["x"] + found["width"] <= stage["x"] + stage["width"] + 1
        and found["y"] + found["height"] <= stage["y"] + stage["height"] + 1
    )


@pytest.mark.parametrize(("name", "scheme"), [("llama", "dark"), ("partitions", "light"), ("training", "dark")])
def test_the_first_view_shows_what_stays_in_pytorch_and_expands(show: Callable[..., Page], name: str, scheme: str) -> None:
    page = show(RECORDED[name], color_scheme=scheme)
    graph(page)
    assert page.locator(".olg-box").count() >= 5
    assert bool(page.locator(".olg-torch, .olg-mixed").count()) == (name in ("partitions", "training"))
    page.click(".olg-openings button:text-is('Expand all')")
    settled(page)
    assert inside(page, page.locator(".olg-open").first)
    assert page.locator(".olg-svg *").count() < 3000


def test_groups_open_where_they_stand_equal_layers_are_one_and_what_many_boxes_read_is_named(show: Callable[..., Page]) -> None:
    page = show(RECORDED["llama"], viewport={"width": 1280, "height": 950})
    graph(page)
    before = box(page, "lm_head").bounding_box()
    toggle(page, "lm_head")
    after = box(page, "lm_head").bounding_box()
    assert {"t", "mm", "_unsafe_view"} <= set(titles(page))
    assert before is not None
    assert after is not None
    assert abs(before["x"] - after["x"]) < 250
    assert inside(page, box(page, "mm"))
    assert box(page, "lm_head").get_attribute("aria-expanded") == "true"
    toggle(page, "lm_head")
    assert "mm" not in titles(page)
    box(page, "lm_head").locator(".olg-title").dispatch_event("dblclick")
    settled(page)
    assert "mm" in titles(page)
    page.click(".olg-openings button:text-is('Collapse all')")
    settled(page)
    assert "mm" not in titles(page)
    toggle(page, "model")
    assert "32 \N{MULTIPLICATION SIGN} LlamaDecoderLayer" in (box(page, LAYERS).text_content() or "")
    toggle(page, LAYERS)
    stub = box(page, "layers.0").locator(".olg-stub-link")
    named = stub.text_content() or ""
    assert named.startswith("⇢")
    stub.click()
    settled(page)
    assert selected(page) in named
    assert inside(page, page.locator(".olg-selected"))
    page.click(".olg-zoom button:text-is('Fit')")
    settled(page)
    names = {item.replace(" ", "") for item in page.locator(".olg-svg text").all_text_contents()}
    assert {f"layers.{number}" for number in range(32)} <= names


def test_search_finds_selects_and_shows(show: Callable[..., Page]) -> None:
    page = show(RECORDED["llama"])
    graph(page).focus()
    page.keyboard.press("/")
    page.keyboard.type("layers.17 no such thing")
    assert page.locator("[role=option]").count() == 0
    page.fill(".olg-find", "layers.17 mlp mm")
    assert page.locator("[role=option]").count() == 3
    assert "3 nodes" in page.inner_text(".olg-found-list")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    settled(page)
    assert "model.layers.17.mlp" in page.inner_text(".ol-details")
    assert inside(page, page.locator(".olg-selected"))
    assert page.evaluate("document.activeElement.className") == "olg-stage"
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    assert page.input_value(".olg-find") == ""
    assert page.evaluate("document.activeElement.className") == "olg-stage"


def test_the_graph_by_keyboard_alone(show: Callable[..., Page]) -> None:
    page = show(RECORDED["partitions"])
    graph(page)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "olg-stage":
            break
    page.keyboard.press("ArrowDown")
    assert current(page).startswith("input arg")
    page.keyboard.press("n")
    assert current(page).startswith("bessel_j0")
    assert "stays in PyTorch: " in current(page)
    assert selected(page) == "bessel_j0"
    assert inside(page, page.locator(".olg-current"))
    page.keyboard.press("ArrowUp")
    assert current(page).startswith("gelu")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert current(page).startswith("add")
    page.keyboard.press("Backspace")
    assert current(page).startswith("blocks.1, ")
    page.keyboard.press("Enter")
    settled(page)
    assert page.locator(".olg-current").get_attribute("aria-expanded") == "false"
    assert "1 of 6 nodes stay in PyTorch" in current(page)
    page.keyboard.press("ArrowRight")
    assert current(page).startswith("blocks.2")
    page.keyboard.press("Enter")
    settled(page)
    page.keyboard.press("ArrowDown")
    assert page.locator(".olg-current").get_attribute("aria-level") == "4"
    for key in ("+", "-", "0", "End", "Home", "p"):
        page.keyboard.press(key)
        settled(page)
        assert page.evaluate("document.activeElement.className") == "olg-stage"
        assert current(page)
    assert selected(page)
    page.keyboard.press("Escape")
    assert page.locator(".ol-details-name").count() == 0
    assert page.evaluate("document.activeElement.className") == "olg-stage"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") != "olg-stage"


def test_what_stays_in_pytorch_is_told_without_colour_and_at_every_scale_and_boundaries_say_their_bytes(show: Callable[..., Page]) -> None:
    page = show(RECORDED["partitions"], viewport={"width": 1280, "height": 950})
    graph(page)
    page.click("[data-by=partition]")
    for mode in ("partition", "phase", "time", "error", "reason"):
        page.select_option(".olg-tools select[aria-label=Colour]", mode)
        settled(page)
        torch = page.locator(".olg-torch.olg-op")
        assert torch.count() == 11, mode
        hatches = torch.locator(".olg-hatched").evaluate_all("all => all.map(x => x.getAttribute('fill'))")
        assert all("url(#olg" in (hatch or "") for hatch in hatches), mode
        assert all("stays in PyTorch" in str(one.get_attribute("aria-label")) for one in torch.all()), mode
        assert len(page.locator(".olg-legend li").all_inner_texts()) >= 3, mode
    labels = page.locator(".olg-wire-label").all_text_contents()
    assert len(labels) >= 22
    assert set(labels) == {"512 B"}
    page.click("[data-by=module]")
    settled(page)
    page.click(".olg-openings button:text-is('Expand all')")
    for _ in range(12):
        settled(page)
        seen = page.locator(".olg-torch, .olg-mixed").evaluate_all("all => Math.max(...all.map(x => x.getBoundingClientRect().height))")
        assert seen >= 2
        page.click(".olg-zoom button[aria-label='Zoom out']")
