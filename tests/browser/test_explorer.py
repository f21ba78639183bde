"""The explorer in a real browser, from a file: every panel, every link, light and dark, mouse and keyboard."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ortlens.trace import store
from ortlens.views.payload import payload_bytes
from tests.browser.page import BROWSER_MARKS, STATIC, WIDE, page_from_captures
from tests.browser.walk import go, selected
from tests.unit.views.sample_captures import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page


pytestmark = BROWSER_MARKS

PIECES = store.load(Path(__file__).parent / "captures" / "pieces.ortlens")
PANELS = ("overview", "graph", "tables", "timeline", "source", "breaks", "findings", "numerics")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 620])
def test_every_panel_draws_the_real_model(show: Callable[..., Page], scheme: str, width: int) -> None:
    page = show(PIECES, color_scheme=scheme, viewport={"width": width, "height": 700})
    for panel in PANELS:
        root = go(page, panel)
        assert "could not be drawn" not in root.inner_text()
        assert root.locator(".ol-empty:not([hidden])").count() == 0, panel
        box = root.bounding_box()
        assert box is not None
        assert box["width"] > width / 2
        assert box["height"] > 200
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", SAMPLES)
def test_every_panel_draws_or_says_what_is_missing(show: Callable[..., Page], name: str) -> None:
    page = show(SAMPLES[name])
    for panel in PANELS:
        text = go(page, panel).inner_text()
        assert "could not be drawn" not in text, panel
        assert len(text) > 60
    assert page.query_selector("[role=tabpanel] img") is None  # hostile names stay text


def test_empty_panels_name_the_call_that_fills_them(show: Callable[..., Page]) -> None:
    page = show(SAMPLES["whole"])
    assert "lens.verify(x)" in go(page, "numerics").inner_text()
    assert "lens = ortlens.explain(model)(x)" in go(page, "timeline").inner_text()
    go(page, "tables")
    page.click("[data-table=kernels]")
    assert "lens.profile(x)" in page.inner_text(".ol-panel-tables .ol-empty")


def test_there_is_no_tab_for_what_the_page_does_not_hold(show: Callable[..., Page]) -> None:
    assert show(PIECES).query_selector("[data-tab=onnx]") is None


def test_the_first_screen_answers(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    text = page.inner_text(".ol-panel-overview")
    for question in (
        "Is it in ONNX Runtime?",
        "How is it partitioned, and why?",
        "Where does the time go?",
        "Are the results correct?",
        "What should I do first?",
    ):
        assert question in text
    for answer in ("5 graph breaks", "aten.median.dim", "as far as checked", "entering", "with operators that ONNX Runtime supports"):
        assert answer in text
    bottom = page.evaluate("Math.max(...[...document.querySelectorAll('.ol-card')].map(card => card.getBoundingClientRect().bottom))")
    assert bottom <= WIDE["height"]


def test_a_line_leads_to_its_kernels_and_back(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    go(page, "source")
    page.click(".ol-source-text:has-text('torch.relu')")
    assert "record.py" in selected(page)
    page.click(".ol-step:has(h5:text-matches('^Kernel')) .ol-link >> nth=0")
    kernel = selected(page)
    assert page.query_selector(".ol-sure[aria-label^=fused]") is not None
    page.click(".ol-jump:text-is('Table')")
    assert kernel in page.inner_text(".ol-grid-row[aria-selected=true]")
    page.click(".ol-step:has(h5:text-matches('^Your line')) .ol-link >> nth=0")
    assert "record.py" in selected(page)


def test_a_row_selects_and_the_other_panels_follow(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    go(page, "tables")
    page.click("[data-table=breaks]")
    page.click(".ol-grid-rows .ol-grid-row >> nth=1")
    reason = selected(page)
    assert reason in go(page, "breaks").locator("[aria-current=true]").first.inner_text()
    go(page, "source")
    assert page.query_selector(".ol-line[aria-current=true]") is not None


def test_tables_sort_filter_and_narrow_to_the_selection(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    go(page, "tables")
    page.click("[data-table=runs]")
    page.click(".ol-grid-head button:text-matches('^total_ns')")
    longest = _time(max(run.total_ns for run in PIECES.runs))
    page.wait_for_selector(f".ol-grid-rows .ol-grid-row[data-at='0']:has-text('{longest}')")
    page.fill("input[aria-label='Filter total_ns']", ">= 100 us")
    slow = sum(run.total_ns >= 100_000 for run in PIECES.runs)
    assert page.inner_text(".ol-panel-tables [role=status]") == f"{slow:,} of {len(PIECES.runs):,} rows"
    page.fill("input[aria-label='Filter total_ns']", "")
    page.click(".ol-grid-row[data-at='0']")
    page.check(".ol-panel-tables input[type=checkbox] >> nth=0")
    slowest = max(PIECES.runs, key=lambda run: run.total_ns)
    same = sum(run.session_id == slowest.session_id for run in PIECES.runs)
    assert page.inner_text(".ol-panel-tables [role=status]") == f"{same:,} of {len(PIECES.runs):,} rows"


def _time(ns: int) -> str:
    from ortlens.units import time_from_ns

    return time_from_ns(ns)


def test_a_table_is_copied_as_it_is_shown(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    go(page, "tables")
    page.click("[data-table=breaks]")
    # Frames of some notebooks may not write to the clipboard: the text then stands ready to be copied by hand.
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed')); }")
    page.click("button:text-is('Copy as CSV')")
    lines = page.input_value("textarea.ol-copy").splitlines()
    assert lines[0].startswith("break_id,file,line,source,reason")
    assert sum(line.startswith("b") for line in lines[1:]) == len(PIECES.breaks)


def test_the_whole_explorer_by_keyboard(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    focused = "document.activeElement.dataset.tab ?? document.activeElement.className"
    press = page.keyboard.press
    while page.evaluate(focused) != "overview":
        press("Tab")
    walked = ["overview"]
    for _ in PANELS[1:]:
        press("ArrowRight")
        walked.append(page.evaluate(focused))
    assert tuple(walked) == PANELS
    press("ArrowRight")
    assert page.evaluate(focused) == "overview"
    for panel, keys in {"timeline": ["ArrowRight", "ArrowRight", "Enter"], "numerics": ["ArrowRight", "ArrowDown", "Enter"]}.items():
        _tab_to(page, panel)
        for _ in range(30):
            press("Tab")
            if page.evaluate("document.activeElement.tagName") == "CANVAS":
                break
        for key in keys:
            press(key)
        assert selected(page)
        page.evaluate("document.querySelector('.ol-details-head button').click()")
    _tab_to(page, "tables")
    page.click("[data-table=nodes]")
    page.focus(".ol-grid")
    for key in ("ArrowDown", "ArrowDown", "End", "Home", "Enter"):
        press(key)
    assert selected(page) == PIECES.nodes[0].node


def _tab_to(page: Page, panel: str) -> None:
    page.focus("[role=tab][aria-selected=true]")
    page.keyboard.press("Home")
    for _ in range(PANELS.index(panel)):
        page.keyboard.press("ArrowRight")


def test_keys_stay_inside(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    page.evaluate("document.body.addEventListener('keydown', event => document.body.dataset.heard = event.key)")
    go(page, "timeline")
    page.focus(".ol-panel-timeline canvas")
    page.keyboard.press("+")
    assert page.evaluate("document.body.dataset.heard ?? null") is None


def test_two_views_of_one_page_keep_apart(show: Callable[..., Page]) -> None:
    page = show(PIECES, SAMPLES["demo_like"])
    first, second = page.locator(".ortlens").all()
    first.locator("[data-tab=breaks]").click()
    assert second.locator("[aria-selected=true]").get_attribute("data-tab") == "overview"
    ids = page.eval_on_selector_all("[id]", "elements => elements.map(element => element.id)")
    assert len(ids) == len(set(ids))


def test_the_theme_can_be_chosen(show: Callable[..., Page]) -> None:
    page = show(PIECES, color_scheme="light")
    back = "getComputedStyle(document.querySelector('.ortlens')).backgroundColor"
    light = page.evaluate(back)
    page.click(".ol-theme")
    page.click(".ol-theme")
    dark = page.evaluate(back)
    assert sum(map(int, dark[4:-1].split(","))) < 200 < sum(map(int, light[4:-1].split(",")))


def test_damaged_data_is_said(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "damaged.html"
    file.write_text(page_from_captures(PIECES).replace('id="data0">', 'id="data0">AAAA'), encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    assert "could not start" in page.inner_text("[role=alert]")
    page.close()


def test_nothing_shows_a_missing_value_as_a_word(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    for kind in ("graphs", "nodes", "sessions", "kernels", "breaks", "recompiles", "findings", "runs"):
        go(page, "tables")
        page.click(f"[data-table={kind}]")
        page.click(".ol-grid-row[data-at='0']")
        words = page.inner_text(".ol-details").split()
        assert words
        assert not {"null", "undefined", "NaN", "[object"} & set(words), kind


_HOST = """async ([code, data]) => {
  const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
  const larger = new Uint8Array(bytes.length + 16);
  larger.set(bytes, 8);
  const packed = new DataView(larger.buffer, 8, bytes.length);
  const traits = { selected: null, tab: "source", graph: null };
  const listeners = {};
  const model = {
    saved: 0,
    get: (key) => traits[key],
    set: (key, value) => { traits[key] = value; },
    save_changes: () => { model.saved += 1; },
    on: (event, listener) => { listeners[event] = listener; },
    off: (event) => { delete listeners[event]; },
  };
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const { mount } = await import(url);
  const el = document.body.appendChild(document.createElement("div"));
  window.host = { traits, model, listeners, el, cleanup: await mount({ model, el, packed }) };
}"""


def test_the_widget_shares_its_selection_both_ways(browser: Browser, tmp_path: Path) -> None:
    """The notebook's bundle under a host that does what anywidget does."""
    file = tmp_path / "host.html"
    file.write_text("<!doctype html><meta charset='utf-8'><body></body>", encoding="utf-8")
    page = browser.new_page(viewport=WIDE)
    page.goto(file.as_uri())
    code = (STATIC / "explorer.widget.js").read_text(encoding="utf-8")
    page.evaluate(_HOST, [code, base64.b64encode(payload_bytes(PIECES)).decode()])
    assert page.get_attribute("[role=tab][aria-selected=true]", "data-tab") == "source"
    page.click(".ol-source-text:has-text('torch.relu')")
    assert str(page.evaluate("host.traits.selected")).startswith("line:")
    assert page.evaluate("host.model.saved") == 1
    page.evaluate("host.traits.selected = 'break:b0'; host.listeners['change:selected']()")
    assert selected(page) == PIECES.breaks[0].reason
    page.evaluate("host.traits.selected = null; host.listeners['change:selected']()")
    assert page.locator(".ol-details-name").count() == 0
    page.evaluate("host.cleanup()")
    assert page.evaluate("[host.el.childNodes.length, Object.keys(host.listeners).length]") == [0, 0]
    page.close()


def test_focus_survives_what_it_sets_off(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    focused = "[document.activeElement.className, document.activeElement.textContent, document.activeElement.value].join(' ')"
    go(page, "tables")
    page.click("[data-table=runs]")
    page.focus(".ol-grid-head button:text-matches('^run_ns')")
    page.keyboard.press("Enter")
    assert "run_ns \N{BLACK DOWN-POINTING TRIANGLE}" in page.evaluate(focused)
    page.click(".ol-chooser summary")
    page.focus(".ol-chooser input[value=bind_ns]")
    page.keyboard.press("Space")
    assert "bind_ns" in page.evaluate(focused)
    assert page.locator(".ol-grid-head button:text-matches('^bind_ns')").count() == 0
    page.click(".ol-chooser summary")
    page.click(".ol-grid-row[data-at='0']")
    page.focus(".ol-chain .ol-link >> nth=0")
    page.keyboard.press("Enter")
    assert "ol-details-name" in page.evaluate(focused)
