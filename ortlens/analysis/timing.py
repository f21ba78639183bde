"""Where the recorded time went: per graph, per session, per phase of the compilation."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import code_key, own_graphs
from ortlens.analysis.index import graph_by_partition, grouped, once, sessions_by_partition, summed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ortlens.trace.records import Break, Capture, Graph, Session

PHASES = ("loading", "dynamo", "aot", "partition", "convert", "optimize", "session")
"""Phases of a compilation in their order; each is the column `<phase>_ns` of the graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTime:
    """Time of one graph over all its calls."""

    graph_id: str  # the graph
    calls: int  # how often it was called; 0 when no call was seen
    ort_ns: int  # time of its sessions, bind to output, as if each call had taken the median of its partition's
    eager_ns: int  # time of the nodes that PyTorch ran: sums, since only these are recorded
    foreign_ns: int  # time of the whole graph under another backend, as if each call had taken the median of those that are kept

    @property
    def total_ns(self) -> int:
        """All of it: sessions, nodes that PyTorch ran, and other backends."""
        return self.ort_ns + self.eager_ns + self.foreign_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCost:
    """One session and its share of all session time."""

    session: Session  # the record
    graph_id: str | None  # graph that it belongs to; None when its partition is gone
    share: float  # share of the time of all sessions, 0 to 1; 0 when no time was spent


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """Time of one phase of the compilation, over every graph and recompile."""

    phase: str  # one of `PHASES`, or `other` for what compiling took beyond them
    total_ns: int  # nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTime:
    """What one call costs, or one run of the code that was compiled for a function, where nobody counted its calls."""

    calls: int  # calls of the function, or runs of that code; 0 when none was seen
    function: str | None  # its name
    is_call: bool = True  # whether they are calls, as `explain` and `measure` make them: a call may run the code of several modules
    ort_ns: int  # ONNX Runtime's time per call, all its graphs together: medians of its sessions
    eager_ns: int  # time per call of the nodes that PyTorch runs: the mean, since only sums are recorded
    foreign_ns: int  # time per call in the graphs of another backend, a median
    graph_ids: tuple[str, ...] = ()  # the graphs that its calls led to
    entries: Mapping[str, float] = field(default_factory=dict)  # how often each enters a graph, by graph id; others are absent

    @property
    def total_ns(self) -> int:
        """All recorded parts together; guards and Python around them are not in it."""
        return self.ort_ns + self.eager_ns + self.foreign_ns


_NO_CALLS = CallTime(calls=0, function=None, ort_ns=0, eager_ns=0, foreign_ns=0)


@once
def graph_times(capture: Capture) -> dict[str, GraphTime]:
    """Compute calls and time of every graph in the capture, called or not."""
    graph_of = graph_by_partition(capture)
    calls: dict[tuple[str, str], int] = defaultdict(int)  # one partition may own several sessions: their calls add up
    ort_ns: dict[str, int] = defaultdict(int)
    for partition_id, sessions in sessions_by_partition(capture).items():
        graph_id, count = graph_of.get(partition_id, ""), sum(session.calls for session in sessions)
        calls[graph_id, partition_id] = count
        usual = _median_of_calls(sessions)
        ort_ns[graph_id] += sum(session.total_ns for session in sessions) if usual is None else round(usual * count)
    eager_ns = summed((fallback.graph_id, fallback.total_ns) for fallback in capture.fallbacks)
    calls |= {(fallback.graph_id, fallback.node): fallback.calls for fallback in capture.fallbacks}
    # Of runs that belong to no session, only the latest are in a capture.
    foreign = grouped((run.graph_id, run) for run in capture.runs if run.session_id is None and run.graph_id is not None)
    calls |= {(graph_id, ""): max(run.call for run in runs) + 1 for graph_id, runs in foreign.items()}
    foreign_ns = {graph_id: round(median(run.total_ns for run in runs) * calls[graph_id, ""]) for graph_id, runs in foreign.items()}
    counts = grouped((graph_id, count) for (graph_id, _), count in calls.items())
    return {
        graph.graph_id: GraphTime(
            graph_id=graph.graph_id,
            calls=max([0, *counts.get(graph.graph_id, ())]),
            ort_ns=ort_ns[graph.graph_id],
            eager_ns=eager_ns.get(graph.graph_id, 0),
            foreign_ns=foreign_ns.get(graph.graph_id, 0),
        )
        for graph in capture.graphs
    }


def _median_of_calls(sessions: Iterable[Session]) -> float | None:
    """Compute the median over the calls of all sessions of a partition, each as long as the median of its session; None without any.

    A session that a slow first call was enough for, since others replaced it, is one call among many.
    """
    called = sorted((session.p50_ns, session.calls) for session in sessions if session.p50_ns is not None and session.calls > 0)
    middle, ahead = sum(count for _, count in called) / 2, 0
    for place, (ns, count) in enumerate(called):
        ahead += count
        if ahead >= middle:
            return (ns + called[place + 1][0]) / 2 if ahead == middle else ns
    return None


@once
def call_times(capture: Capture) -> tuple[CallTime, ...]:
    """Compute what a usual call of each compiled function costs: one slow first call does not change it.

    A call enters graphs as often as was counted. Of a function whose calls nobody counted, the runs of the code that was compiled first
    stand for calls; versions of one graph take turns, and the one that was called most stands for all.
    """
    times = graph_times(capture)
    # A backward graph, which is compiled later, has the function of its forward graph.
    known = {graph.compile_id: graph.target for graph in capture.graphs if graph.target is not None}
    members = grouped((row.target or (known.get(row.compile_id) if row.compile_id else None), row) for row in capture.graphs)
    return tuple(time for graphs in members.values() if (time := _call_time(graphs, times)) is not None)


def _call_time(graphs: list[Graph], times: Mapping[str, GraphTime]) -> CallTime | None:
    called = [graph for graph in graphs if times[graph.graph_id].calls]
    if not called:
        return None
    runs = summed((code_key(graph), times[graph.graph_id].calls) for graph in called)
    counted = {graph.graph_id: often for graph in called if 0 < (often := graph.entries_per_call or 0.0) < inf}
    per_call = summed((code_key(graph), counted[graph.graph_id]) for graph in called if graph.graph_id in counted)
    entry = next((graph for graph in called if graph.graph_id in counted), called[0])
    calls = max(round(runs[code_key(entry)] / per_call.get(code_key(entry), 1.0)), 1)
    ranked = sorted(called, key=lambda graph: times[graph.graph_id].calls)
    usual = {code_key(graph): graph.graph_id for graph in ranked if code_key(graph) not in per_call}
    entries = counted | {graph_id: runs[key] / calls for key, graph_id in usual.items()}
    ort_ns, eager_ns, foreign_ns = (
        round(sum(getattr(times[graph_id], name) / times[graph_id].calls * often for graph_id, often in entries.items()))
        for name in ("ort_ns", "eager_ns", "foreign_ns")
    )
    return CallTime(
        calls=calls,
        function=entry.target or entry.name,
        is_call=bool(counted) or entry.compile_id is None,
        ort_ns=ort_ns,
        eager_ns=eager_ns,
        foreign_ns=foreign_ns,
        graph_ids=tuple(graph.graph_id for graph in graphs),
        entries=entries,
    )


@once
def call_time(capture: Capture) -> CallTime:
    """Return the cost of a usual call of the function that was compiled first; all zero when no call was seen."""
    return next(iter(call_times(capture)), _NO_CALLS)


@once
def entries_by_graph(capture: Capture) -> dict[str, float]:
    """Collect how often a call enters each graph, as in `call_times`; one whose function was never called is absent."""
    return {graph_id: time.entries.get(graph_id, 0.0) for time in call_times(capture) for graph_id in time.graph_ids}


@once
def costliest_breaks(capture: Capture) -> tuple[Break, ...]:
    """Sort the distinct graph breaks, the most expensive or most frequent first."""
    return tuple(sorted(capture.breaks, key=lambda item: (-(item.cost_ns or 0), -item.occurrences)))


@once
def fallback_ns(capture: Capture) -> dict[tuple[str, str], float]:
    """Compute the time per call of each node that PyTorch runs, in ns, by graph id and node.

    The ledger's times come first, 0 for graphs that a call no longer enters; without any, the mean over all calls.
    """
    if any(row.call_ns is not None for row in capture.fallbacks):
        return {(row.graph_id, row.node): float(row.call_ns or 0) for row in capture.fallbacks}
    entries, times = entries_by_graph(capture), graph_times(capture)
    return {
        (row.graph_id, row.node): row.total_ns / max(times[row.graph_id].calls, 1) * entries[row.graph_id]
        for row in capture.fallbacks
        if row.graph_id in entries
    }


@once
def slowest_sessions(capture: Capture) -> tuple[SessionCost, ...]:
    """Sort the sessions by total time, slowest first."""
    graph_of = graph_by_partition(capture)
    total = sum(session.total_ns for session in capture.sessions)
    ranked = sorted(capture.sessions, key=lambda session: -session.total_ns)
    return tuple(
        SessionCost(
            session=session,
            graph_id=graph_of.get(session.partition_id),
            share=session.total_ns / total if total else 0.0,
        )
        for session in ranked
    )


@once
def compile_phases(capture: Capture) -> tuple[PhaseTime, ...]:
    """Sum the time of every compilation phase, with `other` last for time that the phases do not explain.

    Recompiles are included, since that time was really spent. A phase that no graph recorded is absent.
    """
    sums: dict[str, list[int | None]] = {phase: [getattr(graph, f"{phase}_ns") for graph in own_graphs(capture)] for phase in PHASES}
    sums["dynamo"] += _without_graph(capture).values()
    phases = [
        PhaseTime(phase=phase, total_ns=sum(value or 0 for value in values))
        for phase, values in sums.items()
        if any(value is not None for value in values)
    ]
    other = compile_total_ns(capture) - sum(phase.total_ns for phase in phases)
    if other > 0:
        phases.append(PhaseTime(phase="other", total_ns=other))
    return tuple(phases)


@once
def compile_total_ns(capture: Capture) -> int:
    """Sum the time of all compilations, including recompiles of functions without a graph."""
    return sum(map(_compile_ns, own_graphs(capture))) + sum(_without_graph(capture).values())


def recompile_times(capture: Capture) -> dict[str, int]:
    """Return the time of every recompile by compile id, without backward graphs, which are compiled later."""
    found = {item.compile_id: 0 for item in capture.recompiles} | _without_graph(capture)
    for graph in capture.graphs:
        if graph.compile_id in found and graph.phase != "backward":
            found[graph.compile_id] += _compile_ns(graph)
    return found


def _compile_ns(graph: Graph) -> int:
    return graph.compile_ns if graph.compile_ns is not None else sum(getattr(graph, f"{phase}_ns") or 0 for phase in PHASES)


def _without_graph(capture: Capture) -> dict[str, int]:
    """Return the time of recompiles that reached no backend, by compile id: their code computes nothing, as before a break."""
    known = {graph.compile_id for graph in capture.graphs}
    return {item.compile_id: item.dynamo_ns for item in capture.recompiles if item.dynamo_ns and item.compile_id not in known}
