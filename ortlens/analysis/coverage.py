"""How much of a call ONNX Runtime runs, or of the compiled code where nothing was counted, and what of it when a session is created.

Operators of a call are counted in PyTorch, one by one (`CallLine`). Which of those in graphs run in ONNX Runtime is known per node; a line
counts with the share of its nodes, rounded down. Without a count, the compute nodes of the graphs stand for the whole.

A recompiled graph describes code that is already in the capture, under another guard. Adding both versions up would
weigh that code twice, and the more often it is recompiled, the more it would count. So only the newest version of each
graph counts here. Rejected: the mean over the versions (a figure that no call ever sees), and weighting by calls
(a capture that was not called would have no coverage).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.index import grouped, nodes_by_graph, once, partitions_by_graph, sessions_by_partition, summed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ortlens.trace.records import CallLine, Capture, Graph, Node, PythonFrame, Recompile


LineState: TypeAlias = Literal["ort", "torch", "between", "uncompiled"]
Verdict: TypeAlias = Literal["empty", "foreign", "no_compute", "none", "part", "compiled", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of the current graphs runs in ONNX Runtime."""

    # `empty` nothing was compiled; `foreign` another backend, so nothing was partitioned; `no_compute` no graph holds a compute node;
    # `none` or `part`: how much of the compute nodes ONNX Runtime runs; `compiled`: all of them, but not all code is in the graphs;
    # `whole`: all of them, and nothing is known to run outside
    verdict: Verdict
    operator_count: int | None  # operators that PyTorch runs in a call without torch.compile; None where they were not counted
    compiled_operator_count: int  # of these, the ones in compiled graphs; 0 where not counted
    ort_operator_count: int  # of these, the ones that ONNX Runtime runs; 0 where not counted
    node_count: int  # compute nodes of the current graphs; 0 when none is known
    ort_node_count: int  # those that ONNX Runtime runs
    share: float | None  # of the operators, else of the compute nodes, 0 to 1; None when there is nothing to divide
    partition_count: int  # ONNX models that the current graphs were cut into
    whole_graph_count: int  # current graphs that run as a single ONNX model, with nothing left in PyTorch
    graph_count: int  # current graphs whose compute nodes are known
    break_count: int = 0  # places where PyTorch stopped tracing: what runs there is in no graph, and counts for nothing here
    foreign_graph_count: int = 0  # current graphs of another backend beside ours, of which nothing is known
    is_cut_short: bool = False  # whether a dry run ended before the function did, so that later graphs are unknown

    @property
    def is_partial_view(self) -> bool:
        """Whether code is known to run, or to follow, outside the graphs that are counted."""
        return self.operator_count is None and bool(self.break_count or self.foreign_graph_count or self.is_cut_short)

    @property
    def node_share(self) -> float | None:
        """The share of the compute nodes of the graphs alone."""
        return self.ort_node_count / self.node_count if self.node_count else None

    @property
    def part(self) -> tuple[int, int]:
        """What ONNX Runtime runs, and of how many operators."""
        return (self.ort_node_count, self.node_count) if self.operator_count is None else (self.ort_operator_count, self.operator_count)


def code_key(graph: Graph) -> tuple[object, ...]:
    """Return what versions of one graph share, the function included: frame numbers restart after `torch._dynamo.reset()`."""
    return (*place_key(graph), graph.role)


def place_key(graph: Graph) -> tuple[object, ...]:
    """Return what graphs at one place of a call have in common, such as prefill and decode of a generation."""
    if graph.compile_id is None:
        return (graph.graph_id,)
    is_foreign = graph.node_count is None  # what two backends compiled of one function are no versions of each other
    return (graph.compile_id.rpartition("/")[0], graph.name, graph.file, graph.line, graph.phase, is_foreign)


def is_backward_of(graph: Graph, before: Graph | None) -> bool:
    """Tell whether a graph is the backward of the forward right before it: a break that ended the forward lies between them."""
    return before is not None and (before.phase, graph.phase, before.compile_id) == ("forward", "backward", graph.compile_id)


def _attempt(graph: Graph) -> int:
    tail = (graph.compile_id or "").rpartition("/")[2]
    return int(tail) if tail.isdecimal() else 0


@once
def own_graphs(capture: Capture) -> tuple[Graph, ...]:
    """Return the graphs of the program, without those that only `verify` compiled and ran."""
    return tuple(graph for graph in capture.graphs if not graph.only_verified)


@once
def current_graphs(capture: Capture) -> tuple[Graph, ...]:
    """Return the newest version of every graph, in order, without graphs that only `verify` ran."""
    graphs = own_graphs(capture)
    newest: dict[tuple[object, ...], int] = {}
    for graph in graphs:
        key = code_key(graph)
        newest[key] = max(newest.get(key, 0), _attempt(graph))
    return tuple(graph for graph in graphs if _attempt(graph) == newest[code_key(graph)])


@once
def current_ids(capture: Capture) -> frozenset[str]:
    """Return the ids of `current_graphs`."""
    return frozenset(graph.graph_id for graph in current_graphs(capture))


@once
def compiled_graphs(capture: Capture) -> tuple[Graph, ...]:
    """Return those of `current_graphs` that our backend compiled."""
    return tuple(graph for graph in current_graphs(capture) if graph.node_count is not None)


@once
def own_recompiles(capture: Capture) -> tuple[Recompile, ...]:
    """Return the recompiles of the program, without what `verify` compiled."""
    verified = {graph.compile_id for graph in capture.graphs if graph.only_verified}
    verified -= {graph.compile_id for graph in own_graphs(capture)}
    return tuple(item for item in capture.recompiles if item.compile_id not in verified)


def ort_node_count(graph: Graph, partitioned: Mapping[str, int]) -> int | None:
    """Count the compute nodes of one graph that ONNX Runtime runs; None for a graph of another backend."""
    if graph.node_count is None:
        return None
    if graph.coverage is None or not 0.0 <= graph.coverage <= 1.0:  # NaN in a damaged capture is neither
        return partitioned.get(graph.graph_id, 0)
    return round(graph.coverage * graph.node_count)


def partitioned_nodes(capture: Capture) -> dict[str, int]:
    """Count the compute nodes in the partitions of each graph; a graph without partitions is absent."""
    return summed((partition.graph_id, partition.node_count) for partition in capture.partitions)


@once
def coverage_of(capture: Capture) -> Coverage:
    """Compute how much of the capture's code ONNX Runtime runs, weighted by compute nodes over the current graphs."""
    known = compiled_graphs(capture)
    partitioned = partitioned_nodes(capture)
    partition_counts = Counter(partition.graph_id for partition in capture.partitions)
    nodes = sum(graph.node_count or 0 for graph in known)
    in_ort = sum(ort_node_count(graph, partitioned) or 0 for graph in known)
    operators = sum(line.operators for line in capture.call_lines) or None
    compiled = sum(line.operators - line.outside for line in capture.call_lines)
    ort_operators = _ort_operators(capture, in_ort, nodes)
    verdict = _verdict(capture, len(known), (ort_operators, operators) if operators is not None and nodes else (in_ort, nodes))
    is_counted = operators is not None and verdict != "foreign"
    return Coverage(
        verdict=verdict,
        operator_count=operators,
        compiled_operator_count=compiled,
        ort_operator_count=ort_operators,
        node_count=nodes,
        ort_node_count=in_ort,
        share=ort_operators / operators if is_counted and operators else in_ort / nodes if nodes else None,
        partition_count=sum(partition_counts[graph.graph_id] for graph in known),
        whole_graph_count=sum(
            bool(graph.node_count) and ort_node_count(graph, partitioned) == graph.node_count and partition_counts[graph.graph_id] == 1
            for graph in known
        ),
        graph_count=len(known),
        break_count=len(capture.breaks),
        foreign_graph_count=_foreign(capture) if known else 0,
        is_cut_short=_is_cut_short(capture),
    )


def _ort_operators(capture: Capture, in_ort: int, nodes: int) -> int:
    """Count the operators of a call that ONNX Runtime runs: of those in graphs, by the nodes of their lines, else by all nodes."""
    known, found = _nodes_by_line(capture) if 0 < in_ort < nodes else {}, 0
    for line in capture.call_lines:
        own = [node.supported for node in known.get((line.file, line.line), ()) if node.kind == "compute"]
        supported, count = (sum(own), len(own)) if own else (in_ort, nodes or 1)
        found += (line.operators - line.outside) * supported // count
    return found


@once
def _nodes_by_line(capture: Capture) -> dict[tuple[str | None, int | None], list[Node]]:
    nodes = (node for graph in compiled_graphs(capture) for node in nodes_by_graph(capture).get(graph.graph_id, ()))
    return grouped(((node.file, node.line), node) for node in nodes)


def state_of(lines: Sequence[CallLine], capture: Capture) -> LineState | None:
    """Tell where the operators of lines run; of several answers, the farthest from ONNX Runtime counts. None without operators."""
    lost = {(frame.frame, frame.file) for frame in given_up(capture)}
    if outside := [(line.function, line.file) for line in lines if line.outside]:
        return "between" if lost.isdisjoint(outside) else "uncompiled"
    known = _nodes_by_line(capture)
    is_whole = all(node.supported for line in lines for node in known.get((line.file, line.line), ()))
    return None if not lines else "ort" if is_whole else "torch"


@once
def given_up(capture: Capture) -> tuple[PythonFrame, ...]:
    """Return the functions that run operators outside of graphs because they were not compiled, those with the most first.

    Where operators were not counted, these are all that PyTorch gave up.
    """
    frames = (frame for frame in capture.frames if frame.status != "compiled" and frame.operators != 0)
    return tuple(sorted((frame for frame in frames if frame.operators or frame.status == "failed"), key=lambda row: -(row.operators or 0)))


def is_dry_run(capture: Capture) -> bool:
    """Tell whether nothing was run; older captures do not say so, but have models without a session and without a call."""
    left = bool(capture.models) and not capture.sessions and not capture.runs
    return left or capture.figures.dry_run or _is_cut_short(capture)


def _is_cut_short(capture: Capture) -> bool:
    return any(finding.rule == "dry_run_ended" for finding in capture.findings)


def _foreign(capture: Capture) -> int:
    return sum(graph.node_count is None and graph.op_count > 0 for graph in current_graphs(capture))


def _verdict(capture: Capture, known: int, part: tuple[int, int]) -> Verdict:
    in_ort, whole = part
    if not capture.graphs:
        return "empty"
    if not known:
        return "foreign"
    if not whole:
        return "no_compute"
    if not in_ort:
        return "none"
    if in_ort < whole:
        return "part"
    is_partial = not capture.call_lines and (capture.breaks or _is_cut_short(capture) or _foreign(capture))
    return "compiled" if is_partial else "whole"


_MOST = 0.5
_FLOPS_PER_BYTE = 10
_SORTING = frozenset({"TopK", "Unique"})
_SORTING_FACTOR = 30
_VIEWS = re.compile(
    r"aten\.(t|view|_unsafe_view|reshape|permute|transpose|expand|slice|select|squeeze|unsqueeze|split|split_with_sizes|unbind|alias)\."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedAhead:
    """Operators of the current graphs that no argument of a call has a part in, where they are most of the work."""

    count: int  # of these operators
    of: int  # operators in all
    node: Node  # the one with the most work

    @property
    def clause(self) -> str:
        """How much it is, as a clause."""
        which = "all operators" if self.count == self.of else f"{self.count:,} of {self.of:,} operators"
        depend, were = ("depends", "was") if self.count == 1 < self.of else ("depend", "were")
        return f"{which} {depend} on no argument and {were} computed once"


@once
def computed_ahead(capture: Capture) -> ComputedAhead | None:
    """Find what sessions do not compute on any call; None where it is less than half of the work, as estimated, or weights are inputs."""
    graphs = current_graphs(capture)
    nodes = [node for graph in graphs for node in nodes_by_graph(capture).get(graph.graph_id, []) if node.kind == "compute"]
    ahead = [node for graph in graphs if graph.phase == "inference" for node in _constant(graph, capture)]
    if not ahead or sum(map(effort, ahead)) < _MOST * sum(map(effort, nodes)):
        return None
    return ComputedAhead(count=len(ahead), of=len(nodes), node=max(ahead, key=effort))


def _constant(graph: Graph, capture: Capture) -> Iterator[Node]:
    """Yield the operators of frozen partitions that compute with weights and constants alone."""
    sessions = sessions_by_partition(capture)
    latest = [sessions.get(part.partition_id, [None])[-1] for part in partitions_by_graph(capture).get(graph.graph_id, [])]
    folding = {session.partition_id for session in latest if session is not None and session.frozen_bytes != 0}
    varying = {name for name in graph.inputs if name not in graph.weights}
    for node in nodes_by_graph(capture).get(graph.graph_id, []):
        if node.partition_id not in folding or not varying.isdisjoint(node.inputs):
            varying.add(node.node)
        elif node.kind == "compute":
            yield node


def effort(node: Node) -> float:
    """Estimate how long a node takes: moving a byte takes as long as ten operations, and sorting compares a number often."""
    if _VIEWS.match(node.target) and "Transpose" not in node.onnx_ops:
        return 0.0
    moved = (node.bytes or 0) * (_SORTING_FACTOR if _SORTING.intersection(node.onnx_ops) else 1)
    return max((node.flops or 0) / _FLOPS_PER_BYTE, moved)
