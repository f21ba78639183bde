"""Rules about where a graph is cut: small partitions, operators that stay in PyTorch, what crosses the boundaries."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ortlens.analysis.advice import advice_for_fallback, cause_of
from ortlens.analysis.catalogue import remedy
from ortlens.analysis.findings.facts import ENOUGH_CALLS, crossings, current, entries_per_call, measured_ledger, most_common, whole_by_graph
from ortlens.analysis.findings.rule import rule
from ortlens.analysis.index import fallbacks_by_graph, grouped, partitions_by_graph
from ortlens.analysis.timing import calls_by_graph, fallback_ns, graph_times
from ortlens.units import counted, size_from_bytes, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.trace.records import Capture, Fallback, Finding, Graph, Node, Partition, ReasonCode

_FEW_NODES = 5
_MANY_SMALL = 4
_HOT_SHARE = 0.1
_HOT_NS = 20_000
_MANY_NODES = 4
_CHOSEN = ("side_effect", "too_small", "policy")
_CROSSING_SHARE = 0.2
_CROSSING_NS = 50_000
_CROSSING_BYTES = 8 << 20
_BYTES_SHARE = 0.25
_BESIDES = {
    "bfloat16": "Results are rounded less often than PyTorch's, and a frozen bfloat16 weight takes 4 more bytes per element. ",
    "no_converter": "A conversion function (custom_translation_table) brings it in, too. ",
}
"""What else `hot_fallback` says to do, by cause or code."""


@rule(
    name="small_partitions",
    looks_for="A graph split into many small partitions.",
    fires="At 4 partitions of at most 5 compute nodes that make up half of the graph's partitions: entering and leaving ONNX Runtime "
    "costs about as much as a handful of small operators in PyTorch.",
    hazard="Each partition is bound, run and returned separately, and ONNX Runtime cannot fuse across its boundaries.",
    probed="A call with the small partitions left to PyTorch against a normal call.",
)
def small_partitions(capture: Capture) -> Iterator[Finding]:
    """Report graphs with many small partitions."""
    costs, left = crossings(capture), fallbacks_by_graph(capture)
    partitions, entries = partitions_by_graph(capture), entries_per_call(capture)
    for graph in current(capture):
        parts = partitions.get(graph.graph_id, [])
        small = [part for part in parts if part.node_count <= _FEW_NODES]
        if len(small) < _MANY_SMALL or 2 * len(small) < len(parts):
            continue
        between = left.get(graph.graph_id, [])
        known = [costs[part.partition_id] for part in small if part.partition_id in costs]
        is_known = any(part.torch_ns is not None for part in small)
        gain, how = _saved_in_torch(small, entries.get(graph.graph_id, 1.0))
        may_leave = not is_known or gain is not None
        if not (between or may_leave):
            continue
        cut = most_common([fallback.target for fallback in between]) or "nothing that was recorded"
        yield small_partitions.finding(
            between[0] if between else graph,
            subject=graph.graph_id,
            title=f"{graph.graph_id} is split into {len(parts)} partitions, {len(small)} of them with at most {_FEW_NODES} compute nodes",
            evidence=f"operators in PyTorch between them: {cut}"
            + (f"; binding and outputs of the small ones take {time_from_ns(sum(known))} per call (medians)" if known else "")
            + f"; {how}",
            **_joining(between, _about_bfloat16(between, capture), may_leave=may_leave),
            gain_ns=gain,
        )


def _joining(between: Sequence[Fallback], by_type: str | None, *, may_leave: bool) -> dict[str, Any]:
    bring = by_type or ("Bring these operators into ONNX Runtime (custom_translation_table, or other operators)" if between else None)
    leave = f"leave the small partitions to PyTorch with min_partition_nodes={_FEW_NODES + 1}; a probe measures whether that is faster"
    todo = ", or ".join(filter(None, (bring, leave if may_leave else None)))
    options: dict[str, object] = {"min_partition_nodes": _FEW_NODES + 1} if may_leave else {}
    return remedy(f"{todo[0].upper()}{todo[1:]}.", **options | ({"upcast": ("bfloat16",)} if by_type else {}))


def _saved_in_torch(small: Sequence[Partition], entries: float) -> tuple[int | None, str]:
    """Compute what leaving partitions to PyTorch would save per call, as far as they were timed there, and say how that is known."""
    timed = [(part.ort_ns, part.torch_ns) for part in small if part.ort_ns is not None and part.torch_ns is not None]
    if not timed:
        return None, "what leaving them to PyTorch would save was not measured"
    ort, torch = (round(sum(ns) * entries) for ns in zip(*timed, strict=True))
    said = f"{len(timed)} of them were timed each: {time_from_ns(ort)} per call, in PyTorch {time_from_ns(torch)}"
    return (
        (ort - torch, f"{said}; the gain is estimated as the difference") if ort > torch else (None, f"{said}, so nothing is gained there")
    )


@rule(
    name="hot_fallback",
    looks_for="An operator in PyTorch that takes much of the time or occurs in many places.",
    fires="At 10 % of the recorded time of a call and 20 µs, or at 4 nodes of one operator, as information where they were timed and "
    "take less, or stay on purpose; below that, the rest of the call dominates.",
    hazard="It splits the graph wherever it occurs, and PyTorch runs it unfused.",
)
def hot_fallback(capture: Capture) -> Iterator[Finding]:
    """Report operators that stay in PyTorch and matter."""
    calls, costs, wholes = calls_by_graph(capture), fallback_ns(capture), whole_by_graph(capture)
    currently = {graph.graph_id for graph in current(capture)}
    backward = {graph.graph_id for graph in capture.graphs if graph.phase == "backward"}
    for (target, code), rows in _by_cause(capture).items():
        here = [row for row in rows if row.graph_id in currently]
        timed = [row for row in rows if calls.get(row.graph_id, 0) >= ENOUGH_CALLS]
        per_call = sum(costs.get((row.graph_id, row.node), 0.0) for row in timed)
        share = sum(costs.get((row.graph_id, row.node), 0.0) / wholes[row.graph_id] for row in timed if wholes.get(row.graph_id))
        is_hot = share >= _HOT_SHARE and per_call >= _HOT_NS
        if not here or not (is_hot or (len(here) >= _MANY_NODES and code not in _CHOSEN)):
            continue
        worst = max(here, key=lambda row: row.total_ns)
        whole = "a call with its backward" if worst.graph_id in backward else "a call"
        spent = f" and takes {time_from_ns(per_call)}, {share:.0%} of {whole}" if per_call else ""
        yield hot_fallback.finding(
            worst,
            subject=worst.target,
            severity="warning" if (is_hot or not per_call) and code != "policy" else "info",
            title=f"{target} stays in PyTorch at {counted(len(here), 'node')}{spent}",
            evidence=f"{code}: {worst.reason}; "
            + (f"{most_common([row.target for row in here])}; " if worst.cause == "bfloat16" else "")
            + f"timed around each of {counted(sum(row.calls for row in rows), 'call')}"
            + ("" if measured_ledger(capture) else "; the mean over all calls, the first ones included"),
            mitigation=f"{advice_for_fallback(worst, has_instructions=capture.figures.cpu_bfloat16).sentence()}. "
            f"{_BESIDES.get(worst.cause or worst.reason_code, '')}".rstrip(),
        )


def _by_cause(capture: Capture) -> dict[tuple[str, ReasonCode], list[Fallback]]:
    """Group what stays in PyTorch by operator and reason; by type alone where no operator has a kernel for it."""
    rows = [(cause_of(row), row) for row in capture.fallbacks]
    return grouped(
        (("bfloat16" if cause == "bfloat16" else row.target, row.reason_code), row)
        for cause, row in rows
        if cause != "random"  # `random_splits` reports those
    )


@rule(
    name="boundary_copies",
    looks_for="Time or bytes spent on the boundaries between ONNX Runtime and PyTorch.",
    fires="When binding and outputs of several partitions take 20 % of the graph's session time and 50 µs per call, "
    "or at 8 MiB and 25 % of all bytes that the graph's nodes touch; below that, the boundaries do not matter.",
    hazard="Values that cross a boundary are written to memory and read again, copied where the layout does not fit, and never fused.",
)
def boundary_copies(capture: Capture) -> Iterator[Finding]:
    """Report graphs whose boundaries cost."""
    costs, times, calls = crossings(capture), graph_times(capture), calls_by_graph(capture)
    partitions, left = partitions_by_graph(capture), fallbacks_by_graph(capture)
    crossing = _crossing_bytes(capture)
    for graph in current(capture):
        parts = partitions.get(graph.graph_id, [])
        if not parts or not left.get(graph.graph_id):  # nothing is between them that could be joined
            continue
        spent = sum(costs.get(part.partition_id, 0) for part in parts)
        session_ns = times[graph.graph_id].ort_ns / calls[graph.graph_id] if graph.graph_id in calls else 0
        over, touched = crossing.get(graph.graph_id, (0, 0))
        slow = len(parts) > 1 and spent >= _CROSSING_NS and spent >= _CROSSING_SHARE * session_ns  # a single one has to be entered anyway
        large = over >= _CROSSING_BYTES and over >= _BYTES_SHARE * touched
        if slow or large:
            by_type = _about_bfloat16(left.get(graph.graph_id, []), capture)
            yield _boundary(graph, (spent, session_ns), (over, touched), slow=slow, by_type=by_type)


def _about_bfloat16(between: Sequence[Fallback], capture: Capture) -> str | None:
    """Return what to do about bfloat16, which is the same in every entry, where it cuts the graph; else None."""
    rows = [row for row in between if row.cause == "bfloat16"]
    return advice_for_fallback(rows[0], has_instructions=capture.figures.cpu_bfloat16).sentence() if 2 * len(rows) > len(between) else None


def _boundary(graph: Graph, binding: tuple[int, float], crossing: tuple[int, int], *, slow: bool, by_type: str | None) -> Finding:
    (spent, session_ns), (over, touched), parts = binding, crossing, graph.partition_count or 0
    share = f", {spent / session_ns:.0%} of the time of its sessions" if session_ns else ""
    avoidable = round(spent * (parts - 1) / parts) if parts > 1 and not by_type else None  # float32 has a price of its own
    return boundary_copies.finding(
        graph,
        subject=graph.graph_id,
        severity="warning" if slow else "info",
        title=f"{size_from_bytes(over)} cross the boundaries of {counted(parts, 'partition')} in {graph.graph_id} on every call"
        + (f"; binding and outputs take {time_from_ns(spent)}" if spent else ""),
        evidence=f"bind and output per call: {time_from_ns(spent)}{share} (medians of the kept runs); of {size_from_bytes(touched)} that "
        f"the nodes read and write, {over / touched if touched else 0:.0%} cross"
        + ("; the gain assumes a single partition" if avoidable else ""),
        **remedy(f"{by_type or _JOIN}.", **{"upcast": ("bfloat16",)} if by_type else {}),
        gain_ns=avoidable if slow else None,
    )


_JOIN = "Join the partitions: bring the operators between them into ONNX Runtime"


def _crossing_bytes(capture: Capture) -> dict[str, tuple[int, int]]:
    """Sum up, per graph, bytes made in one place and read in another, once per reading place, and bytes of all nodes."""
    nodes: dict[str, dict[str, Node]] = defaultdict(dict)
    for node in capture.nodes:
        nodes[node.graph_id][node.node] = node
    return {graph_id: _crossing_in(named) for graph_id, named in nodes.items()}


def _crossing_in(named: dict[str, Node]) -> tuple[int, int]:
    readers: dict[str, set[str | None]] = defaultdict(set)
    for node in named.values():
        for source in node.inputs:
            if source in named and named[source].partition_id != node.partition_id:
                readers[source].add(node.partition_id)
    over = sum((named[source].output_bytes or 0) * len(places) for source, places in readers.items())
    return over, sum(node.bytes or 0 for node in named.values())


@rule(
    name="random_splits",
    looks_for="Operators that draw random numbers, such as dropout in training mode, and split a graph.",
    fires="At the first one in inference, which seldom needs any; at 3 in training, as information; only where a graph has "
    "several partitions.",
    hazard="Only PyTorch's generator reproduces the numbers of a seed, so these operators stay there and split the graph.",
)
def random_splits(capture: Capture) -> Iterator[Finding]:
    """Report graphs that are cut by random numbers."""
    left = fallbacks_by_graph(capture)
    for graph in current(capture):
        drawing = [row for row in left.get(graph.graph_id, []) if cause_of(row) == "random"]
        is_inference = graph.phase == "inference"
        todo = dict.fromkeys(advice_for_fallback(row, has_instructions=None).sentence() for row in drawing)
        if len(drawing) < (1 if is_inference else _MANY_SMALL - 1) or (graph.partition_count or 0) <= 1:
            continue
        yield random_splits.finding(
            drawing[0],
            subject=graph.graph_id,
            severity="warning" if is_inference else "info",
            title=f"{counted(len(drawing), 'operator')} with random numbers {'splits' if len(drawing) == 1 else 'split'} "
            f"{graph.graph_id} into "
            f"{counted(graph.partition_count or 0, 'partition')}: {most_common([row.target for row in drawing])}",
            evidence=f"phase {graph.phase}; {drawing[0].reason}",
            mitigation=f"{'. '.join(todo)}."
            if is_inference
            else "Expected in training; set the dropout rates to 0 if training does not need them.",
        )
