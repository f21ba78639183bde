"""The roofline in a real browser: the kernel that loses most is first, stands under the roof, and is linked to everything else."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from playwright.sync_api import Page, ViewportSize

from ortlens.analysis.roofline import roofs
from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import go, selected, settled, with_peaks
from tests.recorded import recorded

pytestmark = BROWSER_MARKS

BERT = with_peaks(recorded("bert"))
SLOW = max((row for row in roofs(BERT) if row.flops), key=lambda row: row.mean_ns)
PLANTED = replace(
    BERT,
    kernels=tuple(
        replace(kernel, mean_ns=100 * SLOW.mean_ns) if (kernel.session_id, kernel.kernel) == (SLOW.session_id, SLOW.kernel) else kernel
        for kernel in BERT.kernels
    ),
)
VIEWS: dict[str, ViewportSize] = {"desk": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 800}}
DOT = f".ol-roof-dot[data-id='kernel:{SLOW.session_id}/{SLOW.kernel}']"


@pytest.mark.parametrize(("view", "scheme"), [("desk", "light"), ("phone", "dark")])
def test_a_planted_slow_kernel_is_first_far_below_the_roof_and_selects_itself_everywhere(
    show: Callable[..., Page], view: str, scheme: str
) -> None:
    page = show(PLANTED, viewport=VIEWS[view], color_scheme=scheme)
    go(page, "roofline")
    first = page.locator(".ol-panel-roofline .ol-longest li").first
    assert first.locator(".ol-link").inner_text() == f"{SLOW.op_type} from {SLOW.node}"
    dots = page.locator(".ol-roof-dot").evaluate_all("all => all.map(dot => [dot.dataset.id, Number(dot.getAttribute('cy'))])")
    assert max(dots, key=lambda dot: dot[1])[0] == f"kernel:{SLOW.session_id}/{SLOW.kernel}"  # the lowest: y grows downwards
    box = page.locator(".ol-roofline > svg").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= VIEWS[view]["width"]
    page.click(DOT)
    settled(page)
    assert selected(page) == SLOW.kernel
    assert "ol-roof-chosen" in str(page.get_attribute(DOT, "class"))
    assert page.locator(".ol-panel-roofline li.ol-linked").count() == 1
    go(page, "tables")
    page.click("[data-table=roofline]")
    settled(page)
    assert page.locator(".ol-grid-row[aria-current=true]").count() == 1
    page.click(".ol-details .ol-icon")
    go(page, "roofline")
    assert page.locator(".ol-roof-chosen").count() == 0
    page.focus(".ol-panel-roofline .ol-longest .ol-link >> nth=0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert "% of the" in page.inner_text(".ol-panel-roofline .ol-status")
    page.keyboard.press("Enter")
    settled(page)
    assert selected(page) == SLOW.kernel
