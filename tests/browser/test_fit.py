"""What is shown can be read and stays in view: sizes of words, the wheel, and narrow screens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page

from ortlens.trace.schema import facts_of
from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import PANELS, go, selected, settled, with_peaks
from tests.facts import head
from tests.recorded import recorded

pytestmark = BROWSER_MARKS

TWELVE = recorded("twelve")
_SIZES = """() => [...document.querySelectorAll('.olg-svg text')]
  .filter((text) => text.textContent && text.checkVisibility())
  .map((text) => [text.textContent, parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a])"""
_IN_VIEW = """(selector) => {
  const [box, around] = [document.querySelector(selector), document.querySelector('.ol-main')].map((one) => one.getBoundingClientRect());
  return box.top >= around.top - 1 && box.top < around.bottom;
}"""


@pytest.mark.parametrize(("name", "width"), [("twelve", 390), ("llama", 1440), ("gpt2_steps", 390)])
def test_words_of_the_opening_view_can_be_read(show: Callable[..., Page], name: str, width: int) -> None:
    page = show(recorded(name), viewport={"width": width, "height": 900})
    go(page, "graph").locator(".olg-stage").wait_for()
    settled(page)
    assert page.locator(".olg-stage button").count() == 0  # no control covers the graph
    sizes = page.evaluate(_SIZES)
    assert sizes
    assert [(text, round(size, 1)) for text, size in sizes if size < 9.99] == []


_CUT_OFF = """() => [...document.querySelectorAll('.ol-tile > span, .ol-card p, .ol-card li:not(.ol-break-mark)')]
  .map((one) => [one, getComputedStyle(one)])
  .filter(([one, style]) => one.scrollHeight > one.clientHeight + 2 && style.overflow === 'hidden' || style.webkitLineClamp > 0)
  .map(([one]) => one)
  .map((one) => one.textContent)"""


@pytest.mark.parametrize("name", ["busy", "dry"])
def test_nothing_of_the_verdict_is_cut_off(show: Callable[..., Page], name: str) -> None:
    busy = replace(
        TWELVE,
        **head({**facts_of(TWELVE), "ledger_spread": "1.7", "ledger_others": "1.0", "ledger_idle": "0.0"}),
    )
    page = show({"busy": busy, "dry": recorded("dry")}[name])
    assert "busy" in page.inner_text("[data-tile=speed]") or name == "dry"
    for width in (1440, 900, 390):
        page.set_viewport_size({"width": width, "height": 900})
        settled(page)
        assert page.evaluate(_CUT_OFF) == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_no_tab_is_behind_a_scroll_bar_and_each_is_reached_on_a_phone(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    for width in (1440, 900, 868, 760, 640):
        page.set_viewport_size({"width": width, "height": 900})
        settled(page)
        ((beyond, height),) = page.evaluate(
            "() => [...document.querySelectorAll('.ol-tabs')].map((row) => [row.scrollWidth - row.clientWidth, row.offsetHeight])"
        )
        assert beyond == 0, width
        assert height < 40 or width <= 800, width
    page.set_viewport_size({"width": 390, "height": 844})
    for tab in page.locator(".ol-tabs [role=tab]").all():
        tab.click()
        box = tab.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


_MET = """([words, others]) => [...document.querySelectorAll(words)].filter((one) => one.checkVisibility()).flatMap((one) =>
  [...document.querySelectorAll(others)].filter((other) => other !== one && other.checkVisibility()).filter((other) => {
    const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
    return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  }).map((other) => [one.textContent, other.textContent || other.className]))"""
_SIGNS = "document.querySelector('.ol-line .ol-margin:not(:empty)').replaceChildren(...'⊘✂↻⚑'.split('').map((sign) => { \
  const one = document.createElement('span'); one.textContent = sign; return one; }))"


def test_a_panel_has_most_of_a_phone_and_no_words_lie_on_others(show: Callable[..., Page]) -> None:
    near = replace(TWELVE, sessions=tuple(replace(row, p90_ns=row.p50_ns and row.p50_ns + row.p50_ns // 9) for row in TWELVE.sessions))
    for capture, panels in ((near, PANELS), (with_peaks(recorded("bert"), flops=1.1e11), ("roofline",))):
        page = show(capture, viewport={"width": 390, "height": 844})
        for panel in panels:
            go(page, panel)
            settled(page)
            box = page.locator(".ol-main").bounding_box()
            assert box is not None
            assert box["y"] < (0.28 if panel == "overview" else 0.18) * 844, panel
        go(page, panels[-1])
        assert page.evaluate(_MET, [".ol-roofline text", ".ol-roofline text, .ol-roof-dot"]) == []
    page = show(near, viewport={"width": 390, "height": 844})
    go(page, "timeline")
    assert page.evaluate(_MET, [".ol-call-mark b", ".ol-call-mark b, .ol-call-mark"]) == []
    go(page, "source")
    page.evaluate(_SIGNS)
    assert page.evaluate(_MET, [".ol-margin > span", ".ol-line-time"]) == []


@pytest.mark.parametrize(("size", "scheme"), [((1440, 900), "light"), ((390, 844), "dark")], ids=str)
def test_a_planted_slow_line_is_on_the_first_screen(show: Callable[..., Page], size: tuple[int, int], scheme: str) -> None:
    capture = recorded("bert")
    slow = max((kernel for kernel in capture.kernels if kernel.file), key=lambda kernel: kernel.line or 0)
    planted = tuple(replace(kernel, mean_ns=10**9) if kernel is slow else kernel for kernel in capture.kernels)
    page = show(replace(capture, kernels=planted), viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    first = page.locator(".ol-slow li").first
    assert f"{Path(slow.file or '').name}:{slow.line}" in first.inner_text()
    assert first.inner_text().startswith("1.00 s")
    box = first.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= size[1]
    first.locator(".ol-link").click()
    assert selected(page).endswith(f"{Path(slow.file or '').name}:{slow.line}")


def test_details_take_a_third_of_a_phone_and_hide_nothing_that_was_clicked(show: Callable[..., Page]) -> None:
    page = show(TWELVE, viewport={"width": 390, "height": 800})
    go(page, "actions")
    last = ".ol-actions > li:last-child h4 .ol-link"
    page.locator(last).scroll_into_view_if_needed()
    page.click(last)
    settled(page)
    details = page.locator(".ol-details").bounding_box()
    assert details is not None
    assert details["height"] <= 800 / 3
    assert page.evaluate(_IN_VIEW, last)


def test_the_wheel_scrolls_the_page_unless_the_drawing_has_the_focus(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    for panel, target in (("graph", ".olg-stage"), ("timeline", ".ol-panel-timeline canvas"), ("flame", ".ol-panel-flame canvas")):
        go(page, panel)
        page.locator(target).wait_for()
        drawn = (
            "document.querySelector('.olg-svg > g').getAttribute('transform')"
            if panel == "graph"
            else f"document.querySelector('{target}').toDataURL()"
        )
        page.hover(target)
        settled(page)
        before = page.evaluate(drawn)
        page.mouse.wheel(0, -300)
        settled(page)
        assert page.evaluate(drawn) == before, panel
        page.keyboard.down("Control")
        page.mouse.wheel(0, -100)
        page.keyboard.up("Control")
        settled(page)
        zoomed = page.evaluate(drawn)
        assert zoomed != before, panel
        page.focus(target)
        page.mouse.wheel(0, -300)
        settled(page)
        nearer = page.evaluate(drawn)
        assert nearer != zoomed, panel
        if panel == "graph":
            page.mouse.down()
            page.mouse.move(300, 300)
            page.mouse.up()
            settled(page)
            assert page.evaluate(drawn) != nearer, "it is dragged"
