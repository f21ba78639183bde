"""Pages in a real browser that ask nobody for anything and complain of nothing."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from ortlens.trace.records import Capture
from ortlens.views.report import report_page
from tests.browser.page import CHROMIUM, WIDE, page_from_captures
from tests.browser.walk import watch

_HERE = Path(__file__).parent
_OPEN = ExitStack()
_BROWSERS: list[Browser] = []
_REPORTS: dict[int, tuple[Capture, str]] = {}
"""Reports by the identity of their capture, which is kept so that no other gets it."""


@pytest.fixture(scope="module")
def browser() -> Browser:
    """The browser of this folder's tests, one for all."""
    if not _BROWSERS:
        playwright = pytest.importorskip("playwright.sync_api")
        running = _OPEN.enter_context(playwright.sync_playwright())
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        _OPEN.callback(started.close)
        _BROWSERS.append(started)
    return _BROWSERS[0]


@pytest.hookimpl(trylast=True)  # when the fixtures of the last test are gone
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the browser before tests of other folders: its event loop would be in their way."""
    if nextitem is None or _HERE not in nextitem.path.parents:
        _OPEN.close()
        _BROWSERS.clear()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens HTML or a file of it; afterwards nothing may have been complained of or asked of anyone, unless the test hears it itself."""
    trouble: list[str] = []
    pages: list[Page] = []

    def open_page(html: str | Path, *, heard: list[str] | None = None, frames: bool = False, **context: Any) -> Page:  # noqa: ANN401
        file = html if isinstance(html, Path) else tmp_path / f"page{len(pages)}.html"
        if isinstance(html, str):
            file.write_text(html, encoding="utf-8")
        page = browser.new_page(**{"viewport": WIDE, **context})
        pages.append(page)
        watch(page, trouble if heard is None else heard, file.as_uri(), frames=frames)
        page.goto(file.as_uri())
        return page

    yield open_page
    for page in pages:
        page.close()
    assert trouble == []


@pytest.fixture
def show(opened: Callable[..., Page]) -> Callable[..., Page]:
    """Opens the explorer of captures, or of packed ones."""

    def shown(*captures: Capture | bytes, **context: Any) -> Page:  # noqa: ANN401 - as playwright takes them
        page = opened(page_from_captures(*captures), **context)
        for view in page.query_selector_all("[data-ortlens-payload]"):
            view.wait_for_selector("xpath=self::*[@data-ortlens-ready]", timeout=20_000)
        return page

    return shown


@pytest.fixture
def report(opened: Callable[..., Page]) -> Callable[..., Page]:
    """Opens the report of a capture, which is made once."""

    def shown(capture: Capture, *, edit: Callable[[str], str] = str, **context: Any) -> Page:  # noqa: ANN401 - as above
        if id(capture) not in _REPORTS:
            _REPORTS[id(capture)] = capture, report_page(capture)
        page = opened(edit(_REPORTS[id(capture)][1]), frames=True, **context)
        if context.get("java_script_enabled", True) and "heard" not in context:
            page.wait_for_selector("[data-ortlens-ready]", timeout=30_000)
        return page

    return shown
