"""A notebook of ten outputs that is executed and saved stays small, and shows something where no widget runs."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import nbclient
import nbformat
import pytest
from nbconvert import HTMLExporter

CAPTURES = Path(__file__).parents[1] / "browser" / "captures"
STATE = "application/vnd.jupyter.widget-state+json"
MAX_BYTES = 3_000_000


@pytest.fixture(scope="module")
def saved() -> nbformat.NotebookNode:
    """Ten outputs of six real captures, executed with the widget state saved."""
    names = sorted(path.stem for path in CAPTURES.glob("*.ortlens"))
    load = f"import ortlens\nlens = {{name: ortlens.load(f'{CAPTURES}/{{name}}.ortlens') for name in {names!r}}}"
    shows = [nbformat.v4.new_code_cell(f"lens[{names[n % len(names)]!r}].show()") for n in range(10)]
    notebook: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(load), *shows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zmq and the client, about the loop
        nbclient.NotebookClient(notebook, timeout=600, store_widget_state=True).execute()
    return notebook


@pytest.mark.slow
def test_ten_outputs_stay_small_because_the_code_is_there_once(saved: nbformat.NotebookNode) -> None:
    state = saved.metadata.widgets[STATE]["state"]
    held = [model for model in state.values() if model["model_name"] == "WidgetModel"]
    views = [model for model in state.values() if model["model_name"] == "AnyModel"]
    assert len(views) == 10
    assert len(held) == 1 + len(list(CAPTURES.glob("*.ortlens")))  # the code, and each capture
    assert max(len(view["state"]["_esm"]) for view in views) < 4000
    assert len(nbformat.writes(saved).encode()) < MAX_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("with_state", [True, False])
def test_nbconvert_shows_the_summary_with_and_without_widget_state(saved: nbformat.NotebookNode, with_state: bool) -> None:  # noqa: FBT001 - a parameter of the test
    notebook = saved if with_state else nbformat.from_dict({**saved, "metadata": {}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nbconvert, about widgets without state
        page, _ = HTMLExporter().from_notebook_node(notebook)
    shown = re.sub(r"(?s)<script.*?</script>", "", page)  # where no widget runs, as it takes code from the network
    assert shown.count("In ONNX Runtime:") == 10
    assert (STATE in page) == with_state
