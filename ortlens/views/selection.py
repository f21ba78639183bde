"""What can be selected in the explorer: ids that Python and the browser share, as `frontend/src/identity.js` makes them."""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.analysis.problems.stream import findings_of
from ortlens.errors import UsageError
from ortlens.trace.schema import SHOWN_TABLES
from ortlens.views.actions import records_of
from ortlens.views.payload import MAX_ROWS, MAX_RUNS
from ortlens.views.wording import clipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.trace.records import Capture

PANELS = tuple(json.loads(Path(__file__).with_name("panels.json").read_text(encoding="utf-8")))
"""Tabs of the explorer, in their order; `frontend/src/app.js` has them from the same file."""

_IDS = json.loads(Path(__file__).with_name("ids.json").read_text(encoding="utf-8"))  # table -> kind of id, columns; as in the explorer
_KEYS = {kind: (table, *columns) for table, (kind, *columns) in _IDS.items()}
_KINDS = (*_KEYS, "module", "line", "onnx", "finding", "run")
_MAX_LISTED = 4


class Selectable:
    """The ids of one capture, made when they are first asked for."""

    def __init__(self, capture: Capture) -> None:
        """Wrap a capture."""
        self._capture = capture
        self._made: dict[str, dict[str, None]] = {}

    def found(self, wanted: object) -> str | None:
        """Look up an id that a person wrote, such as `partition:p0`, and return it in full; None selects nothing.

        Of a line, the end of its path is enough: `line:model.py:12`. An id of nothing, or of several lines, raises `UsageError`.
        """
        if wanted is None:
            return None
        kind = wanted.partition(":")[0] if isinstance(wanted, str) else ""
        if not isinstance(wanted, str) or kind not in _KINDS:
            raise UsageError(f"{_quoted(wanted)} cannot be selected: {self._resembling(wanted)}{self._examples()}")
        ids = self._ids(kind)
        if wanted in ids:
            return wanted
        ends = [found for found in ids if kind == "line" and found.replace("\\", "/").endswith(f"/{wanted[len('line:') :]}")]
        if len(ends) == 1:
            return ends[0]
        raise UsageError(
            f"{_quoted(wanted)} names {'several lines' if ends else 'nothing'} in this capture: {self._nearest(kind, wanted, ends)}"
        )

    def graph(self, wanted: object) -> str | None:
        """Check the id of a graph to show, as in the frame `graphs`; None stands for all of them."""
        known = [graph.graph_id for graph in self._capture.graphs]
        if wanted is None or wanted in known:
            return None if wanted is None else str(wanted)
        raise UsageError(f"There is no graph {_quoted(wanted)} in this capture; there {_listed(known) or 'is none at all'}.")

    def checked(self, *, selected: object = None, tab: object = None, graph: object = None) -> dict[str, str | None]:
        """Look up how a view is to begin: None is no selection, the first tab, and all graphs or the only one."""
        graphs = self._capture.graphs
        return {
            "selected": self.found(selected),
            "tab": PANELS[0] if tab is None else panel(tab),
            "graph": graphs[0].graph_id if graph is None and len(graphs) == 1 else self.graph(graph),
        }

    @cached_property
    def _lines(self) -> dict[str, None]:
        rows: Iterator[Any] = (
            row for name in SHOWN_TABLES for row in records_of(self._capture, name)[:MAX_ROWS] if getattr(row, "file", None)
        )
        return dict.fromkeys(f"line:{row.file}:{'null' if row.line is None else row.line}" for row in rows)  # as JavaScript says it

    def _ids(self, kind: str) -> dict[str, None]:
        if kind not in self._made:
            self._made[kind] = self._lines if kind == "line" else dict.fromkeys(self._every(kind))
        return self._made[kind]

    def _every(self, kind: str) -> Iterator[str]:
        if kind in _KEYS:
            table, *columns = _KEYS[kind]
            return (f"{kind}:{'/'.join(str(getattr(row, key)) for key in columns)}" for row in getattr(self._capture, table)[:MAX_ROWS])
        if kind == "module":
            return (f"module:{node.graph_id}/{path}" for node in self._capture.nodes[:MAX_ROWS] for path in _outwards(node.module))
        if kind == "onnx":
            model_of = {model.partition_id: model.model_id for model in self._capture.models}
            nodes = self._capture.nodes[:MAX_ROWS]
            return (
                f"onnx:{model_of[node.partition_id]}/{name}" for node in nodes if node.partition_id in model_of for name in node.onnx_nodes
            )
        count = len(findings_of(self._capture)) if kind == "finding" else min(len(self._capture.runs), MAX_RUNS)
        return (f"{kind}:{row}" for row in range(count))

    def _resembling(self, wanted: object) -> str:
        """Suggest an id where somebody wrote the name without its kind; else empty."""
        likely = [f"{kind}:{wanted}" for kind in _KINDS if f"{kind}:{wanted}" in self._ids(kind)]
        return f"did you mean {_quoted(likely[0])}? " if likely else ""

    def _examples(self) -> str:
        firsts = [next(iter(self._ids(kind)), None) for kind in _KINDS]
        examples = ", ".join(_quoted(first) for first in firsts if first)
        return (
            f"an id is a kind and a name, here for example {examples}."
            if examples
            else "the capture is empty, so there is nothing to select."
        )

    def _nearest(self, kind: str, wanted: str, ends: list[str]) -> str:
        ids = list(self._ids(kind))
        if not ids:
            return f"it has no {kind} at all. {self._examples().capitalize()}"
        alike = [] if kind in ("run", "finding") else get_close_matches(wanted, ids[:2000], n=_MAX_LISTED, cutoff=0.75)
        near = ends or alike or ids
        more = f", and {len(ids) - _MAX_LISTED:,} more" if near is ids and len(ids) > _MAX_LISTED else ""
        return f"there {'are' if len(near) > 1 else 'is'} {', '.join(_quoted(found) for found in near[:_MAX_LISTED])}{more}."


def panel(wanted: object) -> str:
    """Look up a tab of the explorer."""
    if isinstance(wanted, str) and wanted in PANELS:
        return wanted
    raise UsageError(f"There is no tab {_quoted(wanted)}; there are {', '.join(PANELS)}.")


def _quoted(value: object) -> str:
    return clipped(repr(value), 160)


def _listed(known: list[str]) -> str:
    more = f" and {len(known) - _MAX_LISTED:,} more" if len(known) > _MAX_LISTED else ""
    return f"{'are' if len(known) > 1 else 'is'} {', '.join(known[:_MAX_LISTED])}{more}" if known else ""


def _outwards(path: str | None) -> Iterator[str]:
    """Yield a module path and those around it: `a.b.c`, `a.b`, `a`."""
    while path:
        yield path
        path = path.rpartition(".")[0]
