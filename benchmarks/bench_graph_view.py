"""The explorer's graph of 10,000 and 20,000 nodes in headless Chromium: opening it, opening every group, panning.

The graphs are those of deep decoders, compiled in dry runs. What a large graph is made from
is made while the page stands idle; a click in the moment in which the page is ready is measured too. Frames are not held to the screen's
rate, so that a frame's time is what it costs. Needs playwright and Debian's chromium. Times are medians.

Usage: python benchmarks/bench_graph_view.py [--quick] [--json FILE]
"""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_explorer import deep_decoder
from measure import Row, Table, parser_for, report, start

from tests.browser.page import page_from_captures

if TYPE_CHECKING:
    from ortlens.trace.records import Capture

_OPEN_GOAL = 0.2
_FRAME_GOAL = 16.0
_LAYERS = {"10,000": 106, "20,000": 212}
_OPENINGS = 5

# From the click until the frame after the one that it leads to has begun: painted, and not only computed.
_CLICK = """(selector) => new Promise((resolve) => {
  const before = performance.now();
  document.querySelector(selector).click();
  requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - before)));
})"""
# The same, in the very task in which the page is ready, so that nothing was prepared while it stood there.
_AT_ONCE = f"""window.opened = new Promise((resolve) => new MutationObserver((_, observer) => {{
  if (!document.querySelector("[data-ortlens-ready]")) return;
  observer.disconnect();
  ({_CLICK})("[data-tab=graph]").then(resolve);
}}).observe(document, {{ subtree: true, attributes: true, childList: true }}));"""
_ZOOM = """(factor) => new Promise((resolve) => {
  const stage = document.querySelector(".olg-stage");
  const { left, top, width, height } = stage.getBoundingClientRect();
  const at = { clientX: left + width / 2, clientY: top + height / 2, bubbles: true, cancelable: true };
  stage.dispatchEvent(new WheelEvent("wheel", { deltaY: -Math.log(factor) / 0.0015, ...at }));
  setTimeout(resolve, 300);
})"""
# Drags to and fro as a hand does, up to fifteen pixels a frame; every frame's time.
_PAN = """(count) => new Promise((resolve) => {
  const stage = document.querySelector(".olg-stage");
  stage.setPointerCapture = () => {};
  const send = (kind, x, y) => stage.dispatchEvent(
    new PointerEvent(kind, { bubbles: true, clientX: x, clientY: y, pointerId: 1, button: 0, buttons: 1 }));
  send("pointerdown", 500, 400);
  const times = [];
  let last = performance.now();
  const frame = () => {
    const now = performance.now();
    times.push(now - last);
    last = now;
    if (times.length > count) {
      send("pointerup", 500, 400);
      resolve(times.slice(1));
      return;
    }
    send("pointermove", 500 - Math.sin(times.length / 28) * 420, 400 - Math.sin(times.length / 45) * 260);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})"""
_DRAWN = "document.querySelectorAll('.olg-svg *').length"
_BEFORE_FRAME = "document.querySelector('.olg-stage') && performance.getEntriesByName('ortlens-graph-open')[0].duration"


def measured(page: str, *, openings: int, frames: int) -> tuple[list[Row], list[Row]]:
    """Times of opening, and of a frame at three scales with every group open."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        flags = ["--no-sandbox", "--disable-frame-rate-limit", "--disable-gpu-vsync"]
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        opened = [_opened(browser, file) for _ in range(openings)]
        panned = _panned(browser, file, frames)
        browser.close()
    goals = {"opening view": _OPEN_GOAL}
    times = [Row(name=name, value=statistics.median(one[name] for one in opened), unit="s", goal=goals.get(name)) for name in opened[0]]
    return times, panned


def _graph(browser: Any, file: Path) -> Any:  # noqa: ANN401 - playwright may not be installed
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(file.as_uri())
    page.wait_for_selector("[data-ortlens-ready]")
    page.wait_for_timeout(200)
    return page


def _opened(browser: Any, file: Path) -> dict[str, float]:  # noqa: ANN401 - as above
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.add_init_script(_AT_ONCE)
    page.goto(file.as_uri())
    at_once = page.evaluate("window.opened")
    page.close()
    page = _graph(browser, file)
    times = {"opening view": page.evaluate(_CLICK, "[data-tab=graph]"), "of it before the first frame": page.evaluate(_BEFORE_FRAME)}
    times["opening view, clicked as the page was ready"] = at_once
    times["opening every group"] = page.evaluate(_CLICK, ".olg-openings button")
    page.close()
    return {name: value / 1e3 for name, value in times.items()}


def _panned(browser: Any, file: Path, frames: int) -> list[Row]:  # noqa: ANN401 - as above
    page = _graph(browser, file)
    for selector in ("[data-tab=graph]", ".olg-openings button"):
        page.evaluate(_CLICK, selector)
    rows = [_pan(page, "all of it in view", frames)]
    page.fill(".olg-find", "mm_100")
    page.press(".olg-find", "Enter")
    page.wait_for_timeout(300)
    rows.append(_pan(page, "to be read", frames))
    for name, factor in (("a third of that", 1 / 3), ("a tenth", 0.3)):
        page.evaluate(_ZOOM, factor)
        rows.append(_pan(page, name, frames))
    page.close()
    return rows


def _script_ms(page: Any, frames: int) -> float:  # noqa: ANN401 - as above
    """What of a frame is script, by sampling; the rest is the browser's painting, which a machine without GPU does by itself."""
    session = page.context.new_cdp_session(page)
    session.send("Profiler.enable")
    session.send("Profiler.start")
    page.evaluate(_PAN, frames)
    profile = session.send("Profiler.stop")["profile"]
    session.detach()
    others = {node["id"] for node in profile["nodes"] if node["callFrame"]["functionName"] in ("(idle)", "(program)", "(root)")}
    spent = zip(profile["samples"], profile["timeDeltas"], strict=True)
    us: int = sum(us for node, us in spent if node not in others)
    return us / 1e3 / frames


def _pan(page: Any, name: str, frames: int) -> Row:  # noqa: ANN401 - as above
    times = sorted(page.evaluate(_PAN, frames))
    script = _script_ms(page, min(frames, 100))
    detail = {"script": script, "95 % below": times[len(times) * 19 // 20], "longest": times[-1], "elements": page.evaluate(_DRAWN)}
    return Row(name=name, value=statistics.median(times), unit="ms", goal=_FRAME_GOAL, detail=detail)


def tables_of(capture: Capture, *, quick: bool) -> list[Table]:
    """What the graph of one capture takes."""
    times, frames = measured(page_from_captures(capture), openings=1 if quick else _OPENINGS, frames=20 if quick else 300)
    size = f"{len(capture.nodes):,} nodes"
    return [Table(title=f"The graph of {size}", rows=times), Table(title=f"A frame of panning, {size}, every group open", rows=frames)]


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__).parse_args()
    start(options)
    if not shutil.which("chromium") or importlib.util.find_spec("playwright") is None:
        report("The explorer's graph", [Table(title="Nothing is measured", remarks=["playwright or chromium is missing"])], options)
        return
    layers = [2] if options.quick else _LAYERS.values()
    tables = [table for count in layers for table in tables_of(deep_decoder(count), quick=options.quick)]
    report("The explorer's graph", tables, options)


if __name__ == "__main__":
    main()
