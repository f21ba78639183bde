"""The picture of `show()` in JupyterLab for the docs: `python -m tests.browser.notebook_picture`, in the root of the checkout."""

import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser.lab import Notebook, serving
from tests.browser.page import CHROMIUM

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "pictures" / "notebook.png"
CAPTURE = Path(__file__).parent / "captures" / "twelve.ortlens"
CELLS = (
    f"import os\nos.chdir({str(CAPTURE.parent)!r})",  # above what is seen
    'import ortlens\n\nlens = ortlens.load("twelve.ortlens")',
    'view = lens.show(tab="source")\nview',
    'view.chain[["line", "node", "partition_id", "onnx_node", "kernel"]]  # of what was clicked',
)


def main() -> None:
    """Take it."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running, serving(Path(folder)) as server:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-lcd-text"])
        notebook = Notebook(browser, server, server.write("model.ipynb", *CELLS))
        page = notebook.page
        page.set_viewport_size({"width": 1160, "height": 1200})
        notebook.command("application:toggle-left-area")
        for cell in range(3):
            notebook.run(cell)
        notebook.view(2).locator(".ol-source-text:has-text('median')").click()
        page.wait_for_timeout(500)  # Python hears of it
        notebook.run(3)
        notebook.command("notebook:enter-command-mode")
        page.evaluate(
            "document.querySelectorAll('.jp-CodeCell')[0].remove(); document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0"
        )
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)
        page.screenshot(path=FILE)
        browser.close()
    with Image.open(FILE) as whole:
        small = whole.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(FILE, optimize=True)


if __name__ == "__main__":
    main()
