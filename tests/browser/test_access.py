"""Who cannot see colours, uses no mouse, or listens: contrast, names, roles, and where the keyboard goes."""

from collections.abc import Callable
from typing import Literal

import pytest
from playwright.sync_api import Page

from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import PANELS, go, settled, with_findings, with_peaks
from tests.recorded import recorded

pytestmark = BROWSER_MARKS

TWELVE, PIECES = (with_findings(with_peaks(recorded(name))) for name in ("twelve", "pieces"))
ENOUGH = 4.5

# Every text that can be seen, with its colour against what is painted behind it. A canvas turns any way to write a colour into bytes.
CONTRAST = """() => {
  const context = Object.assign(document.createElement('canvas'), { width: 1, height: 1 }).getContext('2d', { willReadFrequently: true });
  const known = new Map();
  const bytes = (colour) => {
    if (!known.has(colour)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      known.set(colour, [r, g, b, a / 255]);
    }
    return known.get(colour);
  };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
  const light = (colour) => {
    const [r, g, b] = colour.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const layersBehind = (element) => {
    const layers = [];
    if (element.ownerSVGElement) {
      const box = element.closest('.olg-box');
      const header = box?.querySelector(':scope > .olg-header');
      const front = header ?? box?.querySelector(':scope > .olg-body:not(.olg-behind)');
      const body = element.classList.contains('olg-wire-label') ? null : front;
      if (body) layers.push(getComputedStyle(body).fill);
    }
    for (let at = element.ownerSVGElement ?? element; at; at = at.parentElement) layers.push(getComputedStyle(at).backgroundColor);
    return [...layers, 'Canvas'];
  };
  const found = [];
  const seen = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const walker = document.createTreeWalker(document.querySelector('.ortlens'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    if (!text || !seen(element) || element.closest('[aria-hidden=true], option')) continue;
    const style = getComputedStyle(element);
    let behind = [255, 255, 255];
    for (const layer of layersBehind(element).reverse()) behind = over(bytes(layer), behind);
    const colour = over(bytes(element.ownerSVGElement ? style.fill : style.color), behind);
    const [a, b] = [light(colour), light(behind)].sort((x, y) => y - x);
    const kind = `${element.tagName}.${element.getAttribute('class') ?? ''}`;
    found.push({ text: text.slice(0, 40), kind, ratio: (a + 0.05) / (b + 0.05) });
  }
  return found;
}"""

# Everything that can be worked, and everything that is an image, with the name that a screen reader says.
NAMELESS = """() => [...document.querySelectorAll(`.ortlens :is(button, input, select, textarea, summary, [role=img],
    [role=grid], [role=tree], [role=tablist], [role=group], [role=application], [role=option], [role=treeitem], [tabindex="0"])`)]
  .filter((element) => element.checkVisibility())
  .filter((element) => {
    const labelled = element.getAttribute('aria-label') ?? element.labels?.[0]?.textContent ?? element.getAttribute('placeholder');
    return !(labelled ?? element.textContent).trim();
  })
  .map((element) => element.outerHTML.slice(0, 160))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_and_everything_that_can_be_worked_has_a_name_and_a_role(
    show: Callable[..., Page], scheme: Literal["light", "dark"]
) -> None:
    page = show(PIECES, color_scheme=scheme)
    page.click(".ol-segment-ort >> nth=0")
    for panel in PANELS:
        root = go(page, panel)
        settled(page)
        assert "could not be drawn" not in root.inner_text()
        assert root.locator(".ol-empty:not([hidden])").count() == 0, panel
        for mode in ("partition", "time", "error", "reason") if panel == "graph" else ("",):
            if mode:
                page.select_option(".olg-tools select[aria-label=Colour]", mode)
                go(page, panel)
                settled(page)
            texts = page.evaluate(CONTRAST)
            assert len(texts) > 20
            weak = [(one["kind"], one["text"], round(one["ratio"], 2)) for one in texts if one["ratio"] < ENOUGH]
            assert weak == [], (panel, mode)
        assert page.evaluate(NAMELESS) == [], panel
        tab = page.locator("[role=tab][aria-selected=true]")
        shown = page.locator(f"[id='{tab.get_attribute('aria-controls')}']")
        assert shown.get_attribute("role") == "tabpanel"
        assert shown.get_attribute("aria-labelledby") == tab.get_attribute("id")
    pairs = {"tab": "tablist", "row": "rowgroup", "gridcell": "row", "columnheader": "row", "treeitem": "tree"}
    for inner, outer in pairs.items():
        found = page.locator(f"[role={inner}]").evaluate_all(f"all => all.map(one => one.closest('[role={outer}]') !== null)")
        assert found, inner
        assert all(found), inner
    go(page, "overview")
    weak_colour = {"light": "#999", "dark": "#555"}[scheme]
    page.evaluate("(colour) => { document.querySelector('.ol-card h3').style.color = colour; }", weak_colour)
    assert len([one for one in page.evaluate(CONTRAST) if one["ratio"] < ENOUGH]) == 1


def tab_stops(page: Page, panel: str) -> list[str]:
    """What the Tab key meets from the tabs until the view is left or has come round."""
    page.focus(f"[data-tab={panel}]")
    met: list[str] = []
    for _ in range(80):
        page.keyboard.press("Tab")
        where = page.evaluate(
            """() => {
              const at = document.activeElement;
              if (!at.closest('.ortlens')) return null;
              const style = getComputedStyle(at);
              const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
              return [ring ? 'ring' : 'none', at.tagName, at.className, at.textContent.slice(0, 20)].join(' ');
            }"""
        )
        if where is None or where in met[-1:]:
            break
        met.append(where)
    return met


# More stops than this between the tabs and the end of the view, and nobody gets through by keyboard.
def test_tab_gets_through_every_panel_and_shows_where_it_is(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    for panel in PANELS:
        go(page, panel)
        settled(page)
        met = tab_stops(page, panel)
        assert met, panel
        assert len(met) < 60, panel
        assert [stop for stop in met if not stop.startswith("ring")] == [], panel


def test_arrows_go_among_lines_cards_and_pieces(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    focused = "document.activeElement.textContent"
    for panel, first, selector in (
        ("overview", ".ol-strip .ol-link >> nth=0", ".ol-strip button"),
        ("source", ".ol-listing .ol-link >> nth=0", ".ol-listing .ol-link"),
        ("breaks", ".ol-event h4 .ol-link >> nth=0", ".ol-event h4 .ol-link"),
        ("findings", ".ol-panel-findings .ol-event h4 .ol-link >> nth=0", ".ol-panel-findings .ol-event h4 .ol-link"),
        ("tables", "[data-table] >> nth=0", "[data-table]"),
    ):
        go(page, panel)
        settled(page)
        names = page.locator(selector).all_text_contents()
        page.focus(first)
        page.keyboard.press("ArrowDown")
        assert page.evaluate(focused) == names[1]
        page.keyboard.press("End")
        assert page.evaluate(focused) == names[-1]
        page.keyboard.press("ArrowUp")
        assert page.evaluate(focused) == names[-2]
        page.keyboard.press("Home")
        assert page.evaluate(focused) == names[0]
        assert page.locator(f"{selector}[tabindex='0']").count() == 1
        page.keyboard.press("Enter")


def test_a_slash_finds_in_tables_and_source(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    go(page, "tables")
    settled(page)
    page.click("[data-table=nodes]")
    page.focus(".ol-panel-tables .ol-grid")
    page.keyboard.press("/")
    page.keyboard.type("prims.bessel stages.3")
    wanted = [node for node in TWELVE.nodes if "bessel" in node.target and "stages.3" in (node.module or "")]
    assert page.inner_text(".ol-panel-tables [role=status]") == f"{len(wanted)} of {len(TWELVE.nodes)} rows"
    page.keyboard.press("Escape")
    assert page.inner_text(".ol-panel-tables [role=status]") == f"{len(TWELVE.nodes)} rows"
    go(page, "source")
    settled(page)
    page.keyboard.press("/")
    page.keyboard.type("bessel")
    page.keyboard.press("Enter")
    assert "bessel_j0" in page.inner_text(".ol-line[aria-current=true]")
