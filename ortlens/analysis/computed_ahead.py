"""What ONNX Runtime computes once, when a session is created: everything that depends on weights and constants alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.index import nodes_by_graph, once, partitions_by_graph, sessions_by_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.trace.records import Capture, Graph, Node

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
    graphs = current_graphs(capture.graphs)
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
