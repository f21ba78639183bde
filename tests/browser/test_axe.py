"""axe-core finds nothing serious on the report, in each panel of the explorer, and on each page of the docs site, in light and dark."""

import functools
import http.server
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page

from ortlens.views.report import report_page
from tests.browser.page import BROWSER_MARKS, WIDE
from tests.browser.walk import PANELS, go, settled, with_findings, with_peaks
from tests.recorded import recorded

ROOT = Path(__file__).parents[2]
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = [*BROWSER_MARKS, pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: npm ci in frontend")]
# What a box of the graph is called says more than fits into it, which axe takes for another name; test_access reads its colours.
SERIOUS = """async () => (await axe.run({ exclude: ['.olg-svg'] }, { resultTypes: ['violations'] })).violations
  .filter(({ impact }) => ['serious', 'critical'].includes(impact)).map(({ id, nodes }) => [id, nodes[0].html])"""
UNFOLD = "all => all.forEach((one) => { one.open = true; })"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


def opened(browser: Browser, url: str, scheme: Literal["light", "dark"]) -> tuple[Page, list[str]]:
    """Open a page with axe-core in it; returns it with the errors of its scripts."""
    page, errors = browser.new_page(viewport=WIDE, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    return page, errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_and_every_panel(browser: Browser, tmp_path: Path, scheme: Literal["light", "dark"]) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_page(with_findings(with_peaks(recorded("pieces")))), encoding="utf-8")
    page, errors = opened(browser, file.as_uri(), scheme)
    page.wait_for_selector("[data-ortlens-ready]")
    found: list[Any] = []
    for panel in PANELS:
        go(page, panel)
        if panel == "graph":
            page.fill(".olg-find", "add")  # a list is open
        settled(page)
        found += page.evaluate(SERIOUS)
    page.eval_on_selector_all("details", UNFOLD)
    found += page.evaluate(SERIOUS)
    page.close()
    assert (found, errors) == ([], [])


def test_every_page_of_the_docs(browser: Browser, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path], cwd=ROOT, check=True, timeout=300)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found: list[Any] = []
        for file in sorted(tmp_path.rglob("*.html")):
            page, errors = opened(browser, f"http://127.0.0.1:{server.server_port}/{file.relative_to(tmp_path)}", "light")
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
                found += [(file.name, scheme, one) for one in (*page.evaluate(SERIOUS), *(["scrolls sideways"] if wide else []))]
            page.close()
            found += [(file.name, one) for one in errors]
        server.shutdown()
    assert found == []
