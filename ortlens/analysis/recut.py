"""Recorded graphs, cut anew: from the records of a graph to what `cut` takes, and from its answer back to partitions."""

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
    """A graph of a capture, ready to be cut. Items of tuples are places of their own, right after the node that made the tuple.

    Attributes:
        graph: Its record.
        dag: The graph as numbers.
        records: By place: the node, or the node that made the tuple that it is an item of.
        supported: By place: whether ONNX Runtime took it before partitions that were too small were given back.
        ordered: By place: whether it keeps its place among others of the kind.
        makes_tuple: By place: whether it makes a tuple of which items are taken.
        outer: By place: the inputs of the graph that it reads.
        input_sizes: Bytes of each input of the graph that is no weight.
    """

    graph: Graph
    dag: Dag
    records: tuple[Node, ...]
    supported: tuple[bool, ...]
    ordered: tuple[bool, ...]
    makes_tuple: tuple[bool, ...]
    outer: tuple[tuple[str, ...], ...]
    input_sizes: dict[str, int]

    def cut(self, extra: frozenset[str] = frozenset()) -> Cut:
        """Cut it, as it is or as it would be.

        Args:
            extra: Operators to take as supported, as in `Node.target`.

        Returns:
            The cut.
        """
        supported, ordered = self.supported, self.ordered
        if extra:
            asked = [record.target in extra for record in self.records]
            supported = tuple(takes or asks for takes, asks in zip(supported, asked, strict=True))
            ordered = tuple(keeps and not asks for keeps, asks in zip(ordered, asked, strict=True))
        return cut(self.dag, supported, ordered, min_nodes=self.graph.min_partition_nodes)


@dataclass(slots=True)
class Piece:
    """One partition of a cut.

    Attributes:
        places: What is in it.
        sources: Places outside that it reads.
        inputs: Inputs of the graph that it reads.
        outputs: Places in it that something outside reads, or that the graph returns.
    """

    places: list[int]
    sources: set[int]
    inputs: set[str]
    outputs: list[int]


def recorded_graphs(capture: Capture) -> Iterator[RecordedGraph]:
    """The graphs of a capture that can be cut anew.

    Args:
        capture: Any capture.

    Yields:
        A graph for every one whose nodes were recorded, in the order of the capture.

    Raises:
        CaptureError: A node reads what comes after it.
    """
    nodes: dict[str, list[Node]] = {}
    for node in capture.nodes:
        nodes.setdefault(node.graph_id, []).append(node)
    for graph in capture.graphs:
        if graph.graph_id in nodes:
            yield _recorded(graph, nodes[graph.graph_id])


class _Entry(NamedTuple):
    """A node, or an item of the tuple that a node makes."""

    name: str
    record: Node
    is_item: bool
    size: int


def _entries(nodes: list[Node]) -> Iterator[_Entry]:
    for node in nodes:
        yield _Entry(node.node, node, is_item=False, size=node.output_bytes or 0)
        for item, size in itertools.zip_longest(node.items, node.item_sizes[: len(node.items)], fillvalue=0):
            yield _Entry(str(item), node, is_item=True, size=int(size))


def _recorded(graph: Graph, nodes: list[Node]) -> RecordedGraph:
    entries = list(_entries(nodes))
    place = {entry.name: number for number, entry in enumerate(entries)}
    sources = [_sources(entry, place, entries) for entry in entries]
    weights = frozenset(graph.weights)
    return RecordedGraph(
        graph=graph,
        dag=Dag(
            sources=sources,
            readers=_readers(sources, entries, graph.graph_id),
            returned=[entry.name in entry.record.item_outputs if entry.record.items else entry.record.is_output for entry in entries],
            counted=[entry.record.kind == "compute" and not entry.is_item for entry in entries],
            anchored=[bool(entry.record.items) for entry in entries],
            roaming=[entry.record.roaming for entry in entries],
            writes=[entry.record.mutates and not entry.is_item for entry in entries],
            size_of=[entry.size for entry in entries].__getitem__,
        ),
        records=tuple(entry.record for entry in entries),
        supported=tuple(entry.record.supported or entry.record.reason_code == "too_small" for entry in entries),
        ordered=tuple(entry.record.reason_code == "side_effect" for entry in entries),
        makes_tuple=tuple(bool(entry.record.items) and not entry.is_item for entry in entries),
        outer=tuple(() if entry.is_item else tuple(name for name in entry.record.inputs if name not in place) for entry in entries),
        input_sizes={name: size for name, size in zip(graph.inputs, graph.input_sizes, strict=False) if name not in weights},
    )


def _sources(entry: _Entry, place: dict[str, int], entries: list[_Entry]) -> list[int]:
    """Places that a node reads: of a tuple the items that it takes; the whole of it only where it takes none."""
    if entry.is_item:
        return [place[entry.record.node]]
    items = [place[item] for item in entry.record.item_inputs if item in place]
    makers = {entries[item].record.node for item in items}
    return [*(place[name] for name in entry.record.inputs if name in place and name not in makers), *items]


def _readers(sources: list[list[int]], entries: list[_Entry], graph_id: str) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in sources]
    for number, read in enumerate(sources):
        for source in read:
            if source >= number:
                raise CaptureError(f"graph {graph_id}: node {entries[number].name} reads {entries[source].name}, which comes after it")
            readers[source].append(number)
    return readers


def pieces_of(graph: RecordedGraph, made: Cut) -> list[Piece]:
    """The partitions of a cut, with what goes in and out; numbers that roam and constants go nowhere.

    Args:
        graph: The graph.
        made: A cut of it.

    Returns:
        The partitions in the order of execution.
    """
    pieces = [Piece(places=[], sources=set(), inputs=set(), outputs=[]) for _ in range(made.count)]
    level, inside, dag = made.level, made.inside, graph.dag
    for place in itertools.compress(range(len(inside)), inside):
        number = level[place]
        piece = pieces[number]
        piece.places.append(place)
        piece.inputs.update(graph.outer[place])
        for source in dag.sources[place]:
            if level[source] != number or not inside[source]:
                _read(graph, source, piece)
        if not graph.makes_tuple[place] and _leaves(graph, made, place):
            piece.outputs.append(place)
    return pieces


def _read(graph: RecordedGraph, source: int, piece: Piece) -> None:
    """Note what is read from outside; what makes up a roaming number is read by whoever needs the number."""
    if not graph.dag.roaming[source]:
        piece.sources.add(source)
        return
    piece.inputs.update(graph.outer[source])
    for deeper in graph.dag.sources[source]:
        _read(graph, deeper, piece)


def _leaves(graph: RecordedGraph, made: Cut, place: int) -> bool:
    number = made.level[place]
    for reader in graph.dag.readers[place]:
        if (made.level[reader] != number or not made.inside[reader]) and not graph.dag.roaming[reader]:
            return True
    return graph.dag.returned[place]
