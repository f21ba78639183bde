"""The explorer in a notebook: an anywidget whose selection Python and the browser share.

An output carries a few hundred bytes of JavaScript. The explorer's code and the capture are models of their own (`SharedBlob`), so that
many outputs weigh little; ONNX models are fetched from Python when their panel opens.
"""

from __future__ import annotations

import gzip
import json
import secrets
import weakref
from dataclasses import replace
from functools import cache, cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets

from ortlens._shell import shell
from ortlens.analysis.identity import Link, links
from ortlens.analysis.problems.stream import findings_of
from ortlens.errors import UsageError
from ortlens.trace.schema import frame_from_records, table_from_record
from ortlens.views.markup import static
from ortlens.views.netron import embedding
from ortlens.views.payload import MAX_RUNS, payload_bytes
from ortlens.views.rendering import mimebundle
from ortlens.views.selection import Selectable, panel
from ortlens.views.time_sentences import trial_words
from ortlens.views.wording import SAVED, clipped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

    from ortlens.trace.records import Capture
    from ortlens.views.netron import Embedding
    from ortlens.views.wording import Hints

    Test = Callable[[Link], bool]


_HELD: dict[str, SharedBlob] = {}


class SharedBlob(ipywidgets.Widget):  # type: ignore[misc]  # ipywidgets has no types
    """Bytes in the browser."""

    content = traitlets.Bytes().tag(sync=True)

    def __init__(self, digest: str, content: bytes, capture: Capture | None, hints: Hints) -> None:
        """Send the content; `capture` is the one that was packed with `hints`, if it is one."""
        super().__init__(content=content)
        self.digest = digest
        self.capture, self.hints = capture, hints
        self.users: set[object] = set()


def hold_capture(capture: Capture, user: object, hints: Hints = SAVED) -> SharedBlob:
    """Hold a packed capture for a user of it until `release`; equal snapshots are packed and sent once."""
    snapshot = replace(capture, created="")  # those of a lens that saw nothing new differ in their time alone
    packed = ((held, held.capture) for held in _HELD.values() if held.capture is not None and held.hints == hints)
    twin = next((held for held, known in packed if known is capture or replace(known, created="") == snapshot), None)
    return _hold(twin.content if twin else payload_bytes(capture, hints=hints), user, capture, hints)


def _hold(content: bytes, user: object, capture: Capture | None = None, hints: Hints = SAVED) -> SharedBlob:
    digest = sha256(content).hexdigest()[:16]
    held = _HELD.get(digest)
    if held is None or held.comm is None:  # closed from outside, by `Widget.close_all`
        held = _HELD[digest] = SharedBlob(digest, content, capture, hints)
    held.users.add(user)
    return held


def release(user: object) -> None:
    """Release everything that a user held; what has no user left is removed from the browser."""
    for digest, held in list(_HELD.items()):
        held.users.discard(user)
        if not held.users:
            del _HELD[digest]
            held.close()


@cache
def code() -> bytes:
    """Return the explorer's code and style sheet as gzip'd JSON; the same bundles give the same bytes."""
    parts = {"js": static("explorer.widget.js"), "css": static("explorer.css")}
    return gzip.compress(json.dumps(parts, separators=(",", ":")).encode(), mtime=0)


@cache
def loader() -> str:
    """Return the JavaScript module that every output carries, which finds the code and runs it."""
    return static("explorer.loader.js")


class SelectionError(UsageError, traitlets.TraitError):
    """An id, a tab or a graph that the capture does not have. Also a TraitError, after which traitlets restores what was."""

    def _render_traceback_(self) -> list[str]:
        """Return the one line that IPython prints, since nothing between the cell and the trait is of interest."""
        return [f"{type(self).__name__}: {self}"]


class Explorer(anywidget.AnyWidget):
    """The interactive explorer of one capture; `lens.show()` makes it.

    `selected`, `tab` and `graph` are shared with the browser both ways: set them, read them, or `observe` them. `chain` is a frame of what
    is linked to the selection.
    """

    _esm = loader()
    selected = traitlets.Unicode(None, allow_none=True, help="Id of what is selected, as `partition:p0`; None for nothing.").tag(sync=True)
    tab = traitlets.Unicode("overview", help="The panel that is shown.").tag(sync=True)
    graph = traitlets.Unicode(None, allow_none=True, help="The graph that is shown; None for all of them.").tag(sync=True)
    _summary = traitlets.Unicode().tag(sync=True)
    _tries = traitlets.Bool(help="Whether settings can be tried.").tag(sync=True)
    _digest = traitlets.Unicode().tag(sync=True)
    _code = traitlets.Unicode().tag(sync=True)
    _data = traitlets.Unicode().tag(sync=True)

    def __init__(self, capture: Capture, hints: Hints = SAVED, attempt: Callable[..., Any] | None = None, **beginning: str | None) -> None:
        """Show a capture.

        Args:
            capture: What to show; a snapshot, which later calls do not change.
            hints: Words for what to type where something was not recorded.
            attempt: The method `tune` of a live lens, which is not kept alive; without it, no setting can be tried.
            **beginning: `selected`, `tab` and `graph`, as in `show`.

        Raises:
            UsageError: One of these names nothing in the capture.
        """
        self._capture, self._hints = capture, hints
        self._selectable = Selectable(capture)
        self._attempt = None if attempt is None else weakref.WeakMethod(attempt)
        super().__init__(
            **self._selectable.checked(**beginning),
            **self._hold(),
            _tries=attempt is not None,
            _summary=f"ortlens-summary-{secrets.token_hex(6)}",
        )
        self.on_msg(self._answer)
        show_in_cell(self.close)

    @property
    def chain(self) -> pd.DataFrame:
        """What the selection is linked to, as `lens.links()`: a row per way from a user line to a kernel; empty without one."""
        return frame_from_records(table_from_record("links", Link), linked(self._capture, self.selected))

    def close(self) -> None:
        """Leave the browser. Python keeps what was selected; displayed again, it opens again."""
        super().close()
        self.layout.close()  # ipywidgets leaves it in the browser, and in saved notebooks
        self.__dict__.pop("_repr_mimebundle_", None)  # ipywidgets hides the method, for good
        forget(self.close)
        release(self)

    def _hold(self) -> dict[str, str]:
        """Have the browser hold what is shown, once for all views of the same."""
        data, bundle = hold_capture(self._capture, self, self._hints), _hold(code(), self)
        self._packed: bytes = data.content
        return {"_digest": bundle.digest, "_code": bundle.model_id, "_data": data.model_id}

    @traitlets.validate("selected", "tab", "graph")
    def _existing(self, proposal: Mapping[str, Any]) -> str | None:
        look_up = {"selected": self._selectable.found, "tab": panel, "graph": self._selectable.graph}
        try:
            return look_up[proposal["trait"].name](proposal["value"])
        except UsageError as err:
            raise SelectionError(str(err)) from err

    def _answer(self, _view: object, asked: Mapping[str, Any], _buffers: object) -> None:
        """Answer a request of the browser. A failure is sent back as text, so that it cannot disturb the notebook."""
        reply: dict[str, Any] = {"answer": asked.get("number")}
        try:
            found = [self._asked(asked)]
        except Exception as err:  # noqa: BLE001 - a guard of the lens: an exception here would end in the kernel's log, unseen
            self.send(reply | {"error": f"{type(err).__name__}: {clipped(str(err), 400)}"})
        else:
            self.send(reply, found)

    def _asked(self, asked: Mapping[str, Any]) -> bytes:
        what = asked.get("ask")
        if what in ("code", "data"):
            return code() if what == "code" else self._packed
        if what == "models":
            facts = {"ids": list(self._models.models), "notes": self._models.notes, "drawable": bool(self._models.frame)}
            return json.dumps(facts).encode()
        if what in ("frame", "model"):
            return self._models.frame if what == "frame" else self._models.models[asked["id"]]
        if what == "try":
            attempt = None if self._attempt is None else self._attempt()
            if attempt is None:
                raise UsageError("The lens of this explorer is gone: run the cell again.")
            return trial_words(next(attempt(settings=(asked["line"],))[1].itertuples())).encode()
        raise UsageError(f"The explorer asks for {what!r}, which this version of ortlens does not have: run the cell again.")

    @cached_property
    def _models(self) -> Embedding:
        return embedding(self._capture)

    def __repr__(self) -> str:
        """Return one line; never raises."""
        selected = f", selected {clipped(self.selected, 60)!r}" if self.selected else ""
        return f"<Explorer {clipped(self._capture.name, 40)!r}, tab {self.tab!r}{selected}>"

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the widget, and beside it what a viewer shows that knows no widgets."""
        found = self._opened()
        return found and (found[0] | self._static(), found[1])

    def _ipython_display_(self) -> None:
        """Display two outputs: the summary, which the explorer hides as soon as it is there, and the explorer.

        In one output, nbconvert would take the widget alone, which needs code from the network, and JupyterLab would say *model not found*
        where the widget's state was not saved.
        """
        from IPython.display import display

        show: Callable[..., object] = display
        if found := self._opened():
            static = self._static()
            show(static | {"text/html": f'<div class="{self._summary}">{static["text/html"]}</div>'}, raw=True)
            show(found[0], metadata=found[1], raw=True)

    def _opened(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the widget's own bundle, and open the widget again if it was closed."""
        if self.comm is None:
            for name, value in self._hold().items():
                self.set_trait(name, value)
            self.layout.open()
            self.open()
        show_in_cell(self.close)
        return super()._repr_mimebundle_()

    def _static(self) -> dict[str, str]:
        return mimebundle(lambda: self._capture, self._hints)


def linked(capture: Capture, selected: str | None) -> tuple[Link, ...]:
    """Find every way from a user line to a kernel through the selection; none where nothing is selected or linked to it."""
    if selected is None:
        return ()
    test = _test(capture, selected)
    return tuple(link for link in links(capture) if test(link))


def _test(capture: Capture, selected: str) -> Test:
    kind, _, name = selected.partition(":")
    model_of = {model.partition_id: model.model_id for model in capture.models}
    readers = {(node.graph_id, node.node) for node in capture.nodes for read in node.inputs if f"{node.graph_id}/{read}" == name}
    tests: dict[str, Test] = {
        "graph": lambda link: link.graph_id == name,
        "partition": lambda link: link.partition_id == name,
        "input": lambda link: (link.graph_id, link.node) in readers,
        "node": lambda link: f"{link.graph_id}/{link.node}" == name,
        "module": lambda link: link.module is not None and f"{link.graph_id}/{link.module}.".startswith(f"{name}."),
        "line": lambda link: f"{link.file}:{link.line}" == name,
        "model": lambda link: model_of.get(link.partition_id or "") == name,
        "onnx": lambda link: f"{model_of.get(link.partition_id or '')}/{link.onnx_node}" == name,
        "kernel": lambda link: f"{link.session_id}/{link.kernel}" == name,
        "session": _of_session(capture, name),
    }
    return tests[kind] if kind in tests else _of_event(capture, kind, name)


def _of_session(capture: Capture, name: str) -> Test:
    """Match links of its partition, without the kernels of other sessions of it."""
    partitions = {session.partition_id for session in capture.sessions if session.session_id == name}
    return lambda link: link.partition_id in partitions and link.session_id in (None, name)


def _of_event(capture: Capture, kind: str, name: str) -> Test:
    """Match the line of a break or finding, the graphs of a recompile, the session of a call, or its graph where it has none."""
    if kind == "run":
        run = sorted(capture.runs, key=lambda one: one.start_ns)[-MAX_RUNS:][int(name)]
        session, graph = run.session_id, run.graph_id
        return _of_session(capture, session) if session else lambda link: link.graph_id == graph
    if kind == "recompile":
        graphs = {graph.graph_id for graph in capture.graphs if graph.compile_id == name}
        return lambda link: link.graph_id in graphs
    row = findings_of(capture)[int(name)] if kind == "finding" else next(one for one in capture.breaks if one.break_id == name)
    return lambda link: link.file is not None and (link.file, link.line) == (row.file, row.line)


# A cell that runs again shows something else, so what nothing else shows is closed. Without it, every run of a cell would leave a model in
# the kernel, in the page and in the saved notebook.

_SHOWN: dict[Callable[[], None], set[str]] = {}  # by what closes it


def show_in_cell(close: Callable[[], None]) -> None:
    """Note that the running cell shows something; `close` is called when no cell does any more, once for equal ones."""
    cell = _metadata().get("cellId")
    if isinstance(cell, str):  # nbclient and consoles name no cells: there nothing runs twice
        _watch()
        _SHOWN.setdefault(close, set()).add(cell)


def forget(close: Callable[[], None]) -> None:
    """Stop following something that was closed otherwise."""
    _SHOWN.pop(close, None)


def cell_starts(_info: object = None) -> None:
    """Close what was shown only by the cell that now starts to run, or by deleted cells; IPython calls this."""
    about = _metadata()
    deleted = about.get("deletedCells")
    gone = {about.get("cellId"), *(deleted if isinstance(deleted, list) else ())}
    for close, cells in list(_SHOWN.items()):
        cells.difference_update(gone)
        if not cells:
            _SHOWN.pop(close, None)
            close()


def _watch() -> None:
    events = shell().events
    if cell_starts not in events.callbacks.get("pre_run_cell", ()):
        events.register("pre_run_cell", cell_starts)


def _metadata() -> dict[str, Any]:
    """Return what the front end said about the cell that runs; notebooks give its id."""
    ask = getattr(shell(), "get_parent", None)  # a kernel's shell has it
    parent = ask() if ask is not None else None
    found = parent.get("metadata") if isinstance(parent, dict) else None
    return found if isinstance(found, dict) else {}
