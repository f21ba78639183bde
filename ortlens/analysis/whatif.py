"""What if ONNX Runtime took these operators? The recorded graphs, cut as if it did; nothing is run.

Savings per call are estimated from the capture itself: one session call fewer saves what binding and outputs cost in the
recorded calls, one byte fewer over a boundary saves what a byte cost there. How long ONNX Runtime would need for
the operators is not known to anyone before it runs them, nor what it would fuse. So there are two figures: `saved_ns` takes it to need
as long as PyTorch does now; it may need longer, and then less is saved, or time is lost. `saved_at_most_ns` takes the operators to need
no time at all, nor the shortest of the partitions, as many as are saved.
"""

from __future__ import annotations

import difflib
import itertools
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ortlens.analysis.coverage import current_ids
from ortlens.analysis.cut import RecordedGraph, partitions_of, recorded_graphs
from ortlens.analysis.index import fallbacks_by_graph, grouped, sessions_by_id
from ortlens.analysis.timing import fallback_ns
from ortlens.errors import UsageError
from ortlens.trace.records import column, optional
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ortlens.analysis.cut import CutPartition
    from ortlens.trace.records import Capture, Fallback, ReasonCode


_MAX_NAMES = 20  # in an error message


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """A partition as it would be."""

    graph_id: str = column("Graph it would be cut from.")
    partition: int = column("Its number in that graph, in the order of execution, from 0.")
    node_count: int = column("Compute nodes in it.")
    input_count: int = column("Tensors and numbers that would enter it, weights included.")
    output_count: int = column("Tensors and numbers that would leave it.")
    input_bytes: int = column("Bytes entering per call, weights apart; hints for symbolic sizes.", unit="bytes")
    output_bytes: int = column("Bytes leaving per call.", unit="bytes")
    partition_ids: tuple[str, ...] = column("The present partitions whose nodes it would hold; several are merged.")
    gained_nodes: tuple[str, ...] = column("Its nodes that PyTorch runs now.")
    partitions_now: int = column("Partitions that the graph has now.")
    partitions_then: int = column("Partitions that it would have.")
    note: str = column("Further requirements, and a note if the present partitioning differs from the recorded one.", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An operator that stays in PyTorch, and what supporting it would save; all over the newest version of each graph."""

    target: str = column("The operator; `what_if(target)` shows the partitions.")
    node_count: int = column("Its nodes that PyTorch runs now.")
    partitions: int = column("Partitions that there would be.")
    partitions_saved: int = column("Fewer partitions than now; negative where a graph would be cut in more places.")
    bytes_saved: int = column("Fewer bytes over boundaries per call of each graph, without weights.", unit="bytes")
    coverage_gained: float = column("Gain in the share of operators that ONNX Runtime runs, 0 to 1.")
    eager_ns: int | None = optional(
        "Time that PyTorch spends in these nodes per call, as recorded; empty where nothing was run.", unit="ns"
    )
    saved_ns: int | None = optional(
        "Estimated gain per call, if ONNX Runtime took as long for these nodes as PyTorch; less if longer. Empty where nothing was run.",
        unit="ns",
    )
    saved_at_most_ns: int | None = optional(
        "The same, if it took no time for them, nor for the shortest of the partitions, as many as are saved: entering a run has a fixed "
        "cost, and operators of one model may be fused.",
        unit="ns",
    )
    note: str = column("How the gain was estimated, and further requirements.", default="")


# ------------------------------------------------------------------------------------------------------ some operators


def partitions_if(capture: Capture, asked: Sequence[object]) -> tuple[PlannedPartition, ...]:
    """Plan the partitions as if some operators were supported, by graph and in the order of execution.

    `aten.median` stands for all its overloads. Raise `UsageError` if no node of an operator stays in PyTorch.
    """
    ops = _resolved(capture, asked)
    rows: list[PlannedPartition] = []
    own = fallbacks_by_graph(capture)
    for graph in recorded_graphs(capture):
        now, then = graph.cut().count, graph.cut(ops)
        note = "; ".join(filter(None, (_needs(row for row in own.get(graph.graph.graph_id, ()) if row.target in ops), _drift(graph, now))))
        for number, partition in enumerate(partitions_of(graph, then)):
            rows.append(_planned(graph, number, partition, counts=(now, then.count), note=note))
    return tuple(rows)


def _planned(graph: RecordedGraph, number: int, partition: CutPartition, *, counts: tuple[int, int], note: str) -> PlannedPartition:
    nodes = [graph.records[place] for place in partition.places if graph.dag.counted[place]]
    return PlannedPartition(
        graph_id=graph.graph.graph_id,
        partition=number,
        node_count=len(nodes),
        input_count=len(partition.sources) + len(partition.inputs),
        output_count=len(partition.outputs),
        input_bytes=_bytes_in(graph, partition),
        output_bytes=sum(map(graph.dag.size_of, partition.outputs)),
        partition_ids=tuple(dict.fromkeys(node.partition_id for node in nodes if node.partition_id is not None)),
        gained_nodes=tuple(node.node for node in nodes if node.partition_id is None),
        partitions_now=counts[0],
        partitions_then=counts[1],
        note=note,
    )


def _bytes_in(graph: RecordedGraph, partition: CutPartition) -> int:
    return sum(map(graph.dag.size_of, partition.sources)) + sum(graph.input_sizes.get(name, 0) for name in partition.inputs)


def _drift(graph: RecordedGraph, now: int) -> str:
    """Report that partitions went back to PyTorch while running: the compiled graph stays cut where they were."""
    recorded = graph.graph.partition_count
    if recorded is None or recorded == now:
        return ""
    return f"{recorded} partitions are recorded; planning again without the run-time failures gives {now}"


def _resolved(capture: Capture, asked: Sequence[object]) -> frozenset[str]:
    """Resolve the operators that are meant to the names they have in the capture."""
    known = _candidates(capture.fallbacks)
    found: set[str] = set()
    for op in map(str, asked):
        meant = {name for name in known if name == op or name.rpartition(".")[0] == op}
        if not meant:
            raise UsageError(_unknown(op, known, {node.target for node in capture.nodes}))
        found |= meant
    recorded = {node.target for node in capture.nodes}
    for name in sorted(found - recorded):
        reason = next(fallback.reason for fallback in capture.fallbacks if fallback.target == name)
        raise UsageError(f"{name} is in a graph that PyTorch runs entirely, so there is no cut to change: {reason}")
    return frozenset(found)


def _candidates(fallbacks: Iterable[Fallback]) -> dict[str, int]:
    """List the operators that stay for want of support, with their nodes; those in too small a partition are supported."""
    return dict(Counter(fallback.target for fallback in fallbacks if fallback.reason_code != "too_small").most_common())


def _unknown(op: str, known: Mapping[str, int], present: set[str]) -> str:
    if not known:
        return f"no node of {op} stays in PyTorch for lack of support: no node of this capture does"
    close = difflib.get_close_matches(op, known, n=3, cutoff=0.3)
    names = [*close, *(name for name in known if name not in close)]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    runs = " (it runs in ONNX Runtime)" if any(op in (name, name.rpartition(".")[0]) for name in present) else ""
    return f"no node of {op} stays in PyTorch for lack of support{runs}; operators that do: {', '.join(names[:_MAX_NAMES])}{more}"


_REMEDIES: Mapping[ReasonCode, str] = {
    "converter_raised": "its ONNX function raised",
    "session_refused": "ONNX Runtime refused the model made by its ONNX function",
    "policy": "it stays by choice",
}


def _needs(fallbacks: Iterable[Fallback]) -> str:
    """Describe what supporting an operator needs besides an ONNX function."""
    found = {(f.target, f.reason_code): f.reason for f in fallbacks if f.reason_code not in ("no_converter", "too_small")}
    said = {code: _REMEDIES.get(code, f"an ONNX function alone is not enough ({code})") for _, code in found}
    return "; ".join(f"{target}: {said[code]}: {reason}" for (target, code), reason in found.items())


# ------------------------------------------------------------------------------------------------------------- ranking


class _Totals(NamedTuple):
    """Sums over the partitions of a graph."""

    partitions: int
    bytes: int
    nodes: int


def ranking(capture: Capture) -> tuple[Candidate, ...]:
    """Rank the operators that stay in PyTorch by time saved where calls were recorded, else by partitions, bytes, coverage."""
    return _Ranking(capture).rows()


class _Ranking:
    """Cuts per candidate only the graphs in which it stays."""

    def __init__(self, capture: Capture) -> None:
        self._graphs = {graph.graph.graph_id: graph for graph in recorded_graphs(capture) if graph.graph.graph_id in current_ids(capture)}
        self._now = {graph_id: _totals(graph, frozenset()) for graph_id, graph in self._graphs.items()}
        self._stay = [fallback for fallback in capture.fallbacks if fallback.graph_id in self._graphs]
        self._partitions = sum(now.partitions for now in self._now.values())
        self._compute = sum(sum(graph.dag.counted) for graph in self._graphs.values())
        self._cost = boundary_cost(capture)
        self._eager = fallback_ns(capture)
        # The median run of each session inside ONNX Runtime, by graph, the shortest first.
        times = grouped(((run.graph_id, run.session_id), run.run_ns) for run in capture.runs if run.session_id is not None)
        medians = grouped((graph_id, float(statistics.median(ns))) for (graph_id, _), ns in times.items())
        self._runs = {graph_id: sorted(found) for graph_id, found in medians.items()}

    def rows(self) -> tuple[Candidate, ...]:
        by_target = grouped((fallback.target, fallback) for fallback in self._stay)
        return tuple(sorted((self._row(target, by_target[target]) for target in _candidates(self._stay)), key=_rank))

    def _row(self, target: str, fallbacks: Sequence[Fallback]) -> Candidate:
        graph_ids = dict.fromkeys(fallback.graph_id for fallback in fallbacks)
        then = {graph_id: _totals(self._graphs[graph_id], frozenset({target})) for graph_id in graph_ids}
        fewer = {graph_id: self._now[graph_id].partitions - after.partitions for graph_id, after in then.items()}
        partitions_saved, priced = sum(fewer.values()), bool(self._eager) and all(fallback.calls for fallback in fallbacks)
        bytes_saved = sum(self._now[graph_id].bytes - after.bytes for graph_id, after in then.items())
        gained = sum(after.nodes - self._now[graph_id].nodes for graph_id, after in then.items())
        eager_ns = round(sum(self._eager.get((fallback.graph_id, fallback.node), 0.0) for fallback in fallbacks)) if priced else None
        # A run has a fixed cost, and operators that get into one model may be fused: of each graph, as many as partitions would be saved.
        shortest = round(sum(sum(self._runs.get(graph_id, [])[: max(count, 0)]) for graph_id, count in fewer.items()))
        cost = self._cost
        saved_ns = None if cost is None else round(partitions_saved * cost.call_ns + bytes_saved * cost.byte_ns)
        return Candidate(
            target=target,
            node_count=len(fallbacks),
            partitions=self._partitions - partitions_saved,
            partitions_saved=partitions_saved,
            bytes_saved=bytes_saved,
            coverage_gained=gained / self._compute if self._compute else 0.0,
            eager_ns=eager_ns,
            saved_ns=saved_ns,
            saved_at_most_ns=None if saved_ns is None or eager_ns is None else saved_ns + eager_ns + shortest,
            note="; ".join(filter(None, (_needs(fallbacks), "" if cost is None else f"estimate: {cost.basis}"))),
        )


def _totals(graph: RecordedGraph, ops: frozenset[str]) -> _Totals:
    made = graph.cut(ops)
    partitions = partitions_of(graph, made)
    moved = sum(_bytes_in(graph, partition) + sum(map(graph.dag.size_of, partition.outputs)) for partition in partitions)
    return _Totals(made.count, moved, sum(itertools.compress(graph.dag.counted, made.inside)))


def _rank(row: Candidate) -> tuple[object, ...]:
    known = row.saved_ns is not None
    return (-(row.saved_ns or 0) if known else 0, -row.partitions_saved, -row.bytes_saved, -row.coverage_gained, row.target)


class BoundaryCost(NamedTuple):
    """What a boundary costs, fitted to the recorded calls."""

    call_ns: float  # per session call: binding and outputs
    byte_ns: float  # per byte over the boundary
    basis: str  # how the two were obtained, in words


def boundary_cost(capture: Capture) -> BoundaryCost | None:
    """Estimate what a session call costs beside the run, and per byte over its boundary; None when no call was recorded.

    Fits a line through the sessions (bytes over the boundary, median of binding and outputs), by least squares and with no negative slope.
    """
    moved = {p.partition_id: (p.input_bytes or 0) + (p.output_bytes or 0) for p in capture.partitions}
    sessions = sessions_by_id(capture)
    runs = (run for run in capture.runs if run.session_id in sessions and sessions[run.session_id].partition_id in moved)
    timed = grouped((run.session_id or "", run.bind_ns + run.output_ns) for run in runs)
    if not timed:
        return None
    sizes, times = [moved[sessions[session_id].partition_id] for session_id in timed], [statistics.median(ns) for ns in timed.values()]
    calls = f"median bind_ns + output_ns of {counted(len(timed), 'session')}"
    if len(set(sizes)) > 1:
        slope, intercept = statistics.linear_regression(sizes, times)
        if slope > 0 and intercept >= 0:
            return BoundaryCost(intercept, slope, f"{calls}: {intercept / 1000:.1f} us per session call and {slope * 1e6:.3g} ns per MB")
    mean = statistics.fmean(times)
    return BoundaryCost(mean, 0.0, f"{calls}: {mean / 1000:.1f} us per session call, bytes not separated from calls")
