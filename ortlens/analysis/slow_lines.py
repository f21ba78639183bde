"""The lines of the program that take most of a call: kernels in ONNX Runtime and operators in PyTorch, summed by line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.index import graph_by_partition, once, summed
from ortlens.analysis.ledger import ledger_totals
from ortlens.analysis.timing import fallback_ns

if TYPE_CHECKING:
    from ortlens.trace.records import Capture

_MOST = 3
_LEAST = 0.05  # share of a call below which a line is not worth a place on the first screen


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLine:
    """One line."""

    file: str
    line: int
    source: str | None  # its text; None where it is not known
    ns: int  # time per call of the model, of the newest version of each graph
    share: float  # of the whole call, 0 to 1
    is_torch: bool  # whether most of it is in PyTorch


@once
def slow_lines(capture: Capture) -> tuple[SlowLine, ...]:
    """Find the slowest lines that take at least a twentieth of a call, slowest first.

    Empty where kernels of a session were not measured: then the slowest line may be one that has no time.
    """
    totals = ledger_totals(capture)
    if totals is None or not totals.is_measured or (capture.sessions and not capture.kernels):
        return ()
    in_ort, in_torch = _by_line(capture)
    sums = {at: in_ort.get(at, 0.0) + in_torch.get(at, 0.0) for at in {**in_ort, **in_torch}}
    sources = {(node.file, node.line): node.source for node in capture.nodes if node.source}
    ranked = sorted(sums.items(), key=lambda item: -item[1])[:_MOST]
    return tuple(
        SlowLine(
            file=file,
            line=line,
            source=sources.get((file, line)),
            ns=round(ns),
            share=min(ns / totals.total_ns, 1.0),
            is_torch=in_torch.get((file, line), 0.0) > ns / 2,
        )
        for (file, line), ns in ranked
        if math.isfinite(ns) and ns >= _LEAST * totals.total_ns
    )


def _by_line(capture: Capture) -> tuple[dict[tuple[str, int], float], dict[tuple[str, int], float]]:
    """Sum the time per call of the model in kernels and in operators of PyTorch, of the newest version of each graph."""
    current = {graph.graph_id for graph in current_graphs(capture.graphs)}
    graph_of = graph_by_partition(capture)
    called = {item.session_id for item in capture.sessions if graph_of.get(item.partition_id) in current}
    runs = runs_per_call(capture)
    in_ort = summed(
        ((kernel.file, kernel.line), (kernel.mean_ns or 0) * runs.get(kernel.session_id, 1.0))
        for kernel in capture.kernels
        if kernel.file and kernel.line is not None and kernel.session_id in called
    )
    timed = fallback_ns(capture)
    in_torch = summed(
        ((row.file, row.line), timed.get((row.graph_id, row.node), 0.0))
        for row in capture.fallbacks
        if row.file and row.line is not None and row.graph_id in current
    )
    return in_ort, in_torch


def runs_per_call(capture: Capture) -> dict[str, float]:
    """Count the runs of each session per call: the entries of its graph, shared among a partition's sessions by their calls."""
    entries = {graph.graph_id: graph.entries_per_call or 1.0 for graph in capture.graphs}
    graph_of = graph_by_partition(capture)
    calls = summed((session.partition_id, session.calls) for session in capture.sessions)
    return {
        session.session_id: entries.get(graph_of.get(session.partition_id, ""), 1.0)
        * (session.calls / calls[session.partition_id] if calls[session.partition_id] else 1.0)
        for session in capture.sessions
    }
