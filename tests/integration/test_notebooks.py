"""The notebooks run from clean kernels, what they claim holds, and what is committed is what they gave."""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from nbformat import NotebookNode

from notebooks.execute import NOTEBOOKS, executed, source_digest

MACHINE = re.compile(r"(?<![\w.])(?:/(?:home|root|tmp|Users|usr|opt|var|work)/|[A-Z]:\\)|site-packages|ipykernel_\d|\x1b\[")
SHOWN = {"text/plain", "text/html", "image/png"}
"""What a viewer without JavaScript shows."""

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(notebook: NotebookNode) -> Iterator[str]:
    """All text that cells gave."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            data = output.get("data", {})
            yield from (output.get("text", ""), data.get("text/plain", ""), data.get("text/html", ""))


@pytest.mark.slow
@each_notebook
def test_it_runs_and_what_it_asserts_holds(path: Path, tmp_path: Path) -> None:
    notebook = executed(path, tmp_path)  # raises with the cell and its traceback
    gave = [bool(cell.outputs) for cell in code_cells(notebook)]
    assert gave == [bool(cell.outputs) for cell in code_cells(read(path))], "the same cells give something as in what is committed"
    assert not any(MACHINE.search(text) for text in texts(notebook))


@each_notebook
def test_what_is_committed_was_made_from_these_cells_and_shows_without_javascript(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.ortlens.source == source_digest(notebook), "run `make notebooks`"
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum(cell.source.count("assert") for cell in cells) >= 2
    outputs = [output for cell in cells for output in cell.outputs]
    assert len(outputs) >= 5
    assert {output.output_type for output in outputs} <= {"display_data", "execute_result", "stream"}
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    assert {kind for output in outputs for kind in output.get("data", {})} <= SHOWN
    assert not any("<script" in text for text in texts(notebook))
    for cell in cells:
        if cell.source.startswith("%ortlens"):
            assert any("ortlens-summary" in output.get("data", {}).get("text/html", "") for output in cell.outputs), cell.source


@each_notebook
def test_what_is_committed_tells_nothing_of_the_machine_and_links_lead_somewhere(path: Path) -> None:
    notebook = read(path)
    assert [found.group() for text in texts(notebook) if (found := MACHINE.search(text))] == []
    assert set(notebook.metadata) == {"kernelspec", "language_info", "ortlens"}
    assert all(cell.metadata == {} for cell in notebook.cells)
    assert path.stat().st_size < 300_000
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert [name for name in re.findall(r"\]\(([^)#]+)\)", text) if not (path.parent / name).is_file()] == []


def written(folder: Path, *sources: str) -> Path:
    """A notebook of these cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    path = folder / "made.ipynb"
    nbformat.write(notebook, path)
    return path


def test_a_claim_that_does_not_hold_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="1 == 2"):
        executed(written(tmp_path, "x = 1", "assert 1 == 2"), tmp_path)


def test_paths_widgets_and_progress_are_taken_out(tmp_path: Path) -> None:
    paths = """
import os, sys, json
from IPython.display import display
print(os.path.join(os.getcwd(), "run.html"), sys.executable, json.__file__ and os.__file__.rsplit("/", 1)[1])
widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}}
display({"text/plain": os.getcwd() + "/a", "text/html": '<div class="ortlens-summary-0a1b">b</div>', **widget}, raw=True)
display({"text/plain": "a widget", **widget}, raw=True)
"""
    progress = """
import time
os.environ.pop("ORTLENS_PROGRESS")
from ortlens._shell import progress
with progress("working", 3, "step") as step:
    for _ in range(2):
        time.sleep(1.1)
        step(1)
assert "tqdm.notebook" in sys.modules
"""
    cell, other = code_cells(executed(written(tmp_path, paths, progress), tmp_path))
    printed, shown = cell.outputs
    assert printed.text.split() == ["run.html", "python", "os.py"]
    assert shown.data == {"text/plain": "a", "text/html": "<div>b</div>"}
    assert "execution" not in cell.metadata
    assert other.outputs == []


CAPTURES = Path(__file__).parents[1] / "browser" / "captures"
STATE = "application/vnd.jupyter.widget-state+json"
MAX_BYTES = 3_000_000


@pytest.mark.slow
def test_ten_outputs_stay_small_and_show_the_summary_where_no_widget_runs() -> None:
    """Ten outputs of six real captures, executed with the widget state saved."""
    names = sorted(path.stem for path in CAPTURES.glob("*.ortlens"))
    load = f"import ortlens\nlens = {{name: ortlens.load(f'{CAPTURES}/{{name}}.ortlens') for name in {names!r}}}"
    shows = [nbformat.v4.new_code_cell(f"lens[{names[n % len(names)]!r}].show()") for n in range(10)]
    saved: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(load), *shows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zmq, the client and nbconvert, about the loop and widgets without state
        nbclient.NotebookClient(saved, timeout=600, store_widget_state=True).execute()
        without_state = nbformat.from_dict({**saved, "metadata": {}})
        pages = [HTMLExporter().from_notebook_node(notebook)[0] for notebook in (saved, without_state)]
    state = saved.metadata.widgets[STATE]["state"]
    held = [model for model in state.values() if model["model_name"] == "WidgetModel"]
    views = [model for model in state.values() if model["model_name"] == "AnyModel"]
    assert len(views) == 10
    assert len(held) == 1 + len(names)  # the code, and each capture
    assert max(len(view["state"]["_esm"]) for view in views) < 4000
    assert len(nbformat.writes(saved).encode()) < MAX_BYTES
    assert [STATE in page for page in pages] == [True, False]
    for page in pages:
        shown = re.sub(r"(?s)<script.*?</script>", "", page)  # where no widget runs, as it takes code from the network
        assert shown.count("In ONNX Runtime:") == 10
