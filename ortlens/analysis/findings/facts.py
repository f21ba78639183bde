"""Facts about a capture that several rules need."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.timing import call_time, graph_times

if TYPE_CHECKING:
    from ortlens.trace.records import Capture, Fallback, Graph, LedgerPart, Partition, Run, Session

ENOUGH_CALLS = 3
"""Fewer calls describe the warm-up."""

_MAX_RUNS = 50_000
"""The latest runs show what a call costs now; more would only slow down every view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Medians over the kept runs of one session, in ns.

    Attributes:
        crossing_ns: Binding inputs and returning outputs.
        run_ns: Inside ONNX Runtime.
        output_ns: Returning outputs.
    """

    crossing_ns: int
    run_ns: int
    output_ns: int


def run_times(capture: Capture) -> dict[str, RunTime]:
    """What a run of each session takes.

    Args:
        capture: Any capture.

    Returns:
        Medians by session id; a session with fewer than `ENOUGH_CALLS` kept runs is absent.
    """
    rows: dict[str, list[Run]] = defaultdict(list)
    for run in capture.runs[-_MAX_RUNS:]:
        if run.session_id is not None:
            rows[run.session_id].append(run)
    return {session_id: _medians(kept) for session_id, kept in rows.items() if len(kept) >= ENOUGH_CALLS}


def _medians(runs: list[Run]) -> RunTime:
    return RunTime(
        crossing_ns=round(median(run.bind_ns + run.output_ns for run in runs)),
        run_ns=round(median(run.run_ns for run in runs)),
        output_ns=round(median(run.output_ns for run in runs)),
    )


def current(capture: Capture) -> tuple[Graph, ...]:
    """The newest version of every graph of our backend.

    Args:
        capture: Any capture.

    Returns:
        Graphs that were partitioned, in order.
    """
    return tuple(graph for graph in current_graphs(capture.graphs) if graph.node_count is not None)


def partitions_by_graph(capture: Capture) -> dict[str, list[Partition]]:
    """The partitions of each graph.

    Args:
        capture: Any capture.

    Returns:
        Lists by graph id; a graph without partitions is absent.
    """
    found: dict[str, list[Partition]] = defaultdict(list)
    for partition in capture.partitions:
        found[partition.graph_id].append(partition)
    return dict(found)


def sessions_by_partition(capture: Capture) -> dict[str, list[Session]]:
    """The sessions of each partition.

    Args:
        capture: Any capture.

    Returns:
        Lists by partition id, in the order in which they were made.
    """
    found: dict[str, list[Session]] = defaultdict(list)
    for session in capture.sessions:
        found[session.partition_id].append(session)
    return dict(found)


def fallbacks_by_graph(capture: Capture) -> dict[str, list[Fallback]]:
    """What stays in PyTorch, by graph.

    Args:
        capture: Any capture.

    Returns:
        Lists by graph id.
    """
    found: dict[str, list[Fallback]] = defaultdict(list)
    for fallback in capture.fallbacks:
        found[fallback.graph_id].append(fallback)
    return dict(found)


def crossings(capture: Capture) -> dict[str, int]:
    """What crossing into ONNX Runtime and back costs each partition per call of the model.

    Args:
        capture: Any capture.

    Returns:
        Nanoseconds by partition id: medians of bind and output, times how often the partition runs per call; partitions
        with too few calls are absent.
    """
    times, calls = run_times(capture), call_time(capture).calls
    graph_of = {partition.partition_id: partition.graph_id for partition in capture.partitions}
    per_graph = graph_times(capture)
    found: dict[str, int] = {}
    for partition_id, sessions in sessions_by_partition(capture).items():
        timed = [times[session.session_id].crossing_ns for session in sessions if session.session_id in times]
        runs = per_graph[graph_of[partition_id]].calls if graph_of.get(partition_id) in per_graph else 0
        if timed and calls:
            found[partition_id] = round(timed[-1] * runs / calls)
    return found


def measured_ledger(capture: Capture) -> tuple[LedgerPart, ...]:
    """The ledger, where calls were measured for it.

    Args:
        capture: Any capture.

    Returns:
        Its rows; empty where it comes only from the logs, whose means include the slow first calls.
    """
    was_measured = any(part.part in ("guards", "residual") for part in capture.ledger)
    return capture.ledger if was_measured else ()


def entries_per_call(capture: Capture) -> dict[str, float]:
    """How often each graph is entered per call of the model.

    Args:
        capture: Any capture.

    Returns:
        By graph id: its calls over those of what was compiled first. Where that holds no graph of its own, as the frame of a
        container whose layers break, its calls were not counted; then the ledger is used: the time of the graph's sessions per
        call of the model over the time of a run; that is an estimate, since a machine may have been busier at one of the two times.
        Empty without calls.
    """
    calls = call_time(capture).calls
    counted_calls = {graph_id: time.calls / calls for graph_id, time in graph_times(capture).items() if calls}
    runs, sessions = run_times(capture), sessions_by_partition(capture)
    in_sessions: dict[str, int] = defaultdict(int)
    for part in measured_ledger(capture):
        if part.part in ("bind", "run", "output"):
            in_sessions[part.graph_id] += part.ns
    for graph_id, parts in partitions_by_graph(capture).items():
        latest = [sessions[part.partition_id][-1].session_id for part in parts if part.partition_id in sessions]
        once = sum(runs[session_id].crossing_ns + runs[session_id].run_ns for session_id in latest if session_id in runs)
        known = counted_calls.get(graph_id, 0.0)
        if once and graph_id in in_sessions and known <= 1:  # more than once: it was counted, and times of a busy machine say less
            counted_calls[graph_id] = max(known, float(round(in_sessions[graph_id] / once)))
    return counted_calls


def usable_cores(capture: Capture) -> int | None:
    """Cores that the process could use where the capture was made.

    Args:
        capture: Any capture.

    Returns:
        Their number, or that of all cores where the system does not report it; None when neither was recorded.
    """
    for name in ("cpu_usable", "cpu_count"):
        text = capture.environment.get(name, "")
        if text.isdecimal() and int(text):
            return int(text)
    return None


def most_common(names: list[str], limit: int = 3) -> str:
    """The names that occur most often, as text.

    Args:
        names: With repetitions.
        limit: Names at most.

    Returns:
        `aten.a (3 times), aten.b`.
    """
    counts: dict[str, int] = defaultdict(int)
    for name in names:
        counts[name] += 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in ranked)
