"""Whatever is selected elsewhere, each panel shows it once it comes up: what it marks lies inside what it has scrolled to."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page

import ortlens
from ortlens.trace.records import Capture
from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import PANELS, settled
from tests.recorded import recorded

pytestmark = BROWSER_MARKS

ONNX = Path(__file__).parents[1] / "data" / "onnx" / "pytorch_dynamo.onnx"
NAMES = (
    *("after", "before", "bert", "deep_break", "demo", "dropout_steps", "dry", "gpt2_steps", "llama", "models", "pieces", "plain0"),
    *("planted0", "planted1", "planted2", "planted3", "resnet", "split", "twelve"),
)
# A drawing tells a test nothing: what is stroked in thick lines, and filled without being dimmed, is noted as it is drawn.
NOTE = """() => {
  const pens = CanvasRenderingContext2D.prototype;
  const { clearRect, strokeRect, fillRect } = pens;
  const note = (pen, on, isMark, box) => isMark && on.canvas.noted?.push([pen, ...box]);
  pens.clearRect = function (...box) { this.canvas.noted = []; clearRect.apply(this, box); };
  pens.strokeRect = function (...box) { note('stroke', this, this.lineWidth >= 1.5, box); strokeRect.apply(this, box); };
  pens.fillRect = function (...box) { note('fill', this, this.globalAlpha === 1, box); fillRect.apply(this, box); };
}"""
# What of the selection a panel marks, where none of it is to be seen; nothing where it marks nothing.
HIDDEN = """([panel, chosen]) => {
  const root = document.querySelector(`.ol-panel-${panel}`), canvas = root.querySelector('canvas.ol-canvas');
  const clip = (element, { left, top, right, bottom } = { left: 0, top: 0, right: innerWidth, bottom: innerHeight }) => {
    for (let at = element.parentElement; at; at = at.parentElement) {
      const box = at.getBoundingClientRect();
      if (getComputedStyle(at).overflow === 'visible') continue;
      [left, top] = [Math.max(left, box.left), Math.max(top, box.top)];
      [right, bottom] = [Math.min(right, box.right), Math.min(bottom, box.bottom)];
    }
    return { left, top, right, bottom };
  };
  const most = (from, to, low, high) => Math.min(to, high) - Math.max(from, low) >= 0.9 * Math.min(to - from, high - low, 200) - 3;
  const seen = ([box, room]) => most(box.left, box.right, room.left, room.right) && most(box.top, box.bottom, room.top, room.bottom);
  const all = (selector) => [...root.querySelectorAll(selector)].filter((one) => one.checkVisibility());
  const onCanvas = ([pen, x, y, w, h]) => {
    const lane = panel === 'timeline' ? JSON.parse(canvas.dataset.lanes).indexOf(chosen) : -1, top = 20 + 24 * lane;
    if (lane >= 0) return pen === 'fill' && x >= 118 && h > 0.4 && y >= top && y + h <= top + 24;
    return pen === 'stroke' && canvas.dataset.linked !== '0';
  };
  let marks = all('[aria-selected=true], [aria-current=true], .ol-linked, .ol-roof-chosen');
  if (panel === 'graph') marks = [all('.olg-selected'), all('.olg-linked, .olg-holds'), all('.olg-box')].find((some) => some.length) ?? [];
  let boxes = marks.map((one) => [(one.querySelector('.olg-body') ?? one).getBoundingClientRect(), clip(one)]);
  if (canvas) {
    const at = canvas.getBoundingClientRect(), room = clip(canvas);
    const moved = ([, x, y, w, h]) => [{ left: at.left + x, top: at.top + y, right: at.left + x + w, bottom: at.top + y + h }, room];
    boxes = (canvas.noted ?? []).filter(onCanvas).map(moved);
  }
  const linked = panel === 'tables' && root.querySelector('[role=status]').textContent.includes('linked to the selection');
  return (boxes.length || linked || root.querySelector('.olg-stage')) && !boxes.some(seen);
}"""


def ids(capture: Capture) -> list[str]:
    """The last of each kind, which is furthest from where a panel opens, and an operator in the middle."""
    found = [
        *(f"graph:{row.graph_id}" for row in capture.graphs[-1:]),
        *(f"partition:{row.partition_id}" for row in capture.partitions[-1:]),
        *(f"session:{row.session_id}" for row in capture.sessions[-1:]),
        *(f"node:{row.graph_id}/{row.node}" for row in (*capture.nodes[len(capture.nodes) // 2 :][:1], *capture.nodes[-1:])),
        *(f"module:{row.graph_id}/{row.module}" for row in [row for row in capture.nodes if row.module][-1:]),
        *(f"line:{row.file}:{row.line}" for row in [row for row in capture.nodes if row.file][-1:]),
        *(f"kernel:{row.session_id}/{row.kernel}" for row in capture.kernels[-1:]),
        *(f"break:{row.break_id}" for row in capture.breaks[-1:]),
        *(f"recompile:{row.compile_id}" for row in capture.recompiles[-1:]),
        *([f"run:{len(capture.runs) - 1}"] if capture.runs else []),
    ]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("name", [*NAMES, ONNX.name])
def test_what_is_selected_is_in_view_in_every_panel(show: Callable[..., Page], name: str) -> None:
    capture = ortlens.explain(ONNX, calls=3)().captured() if name == ONNX.name else recorded(name)
    page = show(capture, viewport={"width": 1000, "height": 620})
    page.evaluate(NOTE)
    hidden = []
    for chosen in ids(capture):
        state = urlencode({"tab": "overview", "selected": chosen, "table": f"{chosen.partition(':')[0]}s"})
        page.evaluate("(hash) => { location.hash = hash; }", state)
        settled(page)
        for tab in PANELS:
            page.evaluate("(tab) => document.querySelector(`[data-tab=${tab}]`).click()", tab)
            settled(page)
            hidden += [(tab, chosen)] if page.evaluate(HIDDEN, [tab, chosen]) else []
    assert hidden == []
