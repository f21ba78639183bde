"""Run the notebooks in fresh kernels and save their outputs: `python notebooks/execute.py [NAME ...]`, or `make notebooks`.

The kept outputs are what a page without JavaScript can show: text, HTML, pictures. Widgets are left out, because their HTML is kept beside
them. So is everything that differs by machine: times of execution, process ids, paths.
"""

from __future__ import annotations

import hashlib
import os
import re
import site
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LIMIT_S = 600
"""For one cell; a shared machine may be slow."""

_VIEW = re.compile(r' class="ortlens-summary-[0-9a-f]+"')
"""By which a running explorer finds its summary; another one each time."""

_WIDGETS = "application/vnd.jupyter.widget-view+json"
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ORTLENS_PROGRESS": "0",  # a finished bar says nothing to a reader
    "TRANSFORMERS_VERBOSITY": "error",
}


class _ThisInterpreter(AsyncKernelManager):
    """Starts kernels with the running interpreter, regardless of the installed kernel specs."""

    @property
    def kernel_spec(self) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")


def executed(path: Path, folder: Path) -> NotebookNode:
    """Run a notebook in a fresh kernel."""
    notebook = nbformat.read(path, as_version=4)
    environ = {**os.environ, **_SETTINGS, "IPYTHONDIR": str(folder / ".ipython")}
    client = NotebookClient(notebook, kernel_manager_class=_ThisInterpreter, timeout=LIMIT_S, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environ)
    return kept(notebook, scrubber(folder))


def kept(notebook: NotebookNode, scrub: Callable[[str], str]) -> NotebookNode:
    """Remove from a notebook what is not committed."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "ortlens": {"source": source_digest(notebook)},
        }
    )
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [_kept_output(output, scrub) for output in cell.outputs if not _is_widget_alone(output)]
    return notebook


def _is_widget_alone(output: NotebookNode) -> bool:
    """Tell whether an output is only a widget; its HTML, if any, is a separate output."""
    data = output.get("data", {})
    return _WIDGETS in data and "text/html" not in data


def _kept_output(output: NotebookNode, scrub: Callable[[str], str]) -> NotebookNode:
    if "data" in output:
        output.data.pop(_WIDGETS, None)
        output.metadata = {}
        for kind, value in output.data.items():
            if kind.startswith("text/"):
                output.data[kind] = _VIEW.sub("", scrub(value))
    if "text" in output:
        output.text = scrub(output.text)
    return output


def source_digest(notebook: NotebookNode) -> str:
    """Return a digest of the code cells, which shows whether the outputs are those of this code. Prose may change without a new run."""
    text = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def scrubber(folder: Path) -> Callable[[str], str]:
    """Make a function that removes this machine's paths from a text."""
    inside: Iterable[str] = (*site.getsitepackages(), site.getusersitepackages(), str(folder.resolve()), str(folder), str(FOLDER.parent))
    roots = sorted({root for root in inside if len(root) > 1}, key=len, reverse=True)
    pattern = re.compile("(?:" + "|".join(re.escape(root) for root in roots) + r")(?:/|\b)")
    return lambda text: pattern.sub("", text.replace(sys.executable, "python"))  # the interpreter may lie inside the checkout


def main(names: list[str]) -> int:
    """Run notebooks and write them back."""
    for path in NOTEBOOKS:
        if names and not path.name.startswith(tuple(names)):
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, Path(folder))
        nbformat.validate(notebook)
        text = nbformat.writes(notebook, version=4)
        path.write_text(text + "\n" if not text.endswith("\n") else text, encoding="utf-8")
        print(f"{path.name}: {time.monotonic() - started:.0f} s, {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
