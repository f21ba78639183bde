"""The explorer in a real browser, from a file: every panel, every link, light and dark, mouse and keyboard."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from playwright.sync_api import Page, ViewportSize

from ortlens.trace import records as r
from ortlens.trace.sources import attachment_of
from ortlens.units import time_from_ns
from tests.browser.page import BROWSER_MARKS, WIDE
from tests.browser.walk import PANELS, go, selected, settled
from tests.recorded import recorded
from tests.unit.views.sample_captures import SAMPLES

pytestmark = BROWSER_MARKS

PIECES, TWELVE, DRY, SPLIT = map(recorded, ("pieces", "twelve", "dry", "split"))
PHONE: ViewportSize = {"width": 390, "height": 800}


def test_the_first_screen_holds_every_card_and_tables_sort_filter_narrow_and_are_copied(show: Callable[..., Page]) -> None:
    page = show(PIECES)
    bottom = page.evaluate("Math.max(...[...document.querySelectorAll('.ol-card')].map(card => card.getBoundingClientRect().bottom))")
    assert 0 < bottom <= WIDE["height"]
    assert page.query_selector("[data-tab=onnx]") is None  # this page holds no models
    go(page, "tables")
    page.click("[data-table=runs]")
    page.click(".ol-grid-head button:text-matches('^total_ns')")
    longest = time_from_ns(max(run.total_ns for run in PIECES.runs))
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

    page.uncheck(".ol-panel-tables input[type=checkbox] >> nth=0")
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
    go(page, "tables")
    page.click("[data-table=nodes]")
    page.focus(".ol-grid")
    for key in ("ArrowDown", "ArrowDown", "End", "Home", "Enter"):
        press(key)
    assert selected(page) == PIECES.nodes[0].node


def test_two_views_of_one_page_keep_apart(show: Callable[..., Page]) -> None:
    page = show(PIECES, SAMPLES["demo_like"])
    first, second = page.locator(".ortlens").all()
    first.locator("[data-tab=breaks]").click()
    assert second.locator("[aria-selected=true]").get_attribute("data-tab") == "overview"
    for view in (first, second):
        go(view, "graph").locator(".olg-stage").wait_for()
    settled(page)
    ids = page.eval_on_selector_all("[id]", "elements => elements.map(element => element.id)")
    assert len(ids) == len(set(ids))


def test_a_click_counts_whatever_is_drawn_meanwhile_and_focus_survives_what_it_sets_off(show: Callable[..., Page]) -> None:
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
    focused = "[document.activeElement.className, document.activeElement.textContent, document.activeElement.value].join(' ')"
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
    assert page.locator(".ol-card-generation").count() == 0  # nothing was generated
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


def test_inputs_have_names_and_values_and_lines_outside_of_graphs_lead_to_the_source(show: Callable[..., Page]) -> None:
    graph = next(row for row in PIECES.graphs if row.weights)
    known: dict[str, Any] = {
        "graph_id": graph.graph_id,
        "input": graph.weights[0],
        "name": "stem.weight",
        "shape": (8, 64),
        "low": -1.0,
        "high": 1.0,
    }
    line = r.CallLine(file="model.py", line=7, source="  y = torch.svd(x).S", function="f", operators=3, outside=3)
    frame = r.PythonFrame(frame="f", file="model.py", line=5, status="failed", ops=("aten._linalg_svd.default:3",))
    page = show(replace(PIECES, graph_inputs=(r.GraphInput(**known, histogram=(1, 4, 2)),), call_lines=(line,), frames=(frame,)))
    go(page, "graph")
    page.keyboard.press("Control+k")
    page.keyboard.type("stem.weight")
    page.keyboard.press("Enter")
    settled(page)
    assert selected(page) == "stem.weight"
    heights = "bars => bars.map((bar) => bar.style.height).join()"
    assert page.locator(".ol-details .ol-histogram span").evaluate_all(heights) == "25%,100%,50%"
    assert "stem.weight 8\N{MULTIPLICATION SIGN}64" in page.inner_text(".olg-stage")
    page.fill(".olg-find", "linalg_svd")
    assert "runs outside of the graphs" in page.inner_text(".olg-found-list [role=option]")
    page.press(".olg-find", "Enter")
    settled(page)
    assert page.locator(".ol-panel-source .ol-line[aria-current=true] .ol-number.ol-state-uncompiled").count() == 1
    assert "3 operators, in PyTorch" in page.inner_text(".ol-details")


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


def test_functions_that_were_kept_are_shown_whole_and_fold_what_has_no_operators(show: Callable[..., Page]) -> None:
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
    assert "2 lines without operators" in page.locator(".ol-panel-source .ol-line-gap").first.inner_text()
    assert shown[-1] == str(len(lines))
    assert [int(number) for number in shown] == sorted(int(number) for number in shown)
    fold = page.locator(".ol-panel-source .ol-line-gap button").last
    assert fold.inner_text() == f"⋯ {100 - 2 * 15} lines"
    fold.press("Enter")
    assert f"plain_{last + 50} = '<b>'" in page.inner_text(".ol-listing")
    assert page.locator(".ol-line-plain .ol-source-text").first.inner_text().startswith("    ")
