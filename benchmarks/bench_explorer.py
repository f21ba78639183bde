"""The report of a large capture: what it weighs, how long it takes to write, and how soon it answers in headless Chromium.

The nodes are those of a deep decoder, compiled in a dry run; the calls are real calls of a small model with pieces. Needs
playwright and Debian's chromium, without which only sizes are measured. Times are medians of a few openings, from the start of
loading the file.

Usage: python benchmarks/bench_explorer.py [--quick] [--json FILE]
"""

from __future__ import annotations

import gzip
import importlib.util
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from measure import Row, Table, parser_for, report, start
from torch._subclasses.fake_tensor import FakeTensorMode

import ortlens
from ortlens.views.capture_view import SavedCapture
from ortlens.views.payload import payload_bytes

if TYPE_CHECKING:
    from ortlens.trace.records import Capture, Run

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.browser.page import STATIC  # noqa: E402 - from the root of the checkout

_PAGE_MB = 1.5
_PAINT_S = 0.5
_READY_S = 1.0
_FRAME_S = 1 / 60
_FLAME_S = 0.2
_WIDGET_KB = 150.0
_OPENINGS = 5

# From a click until the frame that it leads to is done.
_CLICK = """(find) => new Promise((resolve) => {
  const element = [...document.querySelectorAll(find[0])].find((found) => found.textContent.startsWith(find[1]));
  const before = performance.now();
  element.click();
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - before)));
})"""
_READY = """new MutationObserver(() => {
  if (!window.ready && document.querySelector("[data-ortlens-ready]")) window.ready = performance.now();
}).observe(document, { subtree: true, attributes: true, childList: true });"""
_DRAWN = "performance.getEntriesByName('ortlens-flame-draw')"
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_FRAMES = """() => new Promise((resolve) => {
  const canvas = document.querySelector(".ol-panel-timeline canvas");
  const before = performance.now();
  let count = 0;
  const frame = () => {
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: count % 2 ? "+" : "-", bubbles: true }));
    if (++count < 60) requestAnimationFrame(frame);
    else resolve((performance.now() - before) / 60);
  };
  frame();
})"""


class Pieces(torch.nn.Module):
    """Six products, parted by an operator that stays in PyTorch."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply them."""
        for layer in self.layers:
            x = layer(x)
            x = x - x.median(dim=-1, keepdim=True).values
        return x


def deep_decoder(layers: int) -> Capture:
    """The capture of a decoder of that many layers, without weights and without a call."""
    config = transformers.LlamaConfig(
        use_cache=False, num_hidden_layers=layers, hidden_size=1024, intermediate_size=2048, num_attention_heads=16
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        return ortlens.explain(model, dry_run=True, name="deep decoder")(input_ids=torch.zeros(1, 32, dtype=torch.long)).captured()


def real_calls(count: int) -> Capture:
    """A capture with that many calls: what the recorder keeps of them, gathered again and again."""
    lens = ortlens.Lens()
    fast = torch.compile(Pieces().eval(), backend=lens)
    found: dict[tuple[str | None, int], Run] = {}
    x = torch.randn(4, 32)
    with torch.no_grad():
        while len(found) < count:
            for _ in range(min(1000, count)):
                fast(x)
            found |= {(run.session_id, run.call): run for run in lens.captured().runs}
    return replace(lens.captured(), runs=tuple(sorted(found.values(), key=lambda run: run.start_ns)[-count:]))


def large_capture(layers: int, calls: int) -> Capture:
    """The nodes of the one with the calls and ONNX models of the other, whose ids are set apart."""
    deep, small = deep_decoder(layers), real_calls(calls)
    sessions = tuple(replace(item, session_id=f"t{item.session_id}", partition_id="p0") for item in small.sessions)
    runs = tuple(replace(item, session_id=f"t{item.session_id}", graph_id="g0") for item in small.runs)
    models = tuple(replace(item, model_id=f"t{item.model_id}", partition_id="p0") for item in small.models)
    attachments = {name.replace("models/", "models/t"): data for name, data in small.attachments.items()}
    return replace(deep, sessions=sessions, runs=runs, models=(*deep.models, *models), attachments=attachments)


def sizes(capture: Capture, file: Path) -> list[Row]:
    """What is carried, and how long packing and writing take."""
    before = time.perf_counter()
    data = payload_bytes(capture)
    packed = time.perf_counter()
    SavedCapture(capture).report(file)
    written = time.perf_counter()
    widget = len(gzip.compress((STATIC / "explorer.widget.js").read_bytes()))
    detail = {"nodes": len(capture.nodes), "calls": len(capture.runs)}
    return [
        Row(name="report", value=file.stat().st_size / 1e6, unit="MB", goal=_PAGE_MB, detail=detail),
        Row(name="data in it, gzip", value=len(data) / 1e6, unit="MB"),
        Row(name="packing the data", value=packed - before, unit="s"),
        Row(name="writing the report", value=written - packed, unit="s"),
        Row(name="widget, gzip", value=widget / 1e3, unit="kB", goal=_WIDGET_KB),
    ]


def answers(file: Path, *, openings: int) -> list[Row]:
    """How soon it is painted, ready, and answers a click."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = [_opened(browser, file) for _ in range(openings)]
        browser.close()
    goals = {"first paint": _PAINT_S, "ready": _READY_S, "a frame of zooming the timeline": _FRAME_S, "draw the flame graph": _FLAME_S}
    return [Row(name=name, value=statistics.median(one[name] for one in found), unit="s", goal=goals.get(name)) for name in found[0]]


def _opened(browser: Any, file: Path) -> dict[str, float]:  # noqa: ANN401 - a playwright Browser, which may not be installed
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.add_init_script(_READY)
    page.goto(file.as_uri())
    page.wait_for_selector("[data-ortlens-ready]")
    page.wait_for_timeout(200)
    ms = {"first paint": page.evaluate(_PAINT), "ready": page.evaluate("window.ready")}
    for name, selector, words in (
        ("open the graph", "[role=tab]", "Graph"),
        ("open the tables", "[role=tab]", "Tables"),
        ("open the table of calls", "[data-table]", "runs"),
        ("sort it by time", ".ol-grid-head button", "total_ns"),
        ("sort it by name", ".ol-grid-head button", "session_id"),
        ("open the timeline", "[role=tab]", "Timeline"),
    ):
        ms[name] = page.evaluate(_CLICK, [selector, words])
    ms["a frame of zooming the timeline"] = page.evaluate(_FRAMES)
    page.click("[role=tab][data-tab=flame]")
    page.wait_for_function(f"{_DRAWN}.length > 0")
    ms["draw the flame graph"] = page.evaluate(f"Math.max(...{_DRAWN}.map(entry => entry.duration))")
    page.close()
    return {name: value / 1e3 for name, value in ms.items()}


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__).parse_args()
    start(options)
    layers, calls, openings = (2, 300, 1) if options.quick else (106, 100_000, _OPENINGS)
    capture = large_capture(layers, calls)
    large = f"{len(capture.nodes):,} nodes and {len(capture.runs):,} calls"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        tables = [Table(title=f"What the report of {large} weighs", rows=sizes(capture, file))]
        if shutil.which("chromium") and importlib.util.find_spec("playwright"):
            tables.append(Table(title=f"How soon the report of {large} answers", rows=answers(file, openings=openings)))
        else:
            tables.append(Table(title="Times are not measured", remarks=["playwright or chromium is missing"]))
    report("The explorer", tables, options)


if __name__ == "__main__":
    main()
