"""The explorer in marimo, in a real browser: it is shown, and what is selected there arrives in Python, and the other way round."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.lab import PATIENCE_S, ROOT, free_port, wait_for_server
from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import go, selected

pytest.importorskip("marimo", reason="needs marimo, which the group `test` brings")
pytestmark = BROWSER_MARKS

CAPTURE = Path(__file__).parent / "captures" / "pieces.ortlens"
PROGRAM = f"""
import marimo
app = marimo.App()

@app.cell
def _():
    import marimo as mo
    import ortlens
    lens = ortlens.load({str(CAPTURE)!r})
    view = mo.ui.anywidget(lens.show())
    view
    return mo, view

@app.cell
def _(mo, view):
    chosen = view.value.get("selected")
    mo.md(f"chosen: {{chosen}}")

@app.cell
def _(mo, view):
    button = mo.ui.button(label="another", on_click=lambda _: setattr(view.widget, "selected", "partition:p3"))
    button
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where marimo serves the program as an app."""
    program, log, port = tmp_path / "app.py", tmp_path / "marimo.log", free_port()
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "marimo", "run", str(program), "--headless", "--no-token", f"--port={port}", "--host=127.0.0.1"]
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": places, "HOME": str(tmp_path), "MARIMO_SKIP_UPDATE_CHECK": "1"}
    with log.open("wb") as told, subprocess.Popen(command, env=environ, stdout=told, stderr=told, cwd=tmp_path) as process:
        try:
            wait_for_server(process, port, log)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


def test_what_is_selected_arrives_on_the_other_side(browser: Browser, address: str) -> None:
    page, trouble = browser.new_page(viewport={"width": 1280, "height": 900}), list[str]()
    page.set_default_timeout(PATIENCE_S * 1000)
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((address, "data:", "blob:", "ws:")) else trouble.append(request.url))
    page.goto(address)
    view = page.locator("marimo-anywidget")
    view.locator(".ol-shell").wait_for()
    go(view, "tables").locator("[data-table=partitions]").click()
    view.locator("input[aria-label='Filter partition_id']").fill("p13")
    view.locator(".ol-grid-row[data-at='0']").click()
    assert selected(view) == "p13"
    page.get_by_text("chosen: partition:p13").wait_for()
    page.get_by_role("button", name="another").click()
    view.locator(".ol-details-name", has_text="p3").wait_for()
    assert trouble == []
    page.close()
