"""The cut of a graph into partitions, on plain data: fewest partitions, one pass.

The backend cuts by it what it compiles, and `whatif` cuts by it what a capture recorded, so that a prediction and what
comes true are made by the same lines.

The graph is cut into alternating waves: what PyTorch must run before, then one partition, then the next wave of
PyTorch, and so on. A node goes into the earliest wave its inputs allow, so a chain of operations is cut only where an
unsupported node really lies on it. A path with k runs of supported nodes needs k partitions whatever one does, and this
assignment uses no more than the longest such path needs: the number of partitions is minimal. It takes one pass, so
graphs of any size are cheap; torch's `CapabilityBasedPartitioner` keeps the set of descendants of every node and
is quadratic.

A second pass moves supported nodes to a later partition where that brings fewer bytes over the boundary, so that a
mask made of constants is made where it is used. The first number of a partition is 0.

The second half reads the records of a graph as input of the cut, and partitions from its result.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ortlens.analysis.index import nodes_by_graph
from ortlens.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ortlens.trace.records import Capture, Graph, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Dag:
    """A graph as numbers: item k of each sequence describes node k; nodes are in execution order."""

    sources: Sequence[Sequence[int]]  # nodes that it reads, each once; inputs of the graph and constants are none
    readers: Sequence[Sequence[int]]
    returned: Sequence[bool]
    counted: Sequence[bool]
    anchored: Sequence[bool]  # makes a tuple, or is an item of one: it stays where its inputs put it
    roaming: Sequence[bool]  # a number made of sizes of the graph's inputs alone: computed wherever it is needed, part of no partition
    writes: Sequence[bool]  # changes what it reads; nothing after it may run before it
    size_of: Callable[[int], int]  # bytes of what a node makes. Asked for few nodes, since sizes are dear where they are symbolic


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where each node runs."""

    count: int
    level: list[int]  # by node: what is in a partition runs in the one of that number, the others before it
    inside: list[bool]  # by node: whether it is in a partition
    # supported nodes that are in none because their partition would have been too small, with the number of compute nodes that it would
    # have had
    too_small: dict[int, int] = field(default_factory=dict)


def cut(dag: Dag, supported: Sequence[bool], ordered: Sequence[bool], *, min_nodes: int = 1) -> Cut:
    """Cut a graph; partitions with fewer compute nodes than `min_nodes`, and those of numbers alone, go back to PyTorch.

    `ordered` marks nodes that have to keep their place among others of the kind (checks, random draws).
    """
    inside = [takes and not roams for takes, roams in zip(supported, dag.roaming, strict=True)]
    too_small: dict[int, int] = {}
    while True:
        level = earliest_levels(dag, inside, ordered)
        sink(dag, inside, level)
        small = _small(dag, inside, level, max(min_nodes, 1))
        if not small:
            return _renumbered(inside, level, too_small)
        too_small.update(small)
        for node in small:
            inside[node] = False


def earliest_levels(dag: Dag, inside: Sequence[bool], ordered: Sequence[bool]) -> list[int]:
    """Find the earliest wave that the inputs of each node allow."""
    level: list[int] = []
    floor = 0  # nothing after a write may run before it
    last_ordered = 0  # checks and random draws keep the order the program gave them
    highest = highest_after = 0  # what a write must not come before: when it is in a partition, and when it is not
    for node, sources in enumerate(dag.sources):
        own, own_inside, writes = floor, inside[node], dag.writes[node]
        if writes:
            own = max(floor, highest if own_inside else highest_after)
        for source in sources:
            earliest = level[source]
            if inside[source] and not own_inside:
                earliest += 1
            if earliest > own:  # noqa: PLR1730 - max() costs as much as all the rest of this loop
                own = earliest
        if ordered[node]:
            own = last_ordered = max(own, last_ordered)
        if writes:
            floor = own
        level.append(own)
        highest, highest_after = max(highest, own), max(highest_after, own + own_inside)
    return level


def sink(dag: Dag, inside: Sequence[bool], level: list[int]) -> None:
    """Move supported nodes later, in `level`, where fewer bytes cross a boundary for it."""
    last = max(level, default=0)
    for node in range(len(level) - 1, -1, -1):
        readers = dag.readers[node]
        if dag.writes[node]:
            last = level[node] - (not inside[node])  # what comes before a write must not sink past it
        if not inside[node] or not readers or dag.returned[node] or dag.anchored[node]:
            continue
        latest = level[readers[0]]
        if not level[node] < latest <= last or not all(inside[reader] and level[reader] == latest for reader in readers):
            continue  # nowhere to go to, or it crosses a boundary wherever it is made
        if _newly_crossing(dag, inside, level, node, latest) <= dag.size_of(node):
            level[node] = latest


def _newly_crossing(dag: Dag, inside: Sequence[bool], level: Sequence[int], node: int, latest: int) -> int:
    """Sum up the bytes of inputs that would have to leave their partition only because of this move."""
    moving = (source for source in dag.sources[node] if inside[source] and level[source] < latest and not dag.returned[source])
    return sum(
        dag.size_of(source)
        for source in moving
        if all(reader == node or (inside[reader] and level[reader] == level[source]) for reader in dag.readers[source])
    )


def _small(dag: Dag, inside: Sequence[bool], level: Sequence[int], least: int) -> dict[int, int]:
    """Find the nodes of partitions under the limit, with the number of compute nodes there."""
    counts = [0] * (max(level, default=-1) + 1)
    for node, own in enumerate(level):
        counts[own] += inside[node] and dag.counted[node]
    if all(count >= least for count in counts):
        return {}
    return {node: counts[own] for node, own in enumerate(level) if inside[node] and counts[own] < least}


def _renumbered(inside: list[bool], level: list[int], too_small: dict[int, int]) -> Cut:
    """Close the gaps between the waves that have a partition, keeping their order."""
    used = sorted({own for node, own in enumerate(level) if inside[node]})
    closed = [bisect_left(used, own) for own in range(max(level, default=-1) + 1)]
    return Cut(count=len(used), level=[closed[own] for own in level], inside=inside, too_small=too_small)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGraph:
    """A graph of a capture, ready to be cut. Items of tuples are places of their own, right after the node that made the tuple."""

    graph: Graph
    dag: Dag
    records: tuple[Node, ...]  # by place: the node, or the node that made the tuple that it is an item of
    supported: tuple[bool, ...]  # by place: whether ONNX Runtime took it before partitions that were too small were given back
    ordered: tuple[bool, ...]  # by place: whether it keeps its place among others of the kind
    makes_tuple: tuple[bool, ...]  # by place: whether it makes a tuple of which items are taken
    outer: tuple[tuple[str, ...], ...]  # by place: the inputs of the graph that it reads
    input_sizes: dict[str, int]  # bytes of each input of the graph that is no weight

    def cut(self, extra: frozenset[str] = frozenset()) -> Cut:
        """Cut the graph as if the `extra` operators, named as in `Node.target`, were supported."""
        supported, ordered = self.supported, self.ordered
        if extra:
            asked = [record.target in extra for record in self.records]
            supported = tuple(takes or asks for takes, asks in zip(supported, asked, strict=True))
            ordered = tuple(keeps and not asks for keeps, asks in zip(ordered, asked, strict=True))
        return cut(self.dag, supported, ordered, min_nodes=self.graph.min_partition_nodes)


@dataclass(slots=True)
class CutPartition:
    """One partition of a cut."""

    places: list[int]
    sources: set[int]  # places outside that it reads
    inputs: set[str]  # inputs of the graph that it reads
    outputs: list[int]  # places in it that something outside reads, or that the graph returns


def recorded_graphs(capture: Capture) -> Iterator[RecordedGraph]:
    """Yield the graphs whose nodes were recorded, in order; raise `CaptureError` if a node reads what comes after it."""
    nodes = nodes_by_graph(capture)
    for graph in capture.graphs:
        if graph.graph_id in nodes:
            yield _recorded(graph, nodes[graph.graph_id])


class _NodeValue(NamedTuple):
    """A node, or an item of the tuple that a node makes."""

    name: str
    record: Node
    is_item: bool
    size: int


def _values(nodes: list[Node]) -> Iterator[_NodeValue]:
    for node in nodes:
        yield _NodeValue(node.node, node, is_item=False, size=node.output_bytes or 0)
        for item, size in itertools.zip_longest(node.items, node.item_sizes[: len(node.items)], fillvalue=0):
            yield _NodeValue(str(item), node, is_item=True, size=int(size))


def _recorded(graph: Graph, nodes: list[Node]) -> RecordedGraph:
    values = list(_values(nodes))
    place = {value.name: number for number, value in enumerate(values)}
    sources = [_sources(value, place, values) for value in values]
    weights = frozenset(graph.weights)
    return RecordedGraph(
        graph=graph,
        dag=Dag(
            sources=sources,
            readers=_readers(sources, values, graph.graph_id),
            returned=[value.name in value.record.item_outputs if value.record.items else value.record.is_output for value in values],
            counted=[value.record.kind == "compute" and not value.is_item for value in values],
            anchored=[bool(value.record.items) for value in values],
            roaming=[value.record.roaming for value in values],
            writes=[value.record.mutates and not value.is_item for value in values],
            size_of=[value.size for value in values].__getitem__,
        ),
        records=tuple(value.record for value in values),
        supported=tuple(value.record.supported or value.record.reason_code == "too_small" for value in values),
        ordered=tuple(value.record.reason_code == "side_effect" for value in values),
        makes_tuple=tuple(bool(value.record.items) and not value.is_item for value in values),
        outer=tuple(() if value.is_item else tuple(name for name in value.record.inputs if name not in place) for value in values),
        input_sizes={name: size for name, size in zip(graph.inputs, graph.input_sizes, strict=False) if name not in weights},
    )


def _sources(value: _NodeValue, place: dict[str, int], values: list[_NodeValue]) -> list[int]:
    """List the places that a node reads: of a tuple the items that it takes; the whole of it only where it takes none."""
    if value.is_item:
        return [place[value.record.node]]
    items = [place[item] for item in value.record.item_inputs if item in place]
    makers = {values[item].record.node for item in items}
    return [*(place[name] for name in value.record.inputs if name in place and name not in makers), *items]


def _readers(sources: list[list[int]], values: list[_NodeValue], graph_id: str) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in sources]
    for number, read in enumerate(sources):
        for source in read:
            if source >= number:
                raise CaptureError(f"graph {graph_id}: node {values[number].name} reads {values[source].name}, which comes after it")
            readers[source].append(number)
    return readers


def partitions_of(graph: RecordedGraph, made: Cut) -> list[CutPartition]:
    """List the partitions in the order of execution, with what goes in and out; numbers that roam and constants go nowhere."""
    partitions = [CutPartition(places=[], sources=set(), inputs=set(), outputs=[]) for _ in range(made.count)]
    level, inside, dag = made.level, made.inside, graph.dag
    for place in itertools.compress(range(len(inside)), inside):
        number = level[place]
        partition = partitions[number]
        partition.places.append(place)
        partition.inputs.update(graph.outer[place])
        for source in dag.sources[place]:
            if level[source] != number or not inside[source]:
                _read(graph, source, partition)
        if not graph.makes_tuple[place] and _leaves(graph, made, place):
            partition.outputs.append(place)
    return partitions


def _read(graph: RecordedGraph, source: int, partition: CutPartition) -> None:
    """Note what is read from outside; what makes up a roaming number is read by whoever needs the number."""
    if not graph.dag.roaming[source]:
        partition.sources.add(source)
        return
    partition.inputs.update(graph.outer[source])
    for deeper in graph.dag.sources[source]:
        _read(graph, deeper, partition)


def _leaves(graph: RecordedGraph, made: Cut, place: int) -> bool:
    number = made.level[place]
    for reader in graph.dag.readers[place]:
        if (made.level[reader] != number or not made.inside[reader]) and not graph.dag.roaming[reader]:
            return True
    return graph.dag.returned[place]
