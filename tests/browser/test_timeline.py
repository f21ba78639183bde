"""The timeline in a real browser: graphs above the calls, profiled kernels inside the runs, memory, and how long calls take."""

from collections.abc import Callable
from dataclasses import replace

from playwright.sync_api import Page, ViewportSize

from ortlens.units import size_from_bytes, time_from_ns
from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import go, lane_middle, settled
from tests.recorded import recorded

pytestmark = BROWSER_MARKS

TWELVE, BERT = map(recorded, ("twelve", "bert"))
PHONE: ViewportSize = {"width": 390, "height": 800}
CANVAS = ".ol-panel-timeline canvas"


HOVER = """([selector, y]) => {
  const canvas = document.querySelector(selector), box = canvas.getBoundingClientRect(), said = new Set();
  for (let x = 122; x < box.width; x += 3) {
    canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: box.x + x, clientY: box.y + y }));
    said.add(document.querySelector('.ol-panel-timeline .ol-status').innerText);
  }
  return [...said];
}"""


def hovered(page: Page, kind: str) -> list[str]:
    """What is said along a lane, each once."""
    said: list[str] = page.evaluate(HOVER, [CANVAS, lane_middle(page, kind)])
    return said


def test_each_graph_is_a_slice_that_selects_it_and_memory_is_the_profiled_peak_of_each_session(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    go(page, "timeline")
    words = hovered(page, "graph")
    assert {text.split()[0] for text in words if "entered for" in text} == {graph.graph_id for graph in TWELVE.graphs}
    told = {text.split()[2].rstrip(":"): text for text in hovered(page, "memory") if text.startswith("Activations of ")}
    sizes = {session.session_id: session.arena_bytes for session in TWELVE.sessions if session.arena_bytes}
    assert set(told) == set(sizes)
    for session, text in told.items():
        assert f": {size_from_bytes(sizes[session])} at their peak in profiled calls, not in this one" in text
    page.focus(CANVAS)
    page.keyboard.press("ArrowUp")  # from the calls, where the keyboard begins
    page.keyboard.press("Enter")
    assert (page.get_attribute(".ol-details", "data-selected") or "").startswith("graph:")


def test_kernels_by_keyboard_have_the_time_of_their_row(show: Callable[..., Page]) -> None:
    slow = replace(BERT.kernels[0], mean_ns=900_000_000)
    page = show(replace(BERT, kernels=(slow, *BERT.kernels[1:])), viewport=PHONE)
    go(page, "timeline")
    page.focus(CANVAS)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Home")
    status = page.locator(".ol-panel-timeline .ol-status")
    for kernel in (slow, *BERT.kernels[1:4]):
        text = status.inner_text()
        assert text.startswith(f"{kernel.op_type} {kernel.kernel}: {time_from_ns(kernel.mean_ns or 0)} per run")
        assert "not of this one" in text
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    kernel = BERT.kernels[4]
    assert page.get_attribute(".ol-details", "data-selected") == f"kernel:{kernel.session_id}/{kernel.kernel}"
    page.keyboard.press("ArrowLeft")
    assert status.inner_text().startswith(f"{BERT.kernels[3].op_type} {BERT.kernels[3].kernel}: ")


def test_tens_of_thousands_of_profiled_calls_are_drawn_by_the_pixel(show: Callable[..., Page]) -> None:
    """What one redraw draws is bounded by the width of the picture, not by the calls."""
    first = BERT.runs[0]
    runs = tuple(replace(first, call=at, start_ns=first.start_ns + at * (first.total_ns + 1000)) for at in range(30_000))
    page = show(replace(BERT, runs=runs, nodes=(), numerics=()))
    go(page, "timeline")
    page.focus(CANVAS)
    drawn, width = page.evaluate(
        """async () => {
          const canvas = document.querySelector('.ol-panel-timeline canvas');
          const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          await frame();
          const pens = CanvasRenderingContext2D.prototype;
          let drawn = 0;
          for (const name of ['fillRect', 'strokeRect', 'fillText', 'fill', 'stroke', 'moveTo', 'lineTo']) {
            const pen = pens[name];
            pens[name] = function (...where) { drawn += 1; return pen.apply(this, where); };
          }
          canvas.dispatchEvent(new KeyboardEvent('keydown', { key: '0' }));
          await frame();
          return [drawn, canvas.clientWidth];
        }"""
    )
    settled(page)
    assert width < drawn < 20 * width
