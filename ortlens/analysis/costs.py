"""What things cost per call: sessions and kernels, entering ONNX Runtime, operators that stay in PyTorch, lines of the program."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import current_ids
from ortlens.analysis.index import (
    fallbacks_by_graph,
    graph_by_partition,
    graph_by_session,
    graphs_by_id,
    grouped,
    nodes_by_name,
    once,
    partitions_by_graph,
    partitions_by_id,
    sessions_by_partition,
    summed,
)
from ortlens.analysis.ledger import measured_call
from ortlens.analysis.timing import call_times, entries_by_graph, fallback_ns, graph_times
from ortlens.trace.records import column, same

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ortlens.trace.records import Capture, Fallback, FallbackCause, Graph, Kernel, Partition, ReasonCode, Session


ENOUGH_CALLS = 3
"""Fewer calls describe the warm-up."""

_VARYING = re.compile(r"[\[,(+*/ -]s\d+")
"""A symbolic size in the signature of a session."""

_MAX_RUNS = 50_000
"""The latest runs show what a call costs now; more would only slow down every view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Medians over the kept runs of one session, in ns."""

    crossing_ns: int  # binding inputs and returning outputs
    output_ns: int  # returning outputs


@once
def run_times(capture: Capture) -> dict[str, RunTime]:
    """Compute the median times of a run by session id; a session with fewer than `ENOUGH_CALLS` kept runs is absent."""
    rows = grouped((run.session_id, run) for run in capture.runs[-_MAX_RUNS:] if run.session_id is not None)
    return {
        session_id: RunTime(
            crossing_ns=round(median(run.bind_ns + run.output_ns for run in kept)),
            output_ns=round(median(run.output_ns for run in kept)),
        )
        for session_id, kept in rows.items()
        if len(kept) >= ENOUGH_CALLS
    }


@once
def crossings(capture: Capture) -> dict[str, int]:
    """Compute what crossing into ONNX Runtime and back costs each partition per call of the model, in ns.

    Medians of bind and output, times how often the partition runs per call; partitions with too few calls are absent.
    """
    times, entries = run_times(capture), entries_by_graph(capture)
    graph_of = graph_by_partition(capture)
    found: dict[str, int] = {}
    for partition_id, sessions in sessions_by_partition(capture).items():
        timed = [times[session.session_id].crossing_ns for session in sessions if session.session_id in times]
        graph_id = graph_of.get(partition_id, "")
        if timed and graph_id in entries:
            found[partition_id] = round(timed[-1] * entries[graph_id])
    return found


@once
def splitting_costs(capture: Capture) -> dict[tuple[str, str], float]:
    """Compute the ns per call, by graph id and node, that splitting a graph costs: entering ONNX Runtime again behind the node.

    Of the crossings of a graph, those that a single partition would not have are divided among its nodes in PyTorch. Nodes that do not
    split their graph, or whose partitions have too few calls, are absent.
    """
    costs, partitions = crossings(capture), partitions_by_graph(capture)
    found: dict[tuple[str, str], float] = {}
    for graph_id, rows in fallbacks_by_graph(capture).items():
        parts = partitions.get(graph_id, [])
        splitting = [row for row in rows if row.reason_code != "too_small"]
        spent = sum(costs.get(part.partition_id, 0) for part in parts)
        if len(parts) > 1 and splitting and spent:
            each = spent * (len(parts) - 1) / len(parts) / len(splitting)
            found.update({(graph_id, row.node): each for row in splitting})
    return found


def sessions_and_graphs(capture: Capture) -> Iterator[tuple[str, list[Session], Partition | None, Graph | None]]:
    """Yield the id of each partition with sessions, with these; then partition and graph, None in a damaged capture."""
    parts, graphs = partitions_by_id(capture), graphs_by_id(capture)
    for partition_id, sessions in sessions_by_partition(capture).items():
        part = parts.get(partition_id)
        yield partition_id, sessions, part, graphs.get(part.graph_id) if part is not None else None


@once
def whole_by_graph(capture: Capture) -> dict[str, int]:
    """Compute the ns of a call of the function that each graph belongs to: the wall time where measured, else the recorded parts.

    A graph that the measured calls did not enter, such as a backward graph, adds its own recorded time. A graph whose function was never
    called is absent.
    """
    call, times = measured_call(capture), graph_times(capture)
    whole, measured = (0, set[str]()) if call is None else (call.total_ns, set(call.graph_ids))
    found: dict[str, int] = {}
    for time in call_times(capture):
        is_measured = whole and measured.intersection(time.graph_ids)
        for graph_id in time.graph_ids:
            own = times[graph_id].total_ns / max(times[graph_id].calls, 1) * time.entries.get(graph_id, 0.0)
            beside = 0 if graph_id in measured else round(own)
            found[graph_id] = whole + beside if is_measured else time.total_ns
    return found


@once
def entries_per_call(capture: Capture) -> dict[str, float]:
    """Count how often each graph is entered per call: as measured, else as in `call_times`; empty without calls."""
    counted = {graph.graph_id: graph.entries_per_call for graph in capture.graphs if graph.entries_per_call is not None}
    if counted:
        return {graph.graph_id: counted.get(graph.graph_id, 0.0) for graph in capture.graphs}
    return entries_by_graph(capture)


def kernel_ns(capture: Capture, session: Session, kernels: Iterable[Kernel]) -> float:
    """Compute the ns that some kernels of a profiled session take per call of the model; 0 for kernels that never ran.

    A profile is made in a short time, in which other work on the machine lengthens all kernels alike. So their share counts, of the
    shortest run that is known. Times of a device are its own, and the runs that are known are those of the host: there they count.
    """
    own = [kernel for kernel in capture.kernels if kernel.session_id == session.session_id]
    whole = sum(kernel.total_ns for kernel in own)
    if not whole:
        return 0.0
    runs = max(kernel.calls for kernel in own)
    least_ns = least_run_ns(capture, session) if session.device_busy_ns is None else None
    run_ns = min(whole / runs, least_ns or sys.maxsize)
    entries = entries_per_call(capture).get(graph_by_session(capture).get(session.session_id, ""), 1.0)
    return run_ns * entries * sum(kernel.total_ns for kernel in kernels) / whole


def least_run_ns(capture: Capture, session: Session) -> int | None:
    """Return the ns of a session's shortest run, recorded or timed against PyTorch: other work on the machine only lengthens runs.

    None where neither is known, and for a session of varying sizes: its runs differ in work.
    """
    if _VARYING.search(session.input_signature):
        return None
    known = [run.run_ns for run in capture.runs[-_MAX_RUNS:] if run.session_id == session.session_id]
    known += [part.ort_ns for part in capture.partitions if part.partition_id == session.partition_id and part.ort_ns]
    return min((ns for ns in known if ns > 0), default=None)


def most_common(names: list[str]) -> str:
    """List the names that occur most often, as in `aten.a (3 times), aten.b`."""
    ranked = sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))[:3]
    return ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in ranked)


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackGroup:
    """Nodes with one operator and one reason that stay in PyTorch."""

    target: str = column("Operator, as `aten.median.dim`.", brief=1)
    reason_code: ReasonCode = column("Why, as a code.")
    reason: str = column("Why, in words, of the first node.", brief=3)
    exception: str | None = column("What was raised, with its class, of the first node that has one.")
    node_count: int = column("Nodes of the current graphs.", brief=2)
    file: str | None = column("File of the first user line known.", brief=4)
    line: int | None = column("Its number.")
    source: str | None = column("Its text.", brief=6)
    module: str | None = column(
        "Path and class of the nn.Module of that node, or of the first that has one, as `layers.0 (GELU)`.", brief=5
    )
    calls: int = column("How often PyTorch ran them, earlier versions of the graphs included.")
    total_ns: int = column("Time it spent in them, likewise.", unit="ns")
    call_ns: int | None = column("Time in them per call of the model, see `timing.fallback_ns`; None without calls.", unit="ns", brief=7)
    splitting_ns: int = column(
        "Besides, about what entering ONNX Runtime again behind them costs per call; 0 where they split nothing.", unit="ns"
    )
    cause: FallbackCause | None = column("What else is known of why, of the first node.")
    graph_ids: tuple[str, ...] = column("The current graphs that they are in.")
    dtype: str | None = column("Data type of the first node.")


@once
def fallback_groups(capture: Capture) -> tuple[FallbackGroup, ...]:
    """Group what stays in PyTorch by operator and reason, slowest first, then most frequent.

    Nodes are counted in the current graphs, so that the counts agree with the coverage; times are summed over every version, since that
    time was really spent.
    """
    replaced = {graph.graph_id for graph in capture.graphs} - current_ids(capture)
    prices, splitting = fallback_ns(capture), splitting_costs(capture)
    members = grouped(((row.target, row.reason_code), row) for row in capture.fallbacks)
    nodes = nodes_by_name(capture)
    types = {name: f" ({node.module_type})" if node.module_type else "" for name, node in nodes.items()}
    modules = {name: f"{node.module}{types[name]}" for name, node in nodes.items() if node.module}
    counts = {cause: sum(row.graph_id not in replaced for row in rows) for cause, rows in members.items()}

    def group(rows: list[Fallback], node_count: int) -> FallbackGroup:
        placed = min(rows, key=lambda row: (not row.file, (row.graph_id, row.node) not in modules))  # the first of the best
        priced = [prices[row.graph_id, row.node] for row in rows if row.calls and prices]
        return FallbackGroup(
            exception=next((row.exception for row in (placed, *rows) if row.exception), None),
            node_count=node_count,
            module=modules.get((placed.graph_id, placed.node)),
            calls=sum(row.calls for row in rows),
            total_ns=sum(row.total_ns for row in rows),
            call_ns=round(sum(priced)) if priced else None,
            splitting_ns=round(sum(splitting.get((row.graph_id, row.node), 0.0) for row in rows)),
            graph_ids=tuple(dict.fromkeys(row.graph_id for row in rows if row.graph_id not in replaced)),
            dtype=nodes[placed.graph_id, placed.node].dtype if (placed.graph_id, placed.node) in nodes else None,
            **same(placed, "target", "reason_code", "reason", "file", "line", "source", "cause"),
        )

    kept = [group(rows, counts[cause]) for cause, rows in members.items() if counts[cause]]
    return tuple(sorted(kept, key=lambda group: (-(group.call_ns or 0), -group.total_ns, -group.node_count, group.target)))


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
    call = measured_call(capture)
    if call is None or (capture.sessions and not capture.kernels):
        return ()
    # The time per call of the model in kernels and in operators of PyTorch, of the newest version of each graph.
    current = current_ids(capture)
    graph_of, runs, timed = graph_by_session(capture), runs_per_call(capture), fallback_ns(capture)
    in_ort = summed(
        ((kernel.file, kernel.line), (kernel.mean_ns or 0) * runs.get(kernel.session_id, 1.0))
        for kernel in capture.kernels
        if kernel.file and kernel.line is not None and graph_of.get(kernel.session_id) in current
    )
    in_torch = summed(
        ((row.file, row.line), timed.get((row.graph_id, row.node), 0.0))
        for row in capture.fallbacks
        if row.file and row.line is not None and row.graph_id in current
    )
    sums = {at: in_ort.get(at, 0.0) + in_torch.get(at, 0.0) for at in {**in_ort, **in_torch}}
    sources = {(node.file, node.line): node.source for node in capture.nodes if node.source}
    ranked = sorted(sums.items(), key=lambda item: -item[1])[:_MOST]
    return tuple(
        SlowLine(
            file=file,
            line=line,
            source=sources.get((file, line)),
            ns=round(ns),
            share=min(ns / call.total_ns, 1.0),
            is_torch=in_torch.get((file, line), 0.0) > ns / 2,
        )
        for (file, line), ns in ranked
        if math.isfinite(ns) and ns >= _LEAST * call.total_ns
    )


def runs_per_call(capture: Capture) -> dict[str, float]:
    """Count the runs of each session per call: the entries of its graph, shared among a partition's sessions by their calls."""
    entries = entries_by_graph(capture)
    calls = summed((session.partition_id, session.calls) for session in capture.sessions)
    return {
        session.session_id: entries.get(graph_by_session(capture)[session.session_id], 1.0)
        * (session.calls / calls[session.partition_id] if calls[session.partition_id] else 1.0)
        for session in capture.sessions
    }
