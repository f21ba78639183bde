"""Where the recorded time went: per graph, per session, per phase of the compilation."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import code_key

if TYPE_CHECKING:
    from ortlens.trace.records import Capture, Run, Session

PHASES = ("dynamo", "aot", "partition", "convert", "optimize", "session")
"""Phases of a compilation in their order; each is the column `<phase>_ns` of the graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTime:
    """Time of one graph over all its calls.

    Attributes:
        graph_id: The graph.
        calls: How often it was called; 0 when no call was seen.
        ort_ns: Time of its sessions, bind to output.
        eager_ns: Time of the nodes that PyTorch ran.
        foreign_ns: Time of the whole graph under another backend, estimated from the kept calls when there were many.
    """

    graph_id: str
    calls: int
    ort_ns: int
    eager_ns: int
    foreign_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCost:
    """One session and its share of all session time.

    Attributes:
        session: The record.
        graph_id: Graph that it belongs to; None when its partition is gone.
        share: Share of the time of all sessions, 0 to 1; 0 when no time was spent.
    """

    session: Session
    graph_id: str | None
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """Time of one phase of the compilation, over every graph and recompile.

    Attributes:
        phase: One of `PHASES`, or `other` for what compiling took beyond them.
        total_ns: Nanoseconds.
    """

    phase: str
    total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTime:
    """What one call costs.

    Attributes:
        calls: Calls of the function that was compiled first; 0 when no call was seen.
        function: Name of that function.
        ort_ns: ONNX Runtime's time per call, all graphs together.
        eager_ns: Time per call of the nodes that PyTorch runs.
        foreign_ns: Time per call in the graphs of another backend.
    """

    calls: int
    function: str | None
    ort_ns: int
    eager_ns: int
    foreign_ns: int

    @property
    def total_ns(self) -> int:
        """All recorded parts together; guards and Python around them are not in it."""
        return self.ort_ns + self.eager_ns + self.foreign_ns


def graph_times(capture: Capture) -> dict[str, GraphTime]:
    """Calls and time of every graph.

    Args:
        capture: Any capture.

    Returns:
        One entry per graph id of the capture, called or not.
    """
    graph_of = {partition.partition_id: partition.graph_id for partition in capture.partitions}
    calls: dict[tuple[str, str], int] = defaultdict(int)  # one partition may own several sessions: their calls add up
    ort_ns: dict[str, int] = defaultdict(int)
    for session in capture.sessions:
        graph_id = graph_of.get(session.partition_id, "")
        calls[graph_id, session.partition_id] += session.calls
        ort_ns[graph_id] += session.total_ns
    eager_ns: dict[str, int] = defaultdict(int)
    for fallback in capture.fallbacks:
        eager_ns[fallback.graph_id] += fallback.total_ns
        calls[fallback.graph_id, fallback.node] = fallback.calls
    foreign = _foreign(capture.runs)
    for graph_id, (count, _) in foreign.items():
        calls[graph_id, ""] = count
    most: dict[str, int] = defaultdict(int)
    for (graph_id, _), count in calls.items():
        most[graph_id] = max(most[graph_id], count)
    return {
        graph.graph_id: GraphTime(
            graph_id=graph.graph_id,
            calls=most[graph.graph_id],
            ort_ns=ort_ns[graph.graph_id],
            eager_ns=eager_ns[graph.graph_id],
            foreign_ns=foreign.get(graph.graph_id, (0, 0))[1],
        )
        for graph in capture.graphs
    }


def _foreign(runs: tuple[Run, ...]) -> dict[str, tuple[int, int]]:
    """Calls and time by graph, from runs that belong to no session; only the latest runs are in a capture."""
    rows: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.session_id is None and run.graph_id is not None:
            rows[run.graph_id].append(run)
    return {graph_id: _extrapolated(kept) for graph_id, kept in rows.items()}


def _extrapolated(kept: list[Run]) -> tuple[int, int]:
    calls = max(run.call for run in kept) + 1
    return calls, round(sum(run.total_ns for run in kept) * calls / len(kept))


def call_time(capture: Capture) -> CallTime:
    """What one call of the compiled function costs on average.

    A call runs through several graphs, and through inner ones more than once. The function compiled first is the one
    that the user called, so all recorded time is divided by the calls of its graphs, versions added up.

    Args:
        capture: Any capture.

    Returns:
        The mean per call; all zero when no call was seen.
    """
    times = graph_times(capture)
    entry = next((graph for graph in capture.graphs if times[graph.graph_id].calls), None)
    if entry is None:
        return CallTime(calls=0, function=None, ort_ns=0, eager_ns=0, foreign_ns=0)
    calls = sum(times[graph.graph_id].calls for graph in capture.graphs if code_key(graph) == code_key(entry))
    return CallTime(
        calls=calls,
        function=entry.name,
        ort_ns=round(sum(time.ort_ns for time in times.values()) / calls),
        eager_ns=round(sum(time.eager_ns for time in times.values()) / calls),
        foreign_ns=round(sum(time.foreign_ns for time in times.values()) / calls),
    )


def fallback_ns(capture: Capture) -> dict[tuple[str, str], float]:
    """What each node that PyTorch runs takes per call of the model.

    Args:
        capture: Any capture.

    Returns:
        Nanoseconds by graph id and node: as the ledger measured it, where it did, and nothing for graphs that a call enters no
        more; else the mean over all calls, the first ones included. Empty without calls.
    """
    if any(row.call_ns is not None for row in capture.fallbacks):
        return {(row.graph_id, row.node): float(row.call_ns or 0) for row in capture.fallbacks}
    calls = call_time(capture).calls
    return {(row.graph_id, row.node): row.total_ns / calls for row in capture.fallbacks if calls}


def slowest_sessions(capture: Capture) -> tuple[SessionCost, ...]:
    """The sessions, slowest first.

    Args:
        capture: Any capture.

    Returns:
        Every session, by total time; empty without sessions.
    """
    graph_of = {partition.partition_id: partition.graph_id for partition in capture.partitions}
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


def compile_phases(capture: Capture) -> tuple[PhaseTime, ...]:
    """Time of every phase of the compilation, recompiles included, since that time was really spent.

    Args:
        capture: Any capture.

    Returns:
        The recorded phases in their order, `other` last when compiling took longer than they explain. A phase that
        no graph recorded is absent; empty when nothing was recorded.
    """
    sums = {phase: [getattr(graph, f"{phase}_ns") for graph in capture.graphs] for phase in PHASES}
    phases = [
        PhaseTime(phase=phase, total_ns=sum(value or 0 for value in values))
        for phase, values in sums.items()
        if any(value is not None for value in values)
    ]
    other = compile_total_ns(capture) - sum(phase.total_ns for phase in phases)
    if other > 0:
        phases.append(PhaseTime(phase="other", total_ns=other))
    return tuple(phases)


def compile_total_ns(capture: Capture) -> int:
    """Time of all compilations together.

    Args:
        capture: Any capture.

    Returns:
        Nanoseconds; per graph `compile_ns`, or the sum of its phases where only those are known.
    """
    return sum(
        graph.compile_ns if graph.compile_ns is not None else sum(getattr(graph, f"{phase}_ns") or 0 for phase in PHASES)
        for graph in capture.graphs
    )
