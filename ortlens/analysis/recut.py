"""Recorded graphs, cut again: from the records of a graph to the input of `cut`, and from its result to partitions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ortlens.analysis.cut import Cut, Dag, cut
from ortlens.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.trace.records import Capture, Graph, Node


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
    nodes: dict[str, list[Node]] = {}
    for node in capture.nodes:
        nodes.setdefault(node.graph_id, []).append(node)
    for graph in capture.graphs:
        if graph.graph_id in nodes:
            yield _recorded(graph, nodes[graph.graph_id])


class _Value(NamedTuple):
    """A node, or an item of the tuple that a node makes."""

    name: str
    record: Node
    is_item: bool
    size: int


def _values(nodes: list[Node]) -> Iterator[_Value]:
    for node in nodes:
        yield _Value(node.node, node, is_item=False, size=node.output_bytes or 0)
        for item, size in itertools.zip_longest(node.items, node.item_sizes[: len(node.items)], fillvalue=0):
            yield _Value(str(item), node, is_item=True, size=int(size))


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


def _sources(value: _Value, place: dict[str, int], values: list[_Value]) -> list[int]:
    """List the places that a node reads: of a tuple the items that it takes; the whole of it only where it takes none."""
    if value.is_item:
        return [place[value.record.node]]
    items = [place[item] for item in value.record.item_inputs if item in place]
    makers = {values[item].record.node for item in items}
    return [*(place[name] for name in value.record.inputs if name in place and name not in makers), *items]


def _readers(sources: list[list[int]], values: list[_Value], graph_id: str) -> list[list[int]]:
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
