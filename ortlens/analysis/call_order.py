"""In which order a call goes through graphs and graph breaks.

Graphs are recorded as they are compiled. A version that was compiled later is entered where the first one was, and a measured call shows
the order itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import current_graphs, place_key
from ortlens.analysis.index import grouped
from ortlens.analysis.ledger import ledger_totals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.trace.records import Capture, Graph

_FRAME = re.compile(r"(.*?)(\d{1,9})/[^/]*\Z", re.DOTALL | re.ASCII)


def graphs_in_call_order(capture: Capture) -> tuple[Graph, ...]:
    """Sort all graphs as a call enters them; those of the measured call are in its order.

    Versions of one graph stand together, in the place of the first.
    """
    first: dict[tuple[object, ...], int] = {}
    for row, graph in enumerate(capture.graphs):
        first.setdefault(place_key(graph), row)
    ordered = sorted(range(len(capture.graphs)), key=lambda row: (first[place_key(capture.graphs[row])], row))
    graphs = [capture.graphs[row] for row in ordered]
    place = {graph_id: at for at, graph_id in enumerate(_measured(capture))}
    called = iter(sorted((graph for graph in graphs if graph.graph_id in place), key=lambda graph: place[graph.graph_id]))
    return tuple(next(called) if graph.graph_id in place else graph for graph in graphs)


def current_in_call_order(capture: Capture) -> tuple[Graph, ...]:
    """Sort the newest versions of all graphs, and replaced ones that the measured call entered, as a call enters them."""
    known = {graph.graph_id for graph in current_graphs(capture.graphs)}.union(_measured(capture))
    return tuple(graph for graph in graphs_in_call_order(capture) if graph.graph_id in known)


def _measured(capture: Capture) -> tuple[str, ...]:
    """Return the graphs of the measured call in its order; a ledger that was made from logs has none."""
    totals = ledger_totals(capture)
    return totals.graph_ids if totals is not None and totals.is_measured else ()


def is_backward_of(graph: Graph, before: Graph | None) -> bool:
    """Tell whether a graph is the backward of the forward right before it: a break that ended the forward lies between them."""
    return before is not None and (before.phase, graph.phase, before.compile_id) == ("forward", "backward", graph.compile_id)


def breaks_ahead(capture: Capture) -> tuple[Mapping[str, Sequence[int]], Sequence[int]]:
    """Find the rows of the breaks that a call meets before each graph, in their order, each once, and those behind the last graph.

    Dynamo numbers the frames of a call as it first meets them, so the breaks before a graph are those of the frames since the graph before
    it; the last of them is the one that the time there is booked on.
    """
    rows = list(enumerate(capture.breaks))
    ended = grouped((compile_id, row) for row, item in rows for compile_id in item.compile_ids)
    waiting = grouped((group, (number, row)) for row, item in rows for group, number in sorted(map(_frame, item.compile_ids))[:1])
    for frames in waiting.values():
        frames.sort(reverse=True)  # the next one last, where it is taken
    ahead: dict[str, list[int]] = {}
    met: set[int] = set()
    before: Graph | None = None
    for graph in current_in_call_order(capture):
        if graph.phase == "backward":
            found = ended.get(graph.compile_id or "", []) if is_backward_of(graph, before) else []
        else:
            found = _taken(waiting, *_frame(graph.compile_id))
        if found := [row for row in found if row not in met]:
            ahead[graph.graph_id] = found
            met.update(found)
        before = graph
    return ahead, [row for row in range(len(capture.breaks)) if row not in met]


def _taken(waiting: Mapping[str, list[tuple[int, int]]], group: str, number: int) -> list[int]:
    """Take the breaks of earlier frames out of `waiting`."""
    rows, found = waiting.get(group, []), []
    while rows and rows[-1][0] < number:
        found.append(rows.pop()[1])
    return found


def _frame(compile_id: str | None) -> tuple[str, int]:
    """Split a compile id into what its frame is counted within, a rank of a merged capture or compiled autograd, and its number."""
    found = _FRAME.match(compile_id or "")
    return (found[1], int(found[2])) if found else (compile_id or "", -1)
