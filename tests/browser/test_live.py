"""`lens.live()` in JupyterLab: the picture moves while the cell runs, stays when it ended, and follows light and dark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.browser.page import BROWSER_MARKS

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytest.importorskip("jupyterlab", reason="needs JupyterLab, which the group `test` brings")
pytestmark = BROWSER_MARKS

SET_UP = """\
import time, torch, ortlens
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
lens = ortlens.Lens(name="training")
step = torch.compile(lambda x: torch.fft.fft(net(x)).abs().sum(), backend=lens, dynamic=False)
step(torch.randn(32, 64)).backward()
"""
LOOP = """\
with lens.live(every=0.2):
    for size in (32, 48):
        until = time.monotonic() + 3
        while time.monotonic() < until:
            step(torch.randn(size, 64)).backward()
"""
INK = "(line) => getComputedStyle(line).color.match(/[\\d.]+/g).slice(0, 3).reduce((total, part) => total + Number(part), 0)"


def test_the_picture_moves_and_stays(browser: Browser, tmp_path: Path) -> None:
    from tests.browser.lab import Notebook, serving

    folder = tmp_path / "jupyter"
    folder.mkdir()
    with serving(folder) as server:
        notebook = Notebook(browser, server, server.write("live.ipynb", SET_UP, LOOP))
        notebook.run(0)
        notebook.cell(1).locator(".cm-content").click()
        notebook.page.keyboard.press("Control+Enter")
        live = notebook.cell(1).locator(".ortlens-summary")
        title = live.locator(".ol-title")
        title.filter(has_text="training: running for").wait_for()
        curve = live.locator("svg polyline")
        curve.wait_for()
        before = curve.get_attribute("points")
        notebook.page.wait_for_function(
            "(before) => document.querySelector('.ol-curve polyline').getAttribute('points') !== before", arg=before
        )
        title.filter(has_text="training: ended after").wait_for()
        assert live.count() == 1
        assert re.search(r"\d recompiles?", live.locator("svg").text_content() or "")
        light = curve.evaluate(INK)
        live.scroll_into_view_if_needed()
        notebook.page.screenshot(path=tmp_path / "light.png")
        notebook.command("apputils:change-theme", theme="JupyterLab Dark")
        notebook.page.wait_for_selector("body[data-jp-theme-light=false]", state="attached")
        notebook.page.wait_for_timeout(500)
        notebook.page.screenshot(path=tmp_path / "dark.png")
        assert light < 200
        assert curve.evaluate(INK) > 500
        notebook.command("docmanager:save")
        assert "ended after" in (server.folder / "live.ipynb").read_text(encoding="utf-8")
        assert notebook.trouble == []
        notebook.page.close()
