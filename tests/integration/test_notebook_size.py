"""A notebook of ten outputs that is executed and saved stays small, and shows something where no widget runs."""

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
