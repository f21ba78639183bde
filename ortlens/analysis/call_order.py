"""In which order a call goes through graphs and graph breaks.

Graphs are recorded as they are compiled. A version that was compiled later is entered where the first one was, and a measured call shows
the order itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import current_graphs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.trace.records import Capture, Graph

_FRAME = re.compile(r"(.*?)(\d{1,9})/[^/]*\Z", re.DOTALL | re.ASCII)


def graphs_in_call_order(capture: Capture) -> tuple[Graph, ...]:
    """All graphs, sorted as a call enters them.

    Args:
        capture: Any capture.

    Returns:
        Versions of one graph stand together, in the place of the first. Those of the measured call are in its order.
    """
    first: dict[tuple[object, ...], int] = {}
    for row, graph in enumerate(capture.graphs):
        first.setdefault(_code(graph), row)
    ordered = sorted(range(len(capture.graphs)), key=lambda row: (first[_code(capture.graphs[row])], row))
    graphs = [capture.graphs[row] for row in ordered]
    place = {graph_id: at for at, graph_id in enumerate(_measured(capture))}
    called = iter(sorted((graph for graph in graphs if graph.graph_id in place), key=lambda graph: place[graph.graph_id]))
    return tuple(next(called) if graph.graph_id in place else graph for graph in graphs)


def current_in_call_order(capture: Capture) -> tuple[Graph, ...]:
    """The newest version of every graph, sorted as a call enters them.

    Args:
        capture: Any capture.

    Returns:
        As `graphs_in_call_order`, without replaced versions that the measured call did not enter.
    """
    known = {graph.graph_id for graph in current_graphs(capture.graphs)}.union(_measured(capture))
    return tuple(graph for graph in graphs_in_call_order(capture) if graph.graph_id in known)


def _measured(capture: Capture) -> dict[str, None]:
    """The graphs of the measured call in its order; a ledger that was made from logs has none."""
    is_measured = any(part.part == "residual" for part in capture.ledger)
    return dict.fromkeys(part.graph_id for part in capture.ledger) if is_measured else {}


def breaks_ahead(capture: Capture) -> tuple[Mapping[str, Sequence[int]], Sequence[int]]:
    """Which breaks a call meets before each graph.

    Dynamo numbers the frames of a call as it first meets them, so the breaks before a graph are those of the frames since the graph before
    it; the last of them is the one that the time there is booked on.

    Args:
        capture: Any capture.

    Returns:
        Rows of the breaks by the graph behind them, in their order, each once; and those behind the last graph.
    """
    waiting: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    ended: defaultdict[str, list[int]] = defaultdict(list)
    for row, item in enumerate(capture.breaks):
        for group, number in sorted(map(_frame, item.compile_ids))[:1]:
            waiting[group].append((number, row))
        for compile_id in item.compile_ids:
            ended[compile_id].append(row)
    for rows in waiting.values():
        rows.sort(reverse=True)  # the next one last, where it is taken
    ahead: dict[str, list[int]] = {}
    met: set[int] = set()
    before: Graph | None = None
    for graph in current_in_call_order(capture):
        if graph.phase == "backward":
            is_next = before is not None and before.phase == "forward" and before.compile_id == graph.compile_id
            found = ended[graph.compile_id or ""] if is_next else []
        else:
            found = _taken(waiting, *_frame(graph.compile_id))
        if found := [row for row in found if row not in met]:
            ahead[graph.graph_id] = found
            met.update(found)
        before = graph
    return ahead, [row for row in range(len(capture.breaks)) if row not in met]


def _taken(waiting: Mapping[str, list[tuple[int, int]]], group: str, number: int) -> list[int]:
    """The breaks of earlier frames, which are not waiting any more."""
    rows, found = waiting.get(group, []), []
    while rows and rows[-1][0] < number:
        found.append(rows.pop()[1])
    return found


def _frame(compile_id: str | None) -> tuple[str, int]:
    """The number of a frame, and what it is counted within: a rank of a merged capture, or compiled autograd."""
    found = _FRAME.match(compile_id or "")
    return (found[1], int(found[2])) if found else (compile_id or "", -1)


def _code(graph: Graph) -> tuple[object, ...]:
    """What versions of one graph have in common; prefill and decode of a generation are versions here."""
    if graph.compile_id is None:
        return (graph.graph_id,)
    return (graph.rank, graph.compile_id.rpartition("/")[0], graph.name, graph.file, graph.line, graph.phase)
