"""The report in a real browser, from a file: with JavaScript and without, by keyboard, light and dark, on paper, and under attack."""

from __future__ import annotations

import base64
import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ortlens.trace import store
from ortlens.units import time_from_ns
from ortlens.views.capture_view import SavedCapture
from tests.browser.page import BROWSER_MARKS, WIDE
from tests.browser.walk import go, selected, settled, watch
from tests.unit.views.sample_captures import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page, Request

    from ortlens.trace.records import Capture

pytestmark = BROWSER_MARKS

CAPTURES = Path(__file__).parent / "captures"
PIECES = store.load(CAPTURES / "pieces.ortlens")
PARTS = ("summary", "figures", "optimised", "tables", "environment", "measured")
_DRAWN = "figure:not(.or-wide) .or-figure text"  # on the page; the flame graph has text on coloured frames
_COLOUR = "(find) => getComputedStyle(document.querySelector(find[0]))[find[1]]"


@pytest.fixture
def report(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the report of a capture; afterwards nothing may have been complained of, or asked of anyone, unless that was expected."""
    trouble: list[str] = []
    pages: list[Page] = []

    def opened(
        capture: Capture,
        *,
        edit: Callable[[str], str] = str,
        expected: list[str] | None = None,
        redact: bool = False,
        **context: Any,  # noqa: ANN401
    ) -> Page:
        file = SavedCapture(capture).report(tmp_path / f"report{len(pages)}.html", redact=redact)
        file.write_text(edit(file.read_text(encoding="utf-8")), encoding="utf-8")
        heard = trouble if expected is None else expected
        page = browser.new_page(**{"viewport": WIDE, **context})
        pages.append(page)
        watch(page, heard, file.as_uri(), frames=True)
        page.on("requestfailed", lambda request: None if given_up(request) else heard.append(f"refused: {request.url} {request.failure}"))
        page.goto(file.as_uri())
        if context.get("java_script_enabled", True) and expected is None:
            page.wait_for_selector("[data-ortlens-ready]", timeout=20_000)
        return page

    yield opened
    for page in pages:
        page.close()
    assert trouble == []


def given_up(request: Request) -> bool:
    """Whether it is a frame's own blob that was still loading when the frame went away, which is nobody's fault."""
    return request.url.startswith("blob:null/") and request.failure == "net::ERR_ABORTED"


def test_a_part_of_a_model_is_not_yes(report: Callable[..., Page]) -> None:
    """46 of 51 nodes are in ONNX Runtime there, and half of each graph in the other capture."""
    fewer = replace(PIECES, graphs=tuple(replace(graph, coverage=0.5) for graph in PIECES.graphs))
    for capture, said in ((PIECES, "Yes, 90.2 %"), (fewer, "In part, ")):
        assert report(capture).locator(".ol-card-ort .ol-big").inner_text().startswith(said)


def unfolded(page: Page) -> list[str]:
    found: list[str] = page.eval_on_selector_all("details.or-part[open]", "parts => parts.map((part) => part.id)")
    return found


def brightness(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_explorer_is_on_top_and_the_rest_folded_below(report: Callable[..., Page], scheme: str) -> None:
    page = report(PIECES, color_scheme=scheme)
    assert page.inner_text("h1") == "pieces: torch.compile with backend ortlens"
    assert page.inner_text(".or-verdict").startswith("90.2 % of the compiled code runs in ONNX Runtime in 11 partitions, 5 graph breaks")
    assert unfolded(page) == ["figures"]
    explorer, first = page.locator(".or-explorer").bounding_box(), page.locator("#summary").bounding_box()
    assert explorer is not None
    assert first is not None
    assert explorer["height"] > 500
    assert first["y"] >= explorer["y"] + explorer["height"]
    for name in (".or-verdict", "#figures h3", _DRAWN):
        assert (brightness(page.evaluate(_COLOUR, [name, "color"])) > 128) == (scheme == "dark"), name
    assert (brightness(page.evaluate(_COLOUR, [_DRAWN, "fill"])) > 128) == (scheme == "dark")
    assert (brightness(page.evaluate(_COLOUR, ["body", "backgroundColor"])) > 128) == (scheme == "light")


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_sticks_out_of_the_page(report: Callable[..., Page], width: int) -> None:
    page = report(PIECES, viewport={"width": width, "height": 800})
    page.eval_on_selector_all("details.or-part", "parts => parts.forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_expand_search_and_select_across_graph_table_and_timeline(report: Callable[..., Page]) -> None:
    page = report(PIECES)
    go(page, "graph").locator(".olg-stage").wait_for()
    page.click("[data-by=partition]")
    settled(page)
    closed = page.locator(".olg-box[aria-expanded=false]").first
    name = closed.get_attribute("id")
    closed.locator(".olg-toggle").click()
    settled(page)
    assert page.get_attribute(f"[id='{name}']", "aria-expanded") == "true"
    page.focus(".olg-stage")
    page.keyboard.press("/")
    page.fill(".olg-find", "mode")
    page.wait_for_selector("[role=option]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    settled(page)
    node = selected(page)
    assert node.startswith("mode")
    page.click(".ol-jump:text-is('Table')")
    assert node in page.inner_text(".ol-grid-row[aria-selected=true]")
    page.click("[data-table=runs]")
    page.click(".ol-grid-head button:text-matches('^total_ns')")
    runs = sorted(PIECES.runs, key=lambda run: run.start_ns)
    at = max(range(len(runs)), key=lambda number: runs[number].total_ns)
    page.click(f".ol-grid-row[data-at='0']:has-text('{time_from_ns(runs[at].total_ns)}')")
    assert selected(page) == f"call {runs[at].call} of {runs[at].session_id}"
    go(page, "timeline").locator("canvas").focus()
    for key in ("ArrowLeft", "Enter"):  # from the call that was selected in the table to the one before it
        page.keyboard.press(key)
    assert selected(page) == f"call {runs[at - 1].call} of {runs[at - 1].session_id}"
    page.locator(".ol-step:has(h5:text-matches('^Partition')) .ol-link").first.click()
    go(page, "graph")
    settled(page)
    assert page.locator(".olg-selected").count() >= 1


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
    assert unfolded(page) == ["summary", "figures"]


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
    text = page.inner_text("main")
    for said in (
        "46 of 51 compute nodes",
        "11, in 6 graphs",
        "64 values of 11 partitions compared with PyTorch",
        "Graph breaks",
        "aten.mode.default",
        "FusedGemm",
        "execution providers",
        "Which source lines take the most time?",
        "lens.profile(...) creates a second session",
    ):
        assert said in text, said
    assert page.locator("#figures svg").count() == 10
    assert page.locator("#tables table").count() == 11


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_paper_there_is_no_explorer_and_nothing_is_folded(report: Callable[..., Page], scheme: str) -> None:
    page = report(PIECES, color_scheme=scheme)
    page.emulate_media(media="print", color_scheme="dark" if scheme == "dark" else "light")
    assert not page.locator(".or-explorer").is_visible()
    for part in PARTS:
        shown = page.locator(f"#{part} > :not(summary):not(script)").first
        assert shown.is_visible(), part
        box = shown.bounding_box()
        assert box is not None
        assert box["height"] > 10, part
    assert brightness(page.evaluate(_COLOUR, [".or-figure text", "fill"])) < 100
    page.emulate_media(media="screen")
    paper = page.pdf(format="A4")
    assert 3 <= len(re.findall(rb"/Type /Page\b", paper)) <= 20
    assert unfolded(page) == ["figures"]  # as before printing


@pytest.fixture(scope="module")
def small() -> Capture:
    """A capture that holds its ONNX model, as one that comes from a live lens does."""
    import torch

    import ortlens

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    with torch.no_grad():
        return ortlens.explain(model, name="small", calls=2)(torch.ones(2, 8)).captured()


def test_the_onnx_model_and_the_table_of_nodes_select_each_other(report: Callable[..., Page], small: Capture) -> None:
    pytest.importorskip("netron")
    page = report(small)
    go(page, "onnx")
    drawn = page.frame_locator("iframe.ol-onnx-frame")
    drawn.locator("[id^='node-name-']").first.wait_for(timeout=30_000)
    drawn.locator("[id^='node-name-'] :text('Erf')").first.click()
    page.wait_for_selector(".ol-details-name:has-text('gelu')")
    page.locator(".ol-step:has(h5:text-matches('^FX node')) .ol-link").first.click()
    assert selected(page) == "gelu"
    go(page, "tables")
    page.click("[data-table=nodes]")
    assert "gelu" in page.inner_text(".ol-grid-row[aria-selected=true]")
    page.click(".ol-grid-row:has-text('addmm_1')")
    go(page, "onnx")
    drawn.locator(".select :text('Gemm')").first.wait_for(timeout=10_000)


_PLANTED = (
    "<script>document.documentElement.dataset.planted='inline'</script>"
    "<img src='data:,' onerror=\"document.documentElement.dataset.planted='handler'\">"
    "<a href=\"javascript:document.documentElement.dataset.planted='link'\" id='planted'>x</a>"
    "<script src='https://example.invalid/x.js'></script><img src='https://example.invalid/x.png'>"
    "<link rel='stylesheet' href='https://example.invalid/x.css'>"
    "<iframe srcdoc=\"<script>parent.document.documentElement.dataset.planted='frame'</script>\"></iframe><form action='https://example.invalid/'></form>"
)


def _planted(page: str) -> str:
    return page.replace("<main>", f"<main>{_PLANTED}", 1)


def _without_rules(page: str) -> str:
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)


def test_what_is_planted_into_the_page_does_not_run(report: Callable[..., Page]) -> None:
    said: list[str] = []
    page = report(PIECES, edit=_planted, expected=said)
    page.wait_for_selector("[data-ortlens-ready]")
    page.click("#planted")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.dataset.planted ?? null") is None
    assert sum("Content Security Policy" in message for message in said) >= 6
    asked = {message.split()[1] for message in said if message.startswith("request: http")}
    assert asked == {message.split()[1] for message in said if message.startswith("refused: ") and message.endswith(" csp")}


def test_it_is_the_rules_that_keep_it_from_running(report: Callable[..., Page]) -> None:
    page = report(PIECES, edit=lambda text: _planted(_without_rules(text)), expected=[])
    page.wait_for_selector("[data-ortlens-ready]")
    assert page.evaluate("document.documentElement.dataset.planted ?? null") is not None


def test_hostile_names_stay_names(report: Callable[..., Page]) -> None:
    page = report(SAMPLES["hostile"])
    assert page.query_selector("img") is None
    assert "<img src=x onerror=alert(1)>" in page.inner_text("h1")
    go(page, "tables")
    assert page.query_selector("img") is None


@pytest.mark.parametrize("name", ["empty", "foreign", "training", "whole"])
def test_other_captures_open_too(report: Callable[..., Page], name: str) -> None:
    page = report(SAMPLES[name])
    assert "could not" not in page.inner_text("body")


def test_damaged_data_unfolds_the_text(report: Callable[..., Page]) -> None:
    said: list[str] = []
    page = report(PIECES, edit=lambda text: text.replace('id="ortlens-data">', 'id="ortlens-data">AAAA'), expected=said)
    page.wait_for_selector("[role=alert]")
    assert "could not start" in page.inner_text("[role=alert]")
    assert set(unfolded(page)) == set(PARTS)
    assert "46 of 51 compute nodes" in page.inner_text("main")


def test_a_redacted_report_says_so_and_shows_no_source(report: Callable[..., Page]) -> None:
    page = report(PIECES, redact=True)
    assert "Paths are shortened; source text, values in guards and messages, and ONNX models are left out." in page.inner_text(".or-head")
    assert "torch.relu" not in go(page, "source").inner_text()
    packed = page.locator("#ortlens-data").text_content() or ""
    assert b"torch.relu" not in gzip.decompress(base64.b64decode(packed))
