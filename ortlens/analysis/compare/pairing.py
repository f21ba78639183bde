"""What in one capture is what in another: operators by module path, target and structure, and with them graphs, partitions and sessions.

Ids and order say nothing: a graph break more, and every id after it is another. Operators are paired by what they are, the surest key
first; graphs and partitions by the operators that they share.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.index import grouped, nodes_by_graph, sessions_by_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from ortlens.trace.records import Capture, Graph, Node

Match: TypeAlias = Literal["exact", "structure", "module", "renamed"]

_DEPTH = 3  # how many producers up the structure of an operator reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A node of a current graph, with what it is recognised by."""

    node: Node  # the record
    backward: bool  # whether it is in a backward graph
    shape_of_inputs: tuple[int, ...]  # a number per depth, equal for operators whose producers are alike up to that depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An operator that both captures have."""

    before: Node  # in the first
    after: Node  # in the second
    # by what: `exact` all that is known of it, `structure` module, target and producers, `module` module and target, `renamed` target and
    # producers in another module
    match: Match


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Two captures, side by side."""

    operators: tuple[Pair, ...]  # operators that both have, in the order of the first
    removed: tuple[Node, ...]  # operators that only the first has
    added: tuple[Node, ...]  # operators that only the second has
    left: tuple[Node, ...]  # operators of the first that the second runs outside of its graphs
    entered: tuple[Node, ...]  # operators of the second that the first runs outside of its graphs
    graphs: Mapping[str, str]  # graph ids of the second by those of the first
    partitions: Mapping[str, str]  # partition ids likewise
    sessions: Mapping[str, str]  # session ids likewise


def paired(before: Capture, after: Capture) -> Pairing:
    """Align two captures; of graphs that were compiled again, only the newest version."""
    structures: dict[Hashable, int] = {}
    left, right = _operators(before, structures), _operators(after, structures)
    pairs, removed, added = _paired_operators(left, right)
    (left_graphs, removed), (entered, added) = _run_outside(removed, after), _run_outside(added, before)
    graphs = _by_overlap((pair.before.graph_id, pair.after.graph_id) for pair in pairs)
    graphs |= _graphs_by_name(before, after, graphs)
    partitions = _by_overlap(
        (pair.before.partition_id, pair.after.partition_id)
        for pair in pairs
        if pair.before.partition_id is not None and pair.after.partition_id is not None
    )
    return Pairing(
        operators=pairs,
        removed=removed,
        added=added,
        left=left_graphs,
        entered=entered,
        graphs=graphs,
        partitions=partitions,
        sessions=_sessions(before, after, partitions),
    )


def _operators(capture: Capture, structures: dict[Hashable, int]) -> list[Operator]:
    made: list[Operator] = []
    for graph in current_graphs(capture):
        nodes = nodes_by_graph(capture).get(graph.graph_id, [])
        made += [
            Operator(node=node, backward=graph.phase == "backward", shape_of_inputs=shape)
            for node, shape in zip(nodes, _structures(graph, nodes, structures), strict=True)
            if node.kind == "compute"
        ]
    return made


def _run_outside(nodes: Sequence[Node], other: Capture) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Separate the operators that a call of another capture runs outside of its graphs, by name and number, from those that it lacks."""
    outside = Counter[str]()
    for name, _, count in (text.rpartition(":") for frame in other.frames for text in frame.ops):
        outside[name] += int(count) if count.isdecimal() else 0
    found: tuple[list[Node], list[Node]] = [], []
    for node in nodes:
        outside[node.target] -= 1
        found[outside[node.target] < 0].append(node)
    return tuple(found[0]), tuple(found[1])


def _structures(graph: Graph, nodes: Sequence[Node], structures: dict[Hashable, int]) -> list[tuple[int, ...]]:
    """Number each node's structure per depth: its target, its target with those of its producers, and so on."""
    weights = set(graph.weights)

    def numbered(key: Hashable) -> int:
        return structures.setdefault(key, len(structures))

    levels = [{node.node: numbered(node.target) for node in nodes}]
    outside = {True: numbered("a weight"), False: numbered("an input")}
    for _ in range(_DEPTH):
        last = levels[-1]
        levels.append(
            {node.node: numbered((node.target, *(last.get(name, outside[name in weights]) for name in node.inputs))) for node in nodes}
        )
    return [tuple(level[node.node] for level in levels) for node in nodes]


def _paired_operators(left: list[Operator], right: list[Operator]) -> tuple[tuple[Pair, ...], tuple[Node, ...], tuple[Node, ...]]:
    partner: dict[int, tuple[int, Match]] = {}
    free_left, free_right = list(range(len(left))), list(range(len(right)))
    for match, key in _KEYS:
        waiting = grouped((key(right[index]), index) for index in reversed(free_right))
        for index in free_left:
            if candidates := waiting.get(key(left[index])):
                partner[index] = (candidates.pop(), match)
        taken = {index for index, _ in partner.values()}
        free_left = [index for index in free_left if index not in partner]
        free_right = [index for index in free_right if index not in taken]
    pairs = (Pair(before=left[index].node, after=right[other].node, match=match) for index, (other, match) in sorted(partner.items()))
    return tuple(pairs), tuple(left[index].node for index in free_left), tuple(right[index].node for index in free_right)


_KNOWN = ("module", "target", "dtype", "shape", "source")
_KEYS: tuple[tuple[Match, Callable[[Operator], Hashable]], ...] = (
    ("exact", lambda item: (item.backward, item.shape_of_inputs, *(getattr(item.node, name) for name in _KNOWN))),
    ("structure", lambda item: (item.backward, item.node.module, item.node.target, item.shape_of_inputs[1])),
    ("renamed", lambda item: (item.backward, item.shape_of_inputs[-1], item.node.dtype)),
    ("module", lambda item: (item.backward, item.node.module, item.node.target)),
)
"""What operators are recognised by, the surest first."""


def _by_overlap(shared: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Pair ids by how many operators they share, the most first; each id once."""
    pairs: dict[str, str] = {}
    taken: set[str] = set()
    for (before, after), _ in Counter(shared).most_common():
        if before not in pairs and after not in taken:
            pairs[before] = after
            taken.add(after)
    return pairs


def _graphs_by_name(before: Capture, after: Capture, known: Mapping[str, str]) -> dict[str, str]:
    """Pair graphs without known operators, as those of other backends, by target, function and phase, in their order."""
    taken = set(known.values())
    free = (graph for graph in reversed(current_graphs(after)) if graph.graph_id not in taken)
    waiting = grouped((_place(graph), graph.graph_id) for graph in free)
    left = (graph for graph in current_graphs(before) if graph.graph_id not in known)
    return {graph.graph_id: waiting[_place(graph)].pop() for graph in left if waiting.get(_place(graph))}


def _place(graph: Graph) -> Hashable:
    return (graph.target, graph.name, graph.phase, graph.role)


def _sessions(before: Capture, after: Capture, partitions: Mapping[str, str]) -> dict[str, str]:
    """Pair the sessions of paired partitions: those for equal inputs, the others in their order."""
    pairs: dict[str, str] = {}
    for first, second in partitions.items():
        left, right = sessions_by_partition(before).get(first, []), list(sessions_by_partition(after).get(second, ()))
        for same_inputs in (True, False):
            for session in left:
                fit = (other for other in right if not same_inputs or other.input_signature == session.input_signature)
                match = next(fit, None)
                if session.session_id not in pairs and match is not None:
                    pairs[session.session_id] = match.session_id
                    right.remove(match)
    return pairs
