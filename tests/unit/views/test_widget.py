"""`show()`: the widget's state in Python, what lies beside it for other viewers, and what is shown where there are no widgets."""

import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from IPython.core.events import EventManager, available_events
from traitlets import TraitError

from ortlens import _shell
from ortlens.errors import UsageError
from ortlens.trace import records as r
from ortlens.views import widget
from ortlens.views.capture_view import SavedCapture, StaticSummary
from ortlens.views.widget import Explorer
from tests.recorded import recorded

PIECES = SavedCapture(recorded("pieces"))
VIEW = "application/vnd.jupyter.widget-view+json"


class Shell:
    """What a notebook's kernel tells: the cell that runs, and events."""

    def __init__(self) -> None:
        self.kernel = object()
        self.events = EventManager(self, available_events)  # type: ignore[arg-type]  # it asks a shell for nothing here
        self.metadata: object = {"cellId": "a"}

    def get_parent(self) -> dict[str, object]:
        return {"metadata": self.metadata}

    def run(self, cell: str, **more: object) -> None:
        """Start to run a cell."""
        self.metadata = {"cellId": cell, **more}
        self.events.trigger("pre_run_cell", None)


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    made = Shell()
    monkeypatch.setattr("IPython.get_ipython", lambda: made)
    yield made
    made.run("-", deletedCells=["a", "b", "c"])  # closes what is open
    assert widget._HELD == {}
    assert widget._SHOWN == {}


def shown(lens: SavedCapture = PIECES, **how: str) -> Explorer:
    view = lens.show(**how)
    assert isinstance(view, Explorer)
    return view


class Live(SavedCapture):
    """A lens that can try settings."""

    def tune(self, settings: tuple[str, ...]) -> tuple[None, pd.DataFrame]:
        return None, pd.DataFrame([{"status": "ok", "ratio": 0.61, "verified": settings == ("a = 1",)}])


def test_a_live_lens_tries_settings_and_is_not_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    lens, sent = [Live(PIECES.captured())], list[Any]()
    view = shown(*lens)
    monkeypatch.setattr(view, "send", lambda *given: sent.append(given))
    for _ in range(2):
        view._answer(None, {"ask": "try", "line": "a = 1"}, ())
        lens.clear()
    assert sent[0][1] == [b"0.61 times as long, results match PyTorch"]
    assert "is gone" in sent[1][0]["error"]
    assert (view._tries, shown()._tries) == (True, False)


@pytest.mark.parametrize("shell_kind", [lambda: None, SimpleNamespace], ids=["without a shell", "in a terminal's, which has no kernel"])
def test_outside_a_notebook_one_line_says_what_to_do(
    shell_kind: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("IPython.get_ipython", shell_kind)
    assert PIECES.show() is None
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "report('run.html')" in said


def test_plain_python_does_not_load_ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython")
    assert _shell.shell() is None
    assert "IPython" not in sys.modules


@pytest.mark.parametrize("where", ["in a notebook", "as a library"])
def test_marimo_is_a_notebook_without_a_shell(where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: where == "in a notebook"))
    view = PIECES.show()
    assert isinstance(view, Explorer) == (where == "in a notebook")
    assert bool(capsys.readouterr().out) == (view is None)
    if isinstance(view, Explorer):
        view.close()
    assert widget._HELD == {}


@pytest.mark.parametrize("where", ["notebook", "without widgets", "elsewhere"])
def test_what_there_is_not_is_an_error_everywhere(where: str, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "without widgets":
        monkeypatch.setitem(sys.modules, "anywidget", None)
    if where == "elsewhere":
        shell.kernel = None
    for how in ({"selected": "p1"}, {"tab": "grpah"}, {"graph": "g99"}):
        with pytest.raises(UsageError, match=r"there is|there are|did you mean"):
            PIECES.show(**how)
    with pytest.raises(UsageError, match=r"`lens\.brief\('kernels'\)` shows a table"):
        PIECES.show("kernels")
    assert widget._HELD == {}


@pytest.mark.parametrize("missing", ["anywidget", "ipywidgets"])
def test_without_widgets_the_summary_is_shown_with_a_hint(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    view = PIECES.show()
    assert isinstance(view, StaticSummary)
    bundle = StaticSummary._repr_mimebundle_(view)
    assert set(bundle) == {"text/plain", "text/html"}
    for text in bundle.values():
        assert f"The interactive explorer needs {missing}" in text
        assert "pip install" in text
        assert "46 of 51" in text
    assert missing in repr(view)


def test_the_output_holds_what_other_viewers_show(monkeypatch: pytest.MonkeyPatch) -> None:
    view = shown()
    data, _ = view._repr_mimebundle_() or ({}, None)
    assert data[VIEW]["model_id"] == view.model_id
    assert "46 of 51 operators" in data["text/html"]
    assert "46 of 51 operators" in data["text/plain"]
    assert "<script" not in data["text/html"]
    monkeypatch.setattr("ortlens.views.rendering.capture_screen", lambda *_: 1 / 0)
    data, _ = view._repr_mimebundle_() or ({}, None)
    assert "ZeroDivisionError" in data["text/plain"]
    assert VIEW in data


def test_state_is_set_read_and_observed() -> None:
    view = shown(selected="partition:p3", tab="graph", graph="g1")
    assert (view.selected, view.tab, view.graph) == ("partition:p3", "graph", "g1")
    heard: list[object] = []
    view.observe(lambda change: heard.append(change.new), "selected")
    view.selected = "line:record.py:48"
    assert str(view.selected).endswith("/captures/record.py:48")
    view.set_state({"selected": "break:b0", "tab": "breaks"})  # as the browser does
    assert (view.selected, view.tab) == ("break:b0", "breaks")
    view.selected = None
    assert heard[1:] == ["break:b0", None]


def test_a_wrong_id_leaves_what_was() -> None:
    view = shown(selected="partition:p3")
    for error in (UsageError, TraitError):
        with pytest.raises(error, match="did you mean 'partition:p1'"):
            view.selected = "p1"
    with pytest.raises(TraitError, match="names nothing"), view.hold_trait_notifications():
        view.selected = "partition:p99"
    assert view.selected == "partition:p3"
    with pytest.raises(UsageError, match="There is no tab"):
        view.tab = "grpah"
    with pytest.raises(UsageError, match="There is no graph"):
        view.graph = "g99"
    assert (view.tab, view.graph) == ("overview", None)


CHAIN_COLUMNS = {
    **{name: f"{name}_id" for name in ("graph", "partition", "session")},
    "node": "node",
    "kernel": "kernel",
    "onnx": "onnx_node",
}


def test_the_chain_is_a_frame_of_what_is_selected() -> None:
    view = shown()
    assert view.chain.empty
    assert list(view.chain.columns) == list(PIECES.links().columns)
    for selected, about in (
        ("partition:p13", {"partition": "p13"}),
        ("node:g8/addmm", {"node": "g8:addmm"}),
        ("line:record.py:44", {"line": "record.py:44"}),
    ):
        view.selected = selected
        assert view.chain.equals(PIECES.links(**about))
    node = PIECES.captured().nodes[0]
    at = replace(PIECES.captured().breaks[0], file=node.file, line=node.line)
    view = shown(SavedCapture(replace(PIECES.captured(), breaks=(at,))), selected=f"break:{at.break_id}")
    assert set(view.chain["line"]) == {node.line}


@pytest.mark.parametrize(
    "kind", ["graph", "partition", "node", "model", "session", "kernel", "recompile", "module", "line", "onnx", "finding", "run"]
)
def test_what_can_be_selected_leads_to_what_it_names(kind: str) -> None:
    view = shown()
    found = 0
    for selected in list(view._selectable._ids(kind))[:10]:
        view.selected = selected
        found += len(view.chain)
        name = selected.partition(":")[2]
        if kind in CHAIN_COLUMNS:
            assert set(view.chain[CHAIN_COLUMNS[kind]].dropna()) <= {name, name.partition("/")[2]}
    assert found


def test_views_of_one_capture_share_its_bytes_and_the_code() -> None:
    views = [shown() for _ in range(3)]
    assert len({view._data for view in views}) == len({view._code for view in views}) == 1
    later = replace(PIECES.captured(), created="2031-01-01T00:00:00Z")  # another snapshot of a lens that saw nothing new
    assert shown(SavedCapture(later))._data == views[0]._data
    assert shown(SavedCapture(replace(later, name="another")))._data != views[0]._data
    assert len(widget._HELD) == 3
    by_id = {one.model_id: one.content for one in widget._HELD.values()}
    assert "export{" in json.loads(gzip.decompress(by_id[views[0]._code]))["js"]
    assert json.loads(gzip.decompress(by_id[views[0]._data]))["meta"]["name"] == "pieces"
    assert len(views[0]._esm) < 4000


def test_a_cell_that_runs_again_closes_what_only_it_showed(shell: Shell) -> None:
    shell.run("a")
    first, second = shown(), shown()
    first._repr_mimebundle_()
    shell.run("b")
    second._repr_mimebundle_()
    shell.run("a")
    assert (first.comm, first.layout.comm) == (None, None)
    assert second.comm is not None
    shell.run("c", deletedCells=["b"])
    assert second.comm is None
    assert widget._HELD == {}
    assert len(shell.events.callbacks["pre_run_cell"]) == 1


def test_front_ends_that_name_no_cells_keep_everything_open(shell: Shell) -> None:
    for metadata in ({}, None, {"cellId": 3}):
        shell.metadata = metadata
        view = shown()
        widget.cell_starts()
        assert view.comm is not None
        view.close()


def test_a_closed_view_opens_again_when_it_is_displayed(shell: Shell) -> None:
    shell.run("a")
    view = shown(selected="partition:p3")
    before = view.model_id
    shell.run("a")
    assert view.comm is None
    view.tab = "graph"
    bundle = view._repr_mimebundle_()
    assert bundle is not None
    assert bundle[0][VIEW]["model_id"] == view.model_id == before
    assert (view.selected, view.tab) == ("partition:p3", "graph")
    assert view.layout.comm is not None
    assert view._data in {one.model_id for one in widget._HELD.values()}


def asked(view: Explorer, monkeypatch: pytest.MonkeyPatch, **question: str) -> tuple[dict[str, Any], list[bytes]]:
    """What the browser is answered."""
    said: list[tuple[dict[str, Any], list[bytes]]] = []
    monkeypatch.setattr(view, "send", lambda content, buffers=None: said.append((content, buffers or [])))
    view._handle_custom_msg({"number": "0.5", **question}, [])
    assert len(said) == 1
    return said[0]


def test_the_browser_is_answered_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    view = shown()
    assert asked(view, monkeypatch, ask="code") == ({"answer": "0.5"}, [widget.code()])
    assert json.loads(gzip.decompress(asked(view, monkeypatch, ask="data")[1][0]))["version"] == 1
    models = json.loads(asked(view, monkeypatch, ask="models")[1][0])
    assert models["ids"] == []
    assert "20 others" in models["notes"][0]


@pytest.mark.parametrize(
    ("question", "told"), [({"ask": "banana"}, "run the cell again"), ({}, "None"), ({"ask": "model", "id": "m99"}, "KeyError")]
)
def test_a_question_that_cannot_be_answered_is_answered_so(question: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, buffers = asked(shown(), monkeypatch, **question)
    assert told in answer["error"]
    assert buffers == []


def test_hostile_and_empty_captures_are_shown() -> None:
    name = "</script><script>alert(1)</script>" + "a" * 10_000
    for capture in (r.Capture(), r.Capture(name=name, graphs=(replace(PIECES.captured().graphs[0], graph_id=name),))):
        view = shown(SavedCapture(capture))
        bundle = view._repr_mimebundle_()
        assert bundle is not None
        assert "<script" not in bundle[0]["text/html"]
        assert len(repr(view)) < 200
