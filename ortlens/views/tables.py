"""The tables of the notebook's summary and of the report: which there are, and in which order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ortlens.analysis.costs import fallback_groups
from ortlens.analysis.coverage import current_graphs, own_recompiles
from ortlens.analysis.index import graph_by_partition
from ortlens.analysis.memory import memory
from ortlens.analysis.problems.stream import finding_records
from ortlens.analysis.timing import costliest_breaks, slowest_sessions
from ortlens.views.table import MAX_ROWS, ShownTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortlens.trace.records import Capture, Kernel, Numeric

MAX_REPORT_ROWS = 60


def answer_tables(capture: Capture, *, limit: int = MAX_ROWS) -> tuple[ShownTable, ...]:
    """Return the tables that have rows, each of at most `limit`: graphs, breaks, recompiles, fallbacks, sessions, findings."""
    found: tuple[tuple[str, str, Sequence[Any]], ...] = (
        ("Graphs", "graphs", capture.graphs),
        ("Graph breaks, the costliest first", "breaks", costliest_breaks(capture)),
        ("Recompiles", "recompiles", own_recompiles(capture)),
        ("Stays in PyTorch, the slowest first", "fallbacks", fallback_groups(capture)),
        ("ONNX Runtime sessions, the slowest first", "sessions", [cost.session for cost in slowest_sessions(capture)]),
        ("Findings", "findings", finding_records(capture)),
    )
    return tuple(ShownTable(title=title, source=source, records=records, limit=limit) for title, source, records in found if records)


def report_tables(capture: Capture) -> tuple[ShownTable, ...]:
    """Return every table that has rows."""
    kernels = current_kernels(capture)
    found: tuple[tuple[str, str, Iterable[Any]], ...] = (
        ("Time of a call", "ledger", capture.ledger),
        ("Partitions, the largest first", "partitions", sorted(capture.partitions, key=lambda item: -item.node_count)),
        ("ONNX models, the largest first", "models", sorted(capture.models, key=lambda item: -item.node_count)),
        ("Kernels of the newest graphs, the slowest first", "kernels", sorted(kernels, key=lambda item: -(item.mean_ns or 0))),
        ("Results compared with PyTorch, what differs first", "numerics", sorted(capture.numerics, key=_how_bad)),
        ("Memory of the sessions", "memory()", (row for row in memory(capture) if row.session_id is not None)),
    )
    extra = [
        ShownTable(title=title, source=source, records=records, limit=MAX_REPORT_ROWS)
        for title, source, rows in found
        if (records := tuple(rows))
    ]
    return (*answer_tables(capture, limit=MAX_REPORT_ROWS), *extra)


def current_kernels(capture: Capture) -> tuple[Kernel, ...]:
    """List the kernels of graphs that no recompile replaced; empty where nothing was profiled."""
    current = {graph.graph_id for graph in current_graphs(capture.graphs)}
    known = {graph.graph_id for graph in capture.graphs}
    graph_of = graph_by_partition(capture)
    replaced = {session.session_id for session in capture.sessions if graph_of.get(session.partition_id, "") in known - current}
    return tuple(kernel for kernel in capture.kernels if kernel.session_id not in replaced)


def _how_bad(item: Numeric) -> tuple[bool, bool, bool, float]:
    error = math.inf if item.max_rel is None or math.isnan(item.max_rel) else item.max_rel
    return item.ok is not False, item.ok is not None, item.scope != "call", -error
