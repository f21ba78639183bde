"""The explorer in a notebook: how soon a cell shows it in JupyterLab, and what a notebook of ten outputs weighs when it is saved.

The capture is that of `bench_explorer.py`: the nodes of a deep decoder, real calls of a small model. Needs JupyterLab, nbclient, and
for the times playwright and Debian's chromium. A time is that from running the cell until two frames after the explorer stands in
the page, packing in Python included; each is a single one, of a kernel and a page that have just started.

Usage: python benchmarks/bench_notebook.py [--quick] [--json FILE]
"""

from __future__ import annotations

import gzip
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import nbclient
import nbformat
from bench_explorer import large_capture
from measure import Row, Table, parser_for, report, start

from ortlens.views import widget
from ortlens.views.capture_view import SavedCapture

if TYPE_CHECKING:
    from tests.browser.lab import Notebook

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

_NOTEBOOK_MB = 3.0
_WIDGET_KB = 150.0
_CAPTURES = ROOT / "tests" / "browser" / "captures"
# From running the cell that is chosen until two frames after its explorer stands in the page.
_CELL = """async (known) => {
  const before = performance.now();
  const shown = new Promise((resolve) => {
    const observer = new MutationObserver(() => {
      if (document.querySelectorAll(".ortlens .ol-shell").length <= known) return;
      observer.disconnect();
      requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - before)));
    });
    observer.observe(document.body, { subtree: true, childList: true });
  });
  window.jupyterapp.commands.execute("notebook:run-cell");
  return shown;
}"""


def sizes(large: Path) -> list[Row]:
    """What is saved with ten outputs: of a large capture, of the real ones, of small ones that have little but the code."""
    real = sorted(_CAPTURES.glob("*.ortlens"))
    code, loader = widget.code(), widget.loader().encode()
    return [
        Row(name="code and style sheet, gzip, once per notebook", value=len(code) / 1e3, unit="kB", goal=_WIDGET_KB),
        Row(name="loader, gzip, in each output", value=len(gzip.compress(loader)) / 1e3, unit="kB"),
        Row(name="ten outputs of the large capture", value=_megabytes([large] * 10), unit="MB", goal=_NOTEBOOK_MB),
        Row(name="ten outputs of recorded models", value=_megabytes((real * 10)[:10]), unit="MB", goal=_NOTEBOOK_MB),
    ]


def _megabytes(captures: list[Path]) -> float:
    shows = [nbformat.v4.new_code_cell(f"lens[{str(path)!r}].show()") for path in captures]
    names = sorted({str(path) for path in captures})
    load = nbformat.v4.new_code_cell(f"import ortlens\nlens = {{name: ortlens.load(name) for name in {names!r}}}")
    notebook = nbformat.v4.new_notebook(cells=[load, *shows])
    nbclient.NotebookClient(notebook, timeout=600, store_widget_state=True).execute()
    return len(nbformat.writes(notebook).encode()) / 1e6


def times(large: Path) -> list[Row]:
    """How soon the explorer stands in the page, the first and the second time."""
    from playwright.sync_api import sync_playwright

    from tests.browser.lab import Notebook, serving

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running, serving(Path(folder)) as server:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        load = f"import ortlens\nlens = ortlens.load({str(large)!r})"
        notebook = Notebook(browser, server, server.write("large.ipynb", load, "lens.show()", "lens.show(tab='graph')"))
        notebook.run(0)
        rows = [
            Row(name="cell to screen, the first", value=_seconds(notebook, 1, known=0), unit="s"),
            Row(name="cell to screen, another of the same capture", value=_seconds(notebook, 2, known=1), unit="s"),
        ]
        browser.close()
    return rows


def _seconds(notebook: Notebook, cell: int, *, known: int) -> float:
    notebook.cell(cell).locator(".cm-content").click()
    return float(notebook.page.evaluate(_CELL, known)) / 1e3


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__).parse_args()
    start(options)
    layers, calls = (2, 300) if options.quick else (106, 100_000)
    capture = large_capture(layers, calls)
    words = f"{len(capture.nodes):,} nodes and {len(capture.runs):,} calls"
    with tempfile.TemporaryDirectory() as folder:
        large = SavedCapture(capture).save(Path(folder) / "large.ortlens")
        tables = [Table(title=f"What a notebook weighs; the large capture has {words}", rows=sizes(large))]
        if shutil.which("chromium") and importlib.util.find_spec("playwright"):
            tables.append(Table(title=f"How soon JupyterLab shows {words}", rows=times(large)))
        else:
            tables.append(Table(title="Times are not measured", remarks=["playwright or chromium is missing"]))
    report("The notebook", tables, options)


if __name__ == "__main__":
    main()
