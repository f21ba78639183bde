"""The explorer in a real browser, from a file: every panel, every link, light and dark, mouse and keyboard."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ortlens.analysis.generation import with_roles
from ortlens.analysis.overview import overview_of
from ortlens.trace import store
from ortlens.trace.records import Step
from ortlens.trace.sources import attachment_of
from ortlens.units import percent
from ortlens.views.payload import payload_bytes
from ortlens.views.time_sentences import generation_sentences
from tests.browser.page import BROWSER_MARKS, STATIC, WIDE, page_from_captures
from tests.browser.walk import PANELS, go, selected, settled, with_peaks
from tests.unit.analysis.test_generation import generating
from tests.unit.views.sample_captures import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page, ViewportSize


pytestmark = BROWSER_MARKS

PIECES, TWELVE = (store.load(Path(__file__).parent / "captures" / f"{name}.ortlens") for name in ("pieces", "twelve"))
DRY, SPLIT = (store.load(Path(__file__).parents[1] / "data" / "captures" / f"{name}.ortlens") for name in ("dry", "split"))
PHONE: ViewportSize = {"width": 390, "height": 800}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 620])
def test_every_panel_draws_the_real_model(show: Callable[..., Page], scheme: str, width: int) -> None:
    page = show(with_peaks(PIECES), color_scheme=scheme, viewport={"width": width, "height": 700})
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
    for answer in ("5 graph breaks", "aten.mode.default", "as far as checked", "entering", "with operators that ONNX Runtime supports"):
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
        page.keyboard.press("Escape")  # the next table then begins at its first row
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


def test_a_click_counts_whatever_is_drawn_while_the_button_is_down(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    go(page, "tables")
    page.click("[data-table=breaks]")
    page.locator(".ol-grid-row[data-at='1']").hover()
    page.mouse.down()
    page.evaluate("document.querySelector('.ol-grid').dispatchEvent(new Event('scroll'))")
    settled(page)
    page.mouse.up()
    settled(page)
    assert page.get_attribute(".ol-grid-row[data-at='1']", "aria-selected") == "true"
    assert page.get_attribute(".ol-details", "data-selected") == f"break:{PIECES.breaks[1].break_id}"


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


def test_the_verdict_stands_above_every_panel_and_leads_to_the_evidence(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    words = page.locator(".ol-tile-word").all_inner_texts()
    assert re.fullmatch(r"▲ 2\.\d times as long as eager", words[0])
    assert re.fullmatch(r"1\d\.\d % of a call", words[1])
    assert words[2:] == ["▲ 5 graph breaks", "✓ verified"]
    for panel in PANELS:
        go(page, panel)
        box = page.locator(".ol-tiles").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 160
    for tile, panel in (("splits", "breaks"), ("correct", "numerics"), ("time", "flame"), ("speed", "overview")):
        page.focus(f"[data-tile={tile}]")
        page.keyboard.press("Enter")
        assert page.get_attribute("[role=tab][aria-selected=true]", "data-tab") == panel
    assert page.evaluate("document.activeElement.className") == "ol-card ol-card-time"


def test_a_wrong_number_a_truncated_dry_run_and_a_slow_call_are_on_the_first_screen(show: Callable[..., Page]) -> None:
    row = next(item for item in TWELVE.numerics if item.partition_id)
    wrong = replace(row, ok=False, first_divergence=True)
    page = show(replace(TWELVE, numerics=tuple(wrong if item is row else item for item in TWELVE.numerics)), viewport=PHONE)
    assert page.inner_text("[data-tile=correct] .ol-tile-word") == "✗ differs"
    page.click("[data-tile=correct]")
    assert selected(page) == row.node
    cut = show(DRY, viewport=PHONE)
    assert cut.inner_text("[data-tile=splits] .ol-tile-word") == "▲ unknown: cut short"
    assert "nothing ran" in cut.inner_text("[data-tile=time]")
    assert cut.get_attribute(".ol-tiles", "data-dry") == "true"
    slow = show(SPLIT, viewport=PHONE)
    assert slow.inner_text("[data-tile=speed] .ol-tile-word") == "▲ 8.2 times as long as eager"
    for shown in (page, cut, slow):
        box = shown.locator(".ol-tiles").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 0.4 * PHONE["height"]
        assert shown.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_generation_says_what_a_token_takes_and_what_is_python(show: Callable[..., Page], scheme: str) -> None:
    steps = (
        Step(role="prefill", ns=40_000_000, calls=1, tokens=1, graph_ids=("g0",), uncompiled_ns=60_000_000),
        Step(role="decode", ns=200_000_000, calls=100, tokens=100, graph_ids=("g1",), uncompiled_ns=500_000_000),
        Step(role="python", ns=760_000_000, uncompiled_ns=740_000_000),  # planted: three quarters of the call
    )
    capture = with_roles(replace(generating(), steps=steps))
    page = show(capture, viewport=PHONE, color_scheme=scheme)
    card = page.locator(".ol-card-generation")
    assert card.locator("h3").inner_text() == "How fast are tokens generated?"
    said = generation_sentences(overview_of(capture))
    assert [item.lower() for item in card.locator("li").all_inner_texts()] == [sentence.lower() for sentence in said]
    assert f"{percent(0.76)} of a call" in card.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_without_a_generation_there_is_no_card_for_one(show: Callable[..., Page]) -> None:
    assert show(TWELVE).locator(".ol-card-generation").count() == 0


def test_the_longest_line_has_the_strongest_colour(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    go(page, "source")
    heats = page.eval_on_selector_all(
        ".ol-line:has(.ol-line-time)",
        "rows => rows.map(row => [parseInt(row.querySelector('.ol-number').style.getPropertyValue('--heat')),"
        " row.querySelector('.ol-heat > span').getBoundingClientRect().width])",
    )
    assert len(heats) > 3
    assert max(heats, key=lambda pair: pair[1])[0] == max(heat for heat, _ in heats) == 45


def test_a_graph_break_names_the_lines_that_called_it(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    go(page, "source")
    called = page.locator(".ol-callers").all_inner_texts()
    assert len(called) == len(TWELVE.breaks)
    assert all(text.startswith("called from ") and "runpy" not in text for text in called)
    nearest = TWELVE.breaks[0].user_stack[-2]
    place, _, function = nearest.rpartition(" ")
    assert called[0].startswith(f"called from {function} ({'/'.join(place.split('/')[-2:])})")


def test_library_files_are_folded_until_one_is_selected(show: Callable[..., Page]) -> None:
    library = "/v/lib/python3.11/site-packages/layers/norm.py"
    node = next(node for node in TWELVE.nodes if "norm" in node.target)
    page = show(replace(TWELVE, nodes=tuple(replace(each, file=library, line=7) if each is node else each for each in TWELVE.nodes)))
    go(page, "source")
    folded = page.locator(".ol-library")
    assert folded.locator("summary").inner_text() == "1 library file"
    assert not folded.locator("button").is_visible()
    page.locator(".ol-files > button").first.focus()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.file") != library  # what is folded is no stop
    folded.locator("summary").click()
    folded.locator("button").click()
    assert library in page.inner_text(".ol-listing")


def test_functions_that_were_kept_are_shown_whole_and_fold_what_has_no_operations(show: Callable[..., Page]) -> None:
    file = next(node.file for node in TWELVE.nodes if node.source and node.file)
    last = max(node.line or 0 for node in TWELVE.nodes if node.file == file)
    lines = [f"    plain_{number} = '<b>'" for number in range(1, last + 101)]
    for node in TWELVE.nodes:
        if node.file == file and node.line and node.source:
            lines[node.line - 1] = f"    {node.source}"
    page = show(replace(TWELVE, attachments=dict([attachment_of(file, [None, None, *lines[2:], None])])))
    page.click("[data-tab=source]")
    shown = page.locator(".ol-panel-source .ol-line:not(.ol-line-head) .ol-number").all_inner_texts()
    assert shown[0] == "3"
    assert "2 lines without operations" in page.locator(".ol-panel-source .ol-line-gap").first.inner_text()
    assert shown[-1] == str(len(lines))
    assert [int(number) for number in shown] == sorted(int(number) for number in shown)
    fold = page.locator(".ol-panel-source .ol-line-gap button").last
    assert fold.inner_text() == f"⋯ {100 - 2 * 15} lines"
    fold.press("Enter")
    assert f"plain_{last + 50} = '<b>'" in page.inner_text(".ol-listing")
    assert page.locator(".ol-line-plain .ol-source-text").first.inner_text().startswith("    ")
