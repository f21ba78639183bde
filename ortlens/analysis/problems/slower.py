"""Rules about what is slower in ONNX Runtime than in PyTorch, and what makes it so: the operators that its time goes into."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.costs import entries_per_call, splitting_costs, whole_by_graph
from ortlens.analysis.coverage import compiled_graphs, effort
from ortlens.analysis.index import fallbacks_by_graph, grouped, nodes_by_partition, partitions_by_graph, sessions_by_partition, summed
from ortlens.analysis.ledger import measured_call
from ortlens.analysis.problems.catalogue import remedy
from ortlens.analysis.problems.problem import Problem, rule
from ortlens.analysis.speed import WORTH_A_WARNING, call_pace
from ortlens.analysis.timing import fallback_ns
from ortlens.units import counted, percent, size_from_bytes, time_from_ns, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ortlens.trace.records import Capture, Fallback, Graph, Kernel, Node, Partition


_LOOPS = re.compile(r"Loop|SequenceMap|Sequence(Empty|Insert|At|Construct|Erase)|ConcatFromSequence|SplitToSequence")
_WRITES = re.compile(r"aten\.(index_put|index_copy|index_add|index_fill|masked_scatter|(slice|select|diagonal)_scatter|scatter)")
_WORTH_COPYING = 1 << 18
_MUCH = 0.3
_COPIES = ("Transpose", "Cast")
_MANY_COPIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What takes the time."""

    text: str  # a clause, such as `aten.cumprod.default becomes a Loop, whose body runs once per element`
    remedy: str  # what to change about it; empty where only the operator is known
    node: Node | Fallback | None  # the node that it comes from; None where none stands out
    stays: bool = False  # whether that stays in PyTorch


def cause_of(capture: Capture, partition_ids: Sequence[str]) -> Cause | None:
    """Find what takes the time of some partitions: by their kernels where they were profiled, else by what their models contain.

    None where their nodes are not known.
    """
    nodes = [node for name in partition_ids for node in nodes_by_partition(capture).get(name, [])]
    wanted = {session.session_id for name in partition_ids for session in sessions_by_partition(capture).get(name, [])}
    kernels = [kernel for kernel in capture.kernels if kernel.session_id in wanted]
    return None if not nodes else _profiled(nodes, kernels) if kernels else _by_contents(nodes)


def loops(nodes: Iterable[Node]) -> list[Node]:
    """Find the nodes that became loops over single elements: a Loop or sequences, but no Scan, whose steps are whole rows."""
    return [node for node in nodes if any(_LOOPS.fullmatch(op) for op in node.onnx_ops)]


def state_writes(nodes: Iterable[Node], inputs: Iterable[str]) -> list[Node]:
    """Find the nodes that return a changed copy of a large input of the graph, of 256 KiB at least."""
    nodes = list(nodes)
    given = frozenset(inputs)
    given |= {node.node for node in nodes if node.target == "aten.clone.default" and given.intersection(node.inputs)}  # as in training
    return [
        node
        for node in nodes
        if _WRITES.match(node.target)
        and node.inputs
        and node.inputs[0] in given
        and node.is_output
        and not node.in_place
        and (node.output_bytes or 0) >= _WORTH_COPYING
    ]


def state_text(nodes: Sequence[Node]) -> str:
    """Describe what one or more writes into inputs cost, as a clause."""
    size = size_from_bytes(sum(node.output_bytes or 0 for node in nodes))
    return f"{nodes[0].target} changes a part of a buffer, and all {size} of it are copied"


LOOP_REMEDY = "Write the line with operators that work on whole tensors."
STATE_REMEDY = (
    "Keep the buffer out of the compiled code: return what is new and write it outside, or pass only the part of the buffer that is read."
)


def _profiled(nodes: Sequence[Node], kernels: Sequence[Kernel]) -> Cause:
    total = sum(kernel.total_ns for kernel in kernels) or 1
    by_name = {node.node: node for node in nodes}
    spent = summed((kernel.node, kernel.total_ns) for kernel in kernels)
    most = max(spent, key=lambda name: spent[name])
    node = by_name.get(most or "")
    same = {most}
    if node is not None:  # what repeats, as in layers and unrolled loops, is one cause
        by_target = grouped((by_name[name].target, name) for name in spent if name is not None and name in by_name)
        same = set(max(by_target.values(), key=lambda names: sum(spent[name] for name in names)))
        most = max(same, key=lambda name: spent[name])
        node = by_name[most or ""]
    ns = sum(spent[name] for name in same)
    ops = Counter(summed((kernel.op_type, kernel.total_ns) for kernel in kernels if kernel.node in same))
    named = ", ".join(op for op, _ in ops.most_common(3))
    times = f" at {len(same)} nodes" if len(same) > 1 else ""
    text = (
        f"{percent(ns / total)} of its time in ONNX Runtime goes into "
        f"{node.target if node else most or 'kernels without an origin'} ({named}){times}"
    )
    known = None if node is None or ns < _MUCH * total else _known([node], node.inputs)
    return Cause(text=f"{text}: {known.text}" if known else text, remedy=known.remedy if known else "", node=node)


def _known(nodes: Sequence[Node], inputs: Iterable[str]) -> Cause | None:
    if looping := loops(nodes):
        ops = [op for op in looping[0].onnx_ops if _LOOPS.fullmatch(op)]
        loop = next((op for op in ops if not op.startswith("Sequence")), ops[0])
        return Cause(text=f"{looping[0].target} becomes a {loop} over single elements", remedy=LOOP_REMEDY, node=looping[0])
    if writing := state_writes(nodes, inputs):
        return Cause(text=state_text(writing), remedy=STATE_REMEDY, node=writing[0])
    return None


def _by_contents(nodes: Sequence[Node]) -> Cause:
    made = {node.node for node in nodes}
    if known := _known(nodes, {name for node in nodes for name in node.inputs} - made):
        return known
    scattering = [node for node in nodes if any(op.startswith("Scatter") for op in node.onnx_ops)]
    if scattering:
        worst = max(scattering, key=lambda node: node.bytes or 0)
        copied = f"Scatter, which copies all {size_from_bytes(worst.output_bytes or 0)} of its result first"
        by = "ScatterElements, which writes number by number" if "ScatterElements" in worst.onnx_ops else copied
        return Cause(text=f"{worst.target} becomes a {by}", remedy="", node=worst)
    for op in _COPIES:
        copying = [node for node in nodes if op in node.onnx_ops]
        if len(copying) >= _MANY_COPIES:
            worst = max(copying, key=lambda node: node.bytes or 0)
            return Cause(
                text=f"its model contains {len(copying)} nodes with a {op}, the largest from {worst.target}", remedy="", node=worst
            )
    worst = max(nodes, key=effort)
    size = size_from_bytes(worst.output_bytes or 0)
    text = f"the largest of its operators is {worst.target}, which writes {size}; a profile shows the kernels"
    return Cause(text=text, remedy="", node=worst)


_SHARE = 0.1
_MUCH_NS = 50_000
_LEAST_NS = 10_000
_MOST = 0.75
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class _Slow:
    """A part of a call that PyTorch runs faster."""

    graph: Graph  # its graph
    timed: Graph | Partition  # the partition, or the graph where the partitions alone do not explain it
    subject: str  # its id
    entries: float  # runs per call of the model
    cause: Cause  # why
    call: tuple[int, int] = (0, 0)  # times of the whole call, as compiled and in PyTorch, where it is this graph alone and loses

    @property
    def by_partition(self) -> bool:
        """Whether leaving the partition to PyTorch saves the difference."""
        return self.timed is not self.graph

    @property
    def same(self) -> str:
        """What parts with the same cause share."""
        return self.subject if self.cause.node is None or self.cause.stays else self.cause.node.target

    @property
    def loss_ns(self) -> int:
        """What it costs per call of the model."""
        return round(((self.timed.ort_ns or 0) - (self.timed.torch_ns or 0)) * self.entries)

    @property
    def times(self) -> tuple[int, int]:
        """What it takes per call, and in PyTorch; leaving the only graph to PyTorch saves entering it as well: then what the call takes."""
        own = round((self.timed.ort_ns or 0) * self.entries), round((self.timed.torch_ns or 0) * self.entries)
        return max(own, self.call, key=lambda pair: pair[0] - pair[1])


@rule(
    name="slower_than_torch",
    kind="slower",
    looks_for="A partition, or a whole graph, that takes longer in ONNX Runtime than in PyTorch.",
    fires="When it takes at least 1.3 times as long, in three of four pairs timed in turns, and that costs 10 % of a call: as a warning "
    "from 50 µs per call, as information from 10 µs. Parts with the same cause are one finding.",
    hazard="The model would be faster without ONNX Runtime there.",
)
def slower_than_torch(capture: Capture) -> Iterator[Problem]:
    """Report parts that PyTorch runs faster, grouped by their cause."""
    wholes = whole_by_graph(capture)
    groups = grouped(((slow.by_partition, slow.same), slow) for slow in _slow_parts(capture))
    for slows in groups.values():
        loss, whole = sum(slow.loss_ns for slow in slows), max(wholes.get(slow.graph.graph_id, 0) for slow in slows)
        if loss >= _LEAST_NS and loss >= _SHARE * whole:
            yield _reported(slows, loss, whole)


def _slow_parts(capture: Capture) -> Iterator[_Slow]:
    entries, nodes = entries_per_call(capture), nodes_by_partition(capture)
    for graph in compiled_graphs(capture):
        often, parts = entries.get(graph.graph_id, 0.0), partitions_by_graph(capture).get(graph.graph_id, [])
        slow = [part for part in parts if _is_slow(part) and part.partition_id in nodes]
        lost = sum((part.ort_ns or 0) - (part.torch_ns or 0) for part in slow)
        whole = (graph.ort_ns or 0) - (graph.torch_ns or 0)
        if not _is_slow(graph) or lost >= _MOST * whole:
            causes = ((part, cause_of(capture, [part.partition_id])) for part in slow)
            yield from (_Slow(graph, part, part.partition_id, often, cause) for part, cause in causes if cause is not None)
        elif (cause := cause_of(capture, [part.partition_id for part in parts])) is not None:
            beside = _beside(capture, graph) if lost < _HALF * whole else None
            yield _Slow(graph, graph, graph.graph_id, often, beside or cause, _times_of_call(capture, graph))


def _times_of_call(capture: Capture, graph: Graph) -> tuple[int, int]:
    """Return the times of a call and one in eager PyTorch, if it is this graph alone, no container's guards, and slower."""
    totals, pace = measured_call(capture), call_pace(capture)
    is_alone = totals is not None and totals.graph_ids == (graph.graph_id,) and not capture.breaks and not capture.figures.guards[1:]
    if not is_alone or pace is None or pace.verdict != "slower":
        return 0, 0
    return pace.call_ns or 0, pace.eager_ns or 0


def _beside(capture: Capture, graph: Graph) -> Cause | None:
    """Name what stays in PyTorch and takes most of a graph that its partitions do not make slower; None where nothing stays."""
    costs, splitting = fallback_ns(capture), splitting_costs(capture)
    staying = grouped((row.target, row) for row in fallbacks_by_graph(capture).get(graph.graph_id, []))
    if not staying:
        return None
    keys = ((rows, [(row.graph_id, row.node) for row in rows]) for rows in staying.values())
    rows, _ = max(keys, key=lambda item: sum(costs.get(key, 0.0) + splitting.get(key, 0.0) for key in item[1]))
    placed = next((row for row in rows if row.file), rows[0])
    text = f"{placed.target}, which stays in PyTorch at {counted(len(rows), 'node')}, and the way to it and back, take longer than the "
    text += "partitions lose by themselves"
    return Cause(text=text, remedy="", node=placed, stays=True)


def _is_slow(timed: Graph | Partition) -> bool:
    return bool(timed.is_slower) and (timed.ort_ns or 0) >= WORTH_A_WARNING * (timed.torch_ns or 0) > 0


def _reported(slows: Sequence[_Slow], loss: int, whole: int) -> Problem:
    first = max(slows, key=lambda slow: slow.loss_ns)
    ort, torch = map(sum, zip(*(slow.times for slow in slows), strict=True))
    what = _named(first) if len(slows) == 1 else counted(len(slows), "partition" if first.by_partition else "graph")
    node, leaving = first.cause.node, _leaving(first)
    return slower_than_torch.problem(
        node,
        first.graph,
        subject=first.subject,
        severity="warning" if ort - torch >= _MUCH_NS else "info",
        title=f"{what} {'takes' if len(slows) == 1 else 'take'} {time_from_ns(ort)} per call, PyTorch {time_from_ns(torch)} "
        f"({times(ort / max(torch, 1))} as long): {first.cause.text}",
        evidence=f"{', '.join(slow.subject for slow in slows)}; shortest times of runs in turns, on the inputs of one call; in PyTorch "
        + ("the same nodes" if first.by_partition else "the operators that the program wrote, in place where it writes in place")
        + f"; the difference is {percent(loss / whole if whole else 1)} of a call",
        **(remedy(first.cause.remedy, f"Or {leaving}") if first.cause.remedy else remedy(leaving[0].upper() + leaving[1:])),
        gain_ns=ort - torch,
        measured=True,
    )


def _named(slow: _Slow) -> str:
    return slow.subject if slow.by_partition or not slow.graph.name else f"{slow.graph.name} ({slow.subject})"


def _leaving(slow: _Slow) -> str:
    what = f"the code of {slow.subject}" if slow.by_partition else slow.graph.name or slow.subject
    return f"leave {what} uncompiled (torch.compiler.disable)."
