"""The page of a comparison in a real browser: what a stranger sees first, rows that stay beside each other, links by keyboard."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page

import ortlens
from tests.browser.page import BROWSER_MARKS
from tests.browser.test_access import CONTRAST, ENOUGH

pytestmark = BROWSER_MARKS

DATA = Path(__file__).parents[1] / "data" / "compare"


def box(found: Locator) -> tuple[float, float, float, float]:
    shown = found.bounding_box()
    assert shown is not None
    return shown["x"], shown["y"], shown["x"] + shown["width"], shown["y"] + shown["height"]


@pytest.mark.parametrize(("width", "height", "scheme"), [(1440, 900, "dark"), (390, 844, "light")])
def test_what_was_planted_is_on_the_first_screen_and_partners_are_beside_each_other(
    opened: Callable[..., Page], tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    file = ortlens.load(DATA / "before.ortlens").compare(DATA / "after.ortlens").report(tmp_path / "compare.html")
    page = opened(file, viewport={"width": width, "height": height}, color_scheme=scheme)
    for words in ("slower: 2.15x as long", "1 break fixed", "1 moved into it", "into ONNX Runtime: aten.mul.Tensor", "+270 µs", "+261 µs"):
        assert box(page.get_by_text(words).first)[3] <= height, words
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    slab = page.locator(".oc-rows td.oc-break")
    assert slab.count() == 1
    assert "graph break" in slab.inner_text()
    assert slab.evaluate("cell => cell.cellIndex") == 0  # on the side that had it
    page.locator("a", has_text="addmm").first.focus()
    page.keyboard.press("Enter")
    row = page.locator("tr:target")
    left, right = row.locator("td").nth(0), row.locator("td").nth(1)
    assert "widen" in left.inner_text()
    assert "widen" in right.inner_text()
    assert "FusedGemm" in right.inner_text()
    assert abs(box(left)[1] - box(right)[1]) < 1
    assert box(left)[2] <= box(right)[0] + 1
    assert 0 <= box(row)[1] < height
    assert "slower" in row.inner_text()

    fold = page.locator("summary", has_text="9 operators without a difference")
    inside = page.locator("details td", has_text="front.layers.1").first
    assert not inside.is_visible()
    fold.focus()
    page.keyboard.press("Enter")
    assert inside.is_visible()
    texts = page.evaluate(CONTRAST.replace("'.ortlens'", "'.ortlens-compare'"))
    assert len(texts) > 100
    assert [(one["kind"], one["text"]) for one in texts if one["ratio"] < ENOUGH] == []
