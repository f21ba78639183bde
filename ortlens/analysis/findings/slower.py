"""Rules about what is slower in ONNX Runtime than in PyTorch, and about what makes it so."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.findings.causes import LOOP_REMEDY, STATE_REMEDY, Cause, cause_of, loop_text, loops, state_text, state_writes
from ortlens.analysis.findings.facts import (
    current,
    entries_per_call,
    partitions_by_graph,
    sessions_by_partition,
    splitting_costs,
    whole_by_graph,
)
from ortlens.analysis.findings.rule import rule
from ortlens.analysis.ledger import totals_of, uncompiled_ns
from ortlens.analysis.timing import price_of
from ortlens.units import counted, size_from_bytes, time_from_ns, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ortlens.analysis.ledger import LedgerTotals
    from ortlens.trace.records import Capture, Finding, Graph, LedgerPartName, Node, Partition

ALIKE = 1.1
"""Ratio of two times that count as the same: on an idle machine the medians of two runs of one program differ by less."""

_TIMES = 1.3
_SHARE = 0.1
_MUCH_NS = 50_000
_LOSS_NS = 20_000
_LEAST_NS = 10_000
_MOST = 0.75
_ENTRY_SHARE = 0.25
_STATE_BYTES = 1 << 20
_STATE_SHARE = 0.1


_BESIDE = Cause(
    text="no partition is slower by itself, so what stays in PyTorch, and the way to it, takes longer here",
    remedy="Compare with backend='aot_eager', which runs the same operators in PyTorch.",
    node=None,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slow:
    """A part of a call that PyTorch runs faster.

    Attributes:
        graph: Its graph.
        subject: Id of the partition, or of the graph where the partitions alone do not explain it.
        ort_ns: One run as compiled.
        torch_ns: The same in PyTorch.
        entries: Runs per call of the model.
        cause: Why.
        by_partition: Whether leaving the partition to PyTorch saves the difference.
    """

    graph: Graph
    subject: str
    ort_ns: int
    torch_ns: int
    entries: float
    cause: Cause
    by_partition: bool

    @property
    def loss_ns(self) -> int:
        """What it costs per call of the model."""
        return round((self.ort_ns - self.torch_ns) * self.entries)


@rule(
    name="slower_than_torch",
    looks_for="A partition, or a whole graph, that takes longer in ONNX Runtime than in PyTorch.",
    fires="When it takes at least 1.3 times as long, in three of four pairs timed in turns, and that costs 10 % of a call: as a warning "
    "from 50 µs per call, as information from 10 µs. Parts with the same cause are one finding.",
    hazard="The model would be faster without ONNX Runtime there.",
)
def slower_than_torch(capture: Capture) -> Iterator[Finding]:
    """Parts that PyTorch runs faster, grouped by their cause."""
    wholes = whole_by_graph(capture)
    groups: dict[tuple[bool, str], list[_Slow]] = defaultdict(list)
    for slow in _slow_parts(capture):
        node = slow.cause.node
        groups[slow.by_partition, node.target if node is not None else slow.subject].append(slow)
    for slows in groups.values():
        loss, whole = sum(slow.loss_ns for slow in slows), max(wholes.get(slow.graph.graph_id, 0) for slow in slows)
        if loss >= _LEAST_NS and loss >= _SHARE * whole:
            yield _reported(slows, loss, whole)


def _slow_parts(capture: Capture) -> Iterator[_Slow]:
    entries, parts = entries_per_call(capture), partitions_by_graph(capture)
    sessions, nodes = sessions_by_partition(capture), _ort_nodes(capture)
    for graph in current(capture):
        often = entries.get(graph.graph_id, 0.0)
        slow = [part for part in parts.get(graph.graph_id, []) if _is_slow(part) and nodes.get(part.partition_id)]
        lost = sum((part.ort_ns or 0) - (part.torch_ns or 0) for part in slow)
        if _is_slow(graph) and lost < _MOST * ((graph.ort_ns or 0) - (graph.torch_ns or 0)):
            members = [node for part in parts.get(graph.graph_id, []) for node in nodes.get(part.partition_id, [])]
            running = [session.session_id for part in parts.get(graph.graph_id, []) for session in sessions.get(part.partition_id, [])]
            if members:
                beside = not slow and any(row.graph_id == graph.graph_id for row in capture.fallbacks)
                yield _slow(graph, graph, graph.graph_id, often, _BESIDE if beside else cause_of(capture, members, running))
            continue
        for part in slow:
            running = [session.session_id for session in sessions.get(part.partition_id, [])]
            yield _slow(graph, part, part.partition_id, often, cause_of(capture, nodes[part.partition_id], running))


def _slow(graph: Graph, timed: Graph | Partition, subject: str, entries: float, cause: Cause) -> _Slow:
    by_partition = timed is not graph
    return _Slow(
        graph=graph,
        subject=subject,
        ort_ns=timed.ort_ns or 0,
        torch_ns=timed.torch_ns or 0,
        entries=entries,
        cause=cause,
        by_partition=by_partition,
    )


def _is_slow(timed: Graph | Partition) -> bool:
    return bool(timed.is_slower) and (timed.ort_ns or 0) >= _TIMES * (timed.torch_ns or 0) > 0


def _ort_nodes(capture: Capture) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = defaultdict(list)
    for node in capture.nodes:
        if node.partition_id is not None:
            found[node.partition_id].append(node)
    return found


def _reported(slows: Sequence[_Slow], loss: int, whole: int) -> Finding:
    first = max(slows, key=lambda slow: slow.loss_ns)
    ort, torch = (round(sum(getattr(slow, name) * slow.entries for slow in slows)) for name in ("ort_ns", "torch_ns"))
    what = _named(first) if len(slows) == 1 else counted(len(slows), "partition" if first.by_partition else "graph")
    node, leaving = first.cause.node, _leaving(first)
    return slower_than_torch.finding(
        subject=first.subject,
        severity="warning" if loss >= _MUCH_NS else "info",
        title=f"{what} {'takes' if len(slows) == 1 else 'take'} {time_from_ns(ort)} per call, PyTorch {time_from_ns(torch)} "
        f"({times(ort / max(torch, 1))} as long): {first.cause.text}",
        evidence=f"{', '.join(slow.subject for slow in slows)}; shortest times of runs in turns, on the inputs of one call; in PyTorch "
        + ("the same nodes" if first.by_partition else "the operations that the program wrote, in place where it writes in place")
        + f"; the difference is {loss / whole if whole else 1:.0%} of a call",
        mitigation=f"{first.cause.remedy} Or {leaving}" if first.cause.remedy else leaving[0].upper() + leaving[1:],
        file=node.file if node is not None and node.file else first.graph.file,
        line=node.line if node is not None and node.file else first.graph.line,
        gain_ns=loss,
        measured=True,
    )


def _named(slow: _Slow) -> str:
    return slow.subject if slow.by_partition or not slow.graph.name else f"{slow.graph.name} ({slow.subject})"


def _leaving(slow: _Slow) -> str:
    if slow.by_partition:
        return 'leave it to PyTorch: on_slow="fallback" does so by itself.'
    return f"leave {slow.graph.name or slow.subject} uncompiled (torch.compiler.disable)."


_PARTS = {
    "guards": ("entering compiled code", "Compile a larger part of the program at once, so that it is entered less often"),
    "bind": ("passing inputs to ONNX Runtime", "Pass fewer, larger tensors, or compile a larger part of the program at once"),
    "output": ("returning outputs to PyTorch", "Return fewer, larger tensors, or compile a larger part of the program at once"),
    "run": ("ONNX Runtime", "Find its slow kernels: lens.profile"),
    "eager": ("PyTorch and Python between graphs", "Look at the operators that stay in PyTorch, and at the graph breaks"),
    "residual": ("the rest of the call", "Compare with backend='aot_eager'"),
}
"""Parts of the ledger: their names, and what to do about them."""


def loss_of_call(totals: LedgerTotals | None, plain: int | None, times: float = ALIKE) -> int | None:
    """What a measured call loses to one without torch.compile.

    Args:
        totals: Of the ledger; None without one.
        plain: Median time of a call without torch.compile in ns; None where not measured.
        times: How many times as long it has to take.

    Returns:
        Time in ns; None where it is too little to be told from noise, or not known.
    """
    if totals is None or not totals.is_measured or plain is None or totals.total_ns < times * plain:
        return None
    loss = totals.total_ns - plain
    return loss if loss >= _LEAST_NS else None


@rule(
    name="slower_call",
    looks_for="A call that takes longer than one without torch.compile, and graphs, operators and breaks do not explain it.",
    fires="When it takes at least 1.1 times as long, and `slower_than_torch`, the graph breaks and the operators that split graphs explain "
    "less than half of the difference: as a warning from 1.3 times and 20 µs, as information from 10 µs.",
    hazard="The program would be faster uncompiled.",
)
def slower_call(capture: Capture) -> Iterator[Finding]:
    """The measured call as a whole, against the uncompiled one."""
    totals, plain = totals_of(capture.ledger), uncompiled_ns(capture)
    loss = loss_of_call(totals, plain)
    if totals is None or plain is None or loss is None:
        return
    explained = sum(finding.gain_ns or 0 for finding in slower_than_torch.check(capture))
    explained += sum(price_of(item) or 0 for item in capture.breaks)
    splitting = round(sum(ns for (graph_id, _), ns in splitting_costs(capture).items() if graph_id in totals.graph_ids))
    explained += splitting
    if 2 * explained >= loss:
        return
    broken = sum(item.overhead_ns or 0 for item in capture.breaks)
    known = _unpriced(totals.ns, broken, splitting + sum(item.entering_ns or 0 for item in capture.breaks))
    overhead = {name: ns for name, ns in known.items() if name not in ("run", "eager")}
    parts = overhead if 2 * sum(overhead.values()) >= loss - explained else known  # what runs in the graphs has its counterpart uncompiled
    part = max(parts, key=lambda name: parts[name])
    if part == "eager" and (capture.fallbacks or any(item.cost_ns is not None for item in capture.breaks)):  # they have prices, and lines
        return
    name, remedy = _PARTS[part]
    graph = next((graph for graph in current(capture) if graph.graph_id in totals.graph_ids), None)
    cause = _cause_within(capture, totals.graph_ids) if part == "run" else None
    node = cause.node if cause is not None else None
    if node is not None and capture.kernels:  # they were found
        remedy = "Write that line with other operators"
    place = node if node is not None and node.file else graph
    yield slower_call.finding(
        subject=totals.graph_ids[0],
        severity="warning" if loss >= _LOSS_NS and loss_of_call(totals, plain, _TIMES) else "info",
        title=f"a call takes {time_from_ns(totals.total_ns)}, without torch.compile {time_from_ns(plain)} "
        f"({times(totals.total_ns / plain)} as long): {name} takes {time_from_ns(known[part])}"
        + (" besides what graph breaks and operators in PyTorch cost" if known[part] < totals.ns.get(part, 0) else "")
        + (f", {'' if capture.kernels else 'perhaps because '}{cause.text}" if cause is not None and node is not None else ""),
        evidence="medians of calls in turns; by part: " + ", ".join(f"{key} {time_from_ns(ns)}" for key, ns in totals.ns.items()),
        mitigation=cause.remedy if cause is not None and cause.remedy else f"{remedy}; or leave the function uncompiled.",
        file=place.file if place is not None else None,
        line=place.line if place is not None else None,
        gain_ns=min(loss - explained, known[part]),  # at the part that the advice is about, of which some may remain
    )


def _unpriced(parts: Mapping[LedgerPartName, int], guards: int, crossing: int) -> dict[LedgerPartName, int]:
    """The parts of a call without what breaks and operators in PyTorch have as their prices, on their own lines."""
    around = sum(parts.get(name, 0) for name in _CROSSING)
    left = max(1 - crossing / around, 0.0) if around else 0.0
    known = {name: round(ns * left) if name in _CROSSING else ns for name, ns in parts.items()}
    return {**known, "guards": max(parts.get("guards", 0) - guards, 0)}


_CROSSING: tuple[LedgerPartName, ...] = ("bind", "output", "residual")


@rule(
    name="costly_entry",
    looks_for="Calls of a model without gradients that spend much of their time entering compiled code.",
    fires="When that is at least a quarter of a measured call and 20 µs, and the function is one graph, which `ortlens.freeze` takes: as "
    "information.",
    hazard="Dynamo looks the code up and checks its guards before each call; the model itself gains nothing from that.",
)
def costly_entry(capture: Capture) -> Iterator[Finding]:
    """A function that would be faster frozen."""
    totals = totals_of(capture.ledger)
    if totals is None or not totals.is_measured or len(totals.graph_ids) != 1 or capture.breaks:
        return
    graph = next((graph for graph in current(capture) if graph.graph_id == totals.graph_ids[0]), None)
    entering = totals.ns.get("guards", 0)
    if graph is None or graph.phase != "inference" or entering < max(_LOSS_NS, _ENTRY_SHARE * totals.total_ns):
        return
    yield costly_entry.finding(
        subject=graph.graph_id,
        severity="info",
        title=f"entering compiled code takes {time_from_ns(entering)} of a call of {time_from_ns(totals.total_ns)}",
        evidence="medians of the measured calls; what a frozen callable checks instead takes some microseconds",
        mitigation="For deployment, `ortlens.freeze(model, x)` runs the same sessions without Dynamo; weights are constants from then on. "
        "Otherwise compile a larger part of the program at once, so that it is entered less often.",
        file=graph.file,
        line=graph.line,
        gain_ns=entering,
    )


def _cause_within(capture: Capture, graph_ids: Iterable[str]) -> Cause | None:
    """Why ONNX Runtime takes long in some graphs; None where their nodes are not known."""
    parts, nodes, sessions = partitions_by_graph(capture), _ort_nodes(capture), sessions_by_partition(capture)
    inside = [part.partition_id for graph_id in graph_ids for part in parts.get(graph_id, [])]
    members = [node for partition_id in inside for node in nodes.get(partition_id, [])]
    if not members:
        return None
    return cause_of(capture, members, [row.session_id for partition_id in inside for row in sessions.get(partition_id, [])])


@rule(
    name="state_copies",
    looks_for="A large buffer that is changed in part and goes through ONNX Runtime as a whole, such as one that is read before, too.",
    fires="At 1 MiB per call and 10 % of the bytes that the graph's nodes touch, as information, unless `slower_than_torch` already "
    "reports what it costs.",
    hazard="ONNX Runtime returns a changed copy of the whole buffer for each changed part, which is copied back into PyTorch's.",
)
def state_copies(capture: Capture) -> Iterator[Finding]:
    """Graphs that return changed copies of their inputs."""
    known, nodes = _known_graphs(capture), _ort_nodes(capture)
    for graph, members in _by_current_graph(capture, nodes):
        writing = state_writes(members, graph.inputs)
        moved, touched = sum(node.output_bytes or 0 for node in writing), sum(node.bytes or 0 for node in members)
        if graph.graph_id in known or moved < _STATE_BYTES or moved < _STATE_SHARE * touched:
            continue
        yield state_copies.finding(
            subject=graph.graph_id,
            severity="info",
            title=f"{counted(len(writing), 'buffer')} of {size_from_bytes(moved)} in {graph.graph_id}: {state_text(writing)}",
            evidence=f"{size_from_bytes(moved)} go in and come out, of {size_from_bytes(touched)} that the nodes read and write",
            mitigation=STATE_REMEDY,
            file=writing[0].file or graph.file,
            line=writing[0].line if writing[0].file else graph.line,
        )


@rule(
    name="element_loop",
    looks_for="An operator that ONNX can only express as a loop over single elements.",
    fires="At the first one, as information, unless the partition was timed: then `slower_than_torch` reports it if it is slow.",
    hazard="Each pass of the loop runs several small kernels, which takes microseconds where PyTorch takes nanoseconds.",
)
def element_loop(capture: Capture) -> Iterator[Finding]:
    """Operators that became loops and were not timed."""
    timed = {part.partition_id for part in capture.partitions if part.torch_ns is not None}
    for graph, members in _by_current_graph(capture, _ort_nodes(capture)):
        looping = [node for node in loops(members) if node.partition_id not in timed]
        for target in dict.fromkeys(node.target for node in looping):
            same = [node for node in looping if node.target == target]
            yield element_loop.finding(
                subject=f"{graph.graph_id}:{target}",
                severity="info",
                title=loop_text(same[0]),
                evidence=f"{counted(len(same), 'node')} of {graph.graph_id}; not timed against PyTorch in this capture",
                mitigation=f'{LOOP_REMEDY} on_slow="fallback" leaves its partition to PyTorch if that is faster.',
                file=same[0].file or graph.file,
                line=same[0].line if same[0].file else graph.line,
            )


def _known_graphs(capture: Capture) -> frozenset[str]:
    return frozenset(slow.graph.graph_id for slow in _slow_parts(capture))


def _by_current_graph(capture: Capture, nodes: dict[str, list[Node]]) -> Iterable[tuple[Graph, list[Node]]]:
    parts = partitions_by_graph(capture)
    for graph in current(capture):
        yield graph, [node for part in parts.get(graph.graph_id, []) for node in nodes.get(part.partition_id, [])]
