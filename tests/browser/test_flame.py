"""The flame graph in a real browser: what is slow is wide, what is found adds up, and all of it by keyboard."""

from collections.abc import Callable
from dataclasses import replace

from playwright.sync_api import Page, ViewportSize

from ortlens.units import time_from_ns
from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import go, selected, settled
from tests.recorded import recorded

pytestmark = BROWSER_MARKS

TWELVE, BERT = map(recorded, ("twelve", "bert"))
PHONE: ViewportSize = {"width": 390, "height": 800}
CANVAS = ".ol-panel-flame canvas"


def said(page: Page) -> str:
    settled(page)
    return page.inner_text(".ol-panel-flame .ol-status")


def test_a_slow_line_is_the_widest_and_first_in_the_list(show: Callable[..., Page]) -> None:
    slow = next(row for row in TWELVE.fallbacks if "mode" in row.target)
    capture = replace(
        TWELVE,
        fallbacks=tuple(replace(row, call_ns=5_000_000) if row is slow else row for row in TWELVE.fallbacks),
        ledger=tuple(
            replace(part, ns=part.ns + 5_000_000) if (part.graph_id, part.part) == (slow.graph_id, "eager") else part
            for part in TWELVE.ledger
        ),
    )
    page = show(capture, viewport=PHONE)
    page.click("[data-tile=time]")
    first = page.locator(".ol-longest li").first
    assert first.inner_text().split("\n")[0].startswith("5.")
    first.locator(".ol-link").click()
    assert selected(page).startswith("mode")
    assert "operator in PyTorch: 5.00 ms" in said(page)
    key = ".ol-panel-flame .ol-flame-key"
    assert "bind" in page.inner_text(key)
    page.click("[data-metric=compile]")
    assert page.inner_text(key).split() == ["phase", "of", "compiling"]  # of what is drawn, and nothing else


def test_a_graph_break_is_a_slab_that_leads_to_its_line_and_words_stand_out_from_every_fill(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    go(page, "flame")
    page.fill(".ol-panel-flame [data-find]", "graph break")
    total = sum((item.cost_ns or 0) + (item.between_ns or 0) for item in TWELVE.breaks)
    assert page.inner_text(".ol-panel-flame .ol-tools [role=status]").startswith(f"10 frames: {time_from_ns(total)}")
    page.fill(".ol-panel-flame [data-find]", "")
    box = page.locator(CANVAS).bounding_box()
    assert box is not None
    hit = None
    for x in range(5, int(box["width"]), 8):
        page.mouse.move(box["x"] + x, box["y"] + 36)
        if "graph break" in said(page):
            hit = x
            break
    assert hit is not None
    page.mouse.click(box["x"] + hit, box["y"] + 36)
    assert selected(page) in {item.reason for item in TWELVE.breaks}
    script = """() => {
      const probe = document.querySelector('.ortlens').appendChild(document.createElement('span'));
      const canvas = Object.assign(document.createElement('canvas'), { width: 1, height: 1 });
      const context = canvas.getContext('2d', { willReadFrequently: true });
      const light = (name) => {
        probe.style.color = `var(--ol-flame-${name})`;
        context.fillStyle = getComputedStyle(probe).color;
        context.fillRect(0, 0, 1, 1);
        const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((part) => linear(part / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ink = light('ink');
      const fills = ['call', 'graph', 'module', 'ort', 'kernel', 'torch', 'bind', 'output', 'residual',
        'guards', 'between', 'break', 'phase'];
      const found = fills.map((name) => [name, (light(name) + 0.05) / (ink + 0.05)]).filter(([, ratio]) => ratio < 4.5);
      probe.remove();
      return found;
    }"""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(script) == [], scheme


def test_by_keyboard_to_the_longest_kernel_and_back(show: Callable[..., Page]) -> None:
    page = show(BERT)
    go(page, "flame")
    page.focus(CANVAS)
    met = [said(page)]
    for _ in range(12):
        page.keyboard.press("ArrowDown")
        met.append(said(page))
    assert "kernel of ONNX Runtime" in met[-1]
    page.keyboard.press("Enter")
    assert page.get_attribute(".ol-details", "data-selected") is not None
    page.keyboard.press("+")
    assert page.locator(".ol-crumbs .ol-link").count() > 4
    page.keyboard.press("0")
    assert not page.locator(".ol-crumbs").is_visible()
    page.keyboard.press("ArrowUp")
    assert "operator in ONNX Runtime" in said(page)
