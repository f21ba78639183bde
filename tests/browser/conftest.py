"""Pages in a real browser that ask nobody for anything and complain of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from tests.browser.page import CHROMIUM, WIDE, page_from_captures
from tests.browser.walk import watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page, ViewportSize

    from ortlens.trace.records import Capture


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens captures, or packed ones; when the test is over, nothing may have been complained of, asked of anyone, or run."""
    trouble: list[str] = []
    pages: list[Page] = []

    def opened(*captures: Capture | bytes, color_scheme: Literal["light", "dark"] = "light", viewport: ViewportSize = WIDE) -> Page:
        file = tmp_path / f"page{len(pages)}.html"
        file.write_text(page_from_captures(*captures), encoding="utf-8")
        page = browser.new_page(color_scheme=color_scheme, viewport=viewport)
        pages.append(page)
        watch(page, trouble, file.as_uri())
        page.goto(file.as_uri())
        for view in page.query_selector_all("[data-ortlens-payload]"):
            view.wait_for_selector("xpath=self::*[@data-ortlens-ready]", timeout=20_000)
        return page

    yield opened
    for page in pages:
        page.close()
    assert trouble == []
