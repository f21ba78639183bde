"""Where each node of an FX graph runs: what ONNX Runtime supports, the plan made from it, and the partitions cut out of the graph.

`ortlens.analysis.cut` draws the partitions; this module describes the graph to it and reads its answer.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import torch

from ortlens import _torch
from ortlens.analysis.cut import Dag, cut
from ortlens.analysis.index import grouped
from ortlens.backend.basis import provenance
from ortlens.backend.lowering import checks
from ortlens.backend.lowering.buffer_writes import read_before, written_before
from ortlens.backend.lowering.returned_views import writes_argument
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ortlens.analysis.cut import Cut
    from ortlens.backend.partitioning.kernel_times import Ns
    from ortlens.trace.records import FallbackCause, ReasonCode


class NodeKind(Enum):
    """The kinds of nodes that the partitioner tells apart."""

    COMPUTE = "compute"  # computes tensors
    TUPLE = "tuple"  # takes an item of a tuple; runs where its producer runs
    SIZE = "size"  # computes a number
    EFFECT = "effect"  # computes nothing, such as an assertion
    OTHER = "other"  # placeholder, get_attr, output


class Verdict(NamedTuple):
    """Whether ONNX Runtime supports a node, and if not, why."""

    supported: bool
    code: ReasonCode | None = None
    reason: str | None = None
    exception: str | None = None  # its text, if conversion or session creation raised one
    cause: FallbackCause | None = None


def kind_of(node: torch.fx.Node) -> NodeKind:
    """Classify a node."""
    if node.op != "call_function":
        return NodeKind.OTHER
    if node.target is operator.getitem:
        return NodeKind.TUPLE
    value = node.meta.get("val")
    if _torch.is_symbolic(value) or isinstance(value, (int, float, bool)):
        return NodeKind.SIZE
    return NodeKind.EFFECT if value is None else NodeKind.COMPUTE


@dataclass(slots=True)
class Plan:
    """Where each node of a graph runs."""

    graph: torch.fx.Graph  # the graph
    # Node -> whether ONNX Runtime supports it, for every node except placeholders, attributes and the output.
    verdicts: dict[torch.fx.Node, Verdict]
    # Node -> level; the supported nodes of level k form partition k, the others run before it.
    level: dict[torch.fx.Node, int] = field(default_factory=dict)
    partition_count: int = 0  # number of levels that have a partition
    # Supported size computations that depend on the graph's inputs alone. They belong to no partition: each partition that needs one
    # computes it itself. Those that are not supported PyTorch computes before everything else.
    hoisted_sizes: frozenset[torch.fx.Node] = frozenset()

    def in_partition(self, node: torch.fx.Node) -> bool:
        """Tell whether ONNX Runtime runs the node; False for hoisted size computations, which belong to no partition."""
        verdict = self.verdicts.get(node)
        return verdict is not None and verdict.supported and node not in self.hoisted_sizes

    def runs_before(self, node: torch.fx.Node, partition: int) -> bool:
        """Tell whether a node has run when a partition starts; False for the nodes of the partition itself."""
        return self.level[node] < partition + (not self.in_partition(node))


def plan_partitions(
    graph: torch.fx.Graph,
    verdict_of: Callable[[torch.fx.Node], Verdict],
    *,
    min_nodes: int = 1,
    if_slower: Callable[[list[torch.fx.Node]], Ns | None] = lambda _: None,
) -> Plan:
    """Divide a graph between ONNX Runtime and PyTorch.

    Partitions of fewer than `min_nodes` compute nodes stay in PyTorch, and those that `if_slower` gives times for.
    """
    verdicts = {node: verdict_of(node) for node in graph.nodes if kind_of(node) is not NodeKind.OTHER}
    nodes, hoisted = list(verdicts), _hoisted_sizes(verdicts)
    dag = _dag_of(nodes, hoisted)
    ordered = [verdict.code == "side_effect" for verdict in verdicts.values()]
    while True:
        made = cut(dag, [verdict.supported for verdict in verdicts.values()], ordered, min_nodes=min_nodes)
        losing = _losing(nodes, made, if_slower)
        if not losing:
            break
        verdicts |= losing
    verdicts |= {nodes[place]: _too_small(count, min_nodes) for place, count in made.too_small.items()}
    level = dict(zip(nodes, made.level, strict=True))
    return Plan(graph=graph, verdicts=verdicts, level=level, partition_count=made.count, hoisted_sizes=hoisted)


def _losing(nodes: list[torch.fx.Node], made: Cut, if_slower: Callable[[list[torch.fx.Node]], Ns | None]) -> dict[torch.fx.Node, Verdict]:
    """Find the nodes of partitions that PyTorch computes faster."""
    members = grouped((level, node) for node, level, inside in zip(nodes, made.level, made.inside, strict=True) if inside)
    found: dict[torch.fx.Node, Verdict] = {}
    for partition in members.values():
        times = if_slower([node for node in partition if kind_of(node) is NodeKind.COMPUTE])
        if times is not None:
            found.update((node, _slower(node, times)) for node in partition)
    return found


def _slower(node: torch.fx.Node, times: Ns) -> Verdict:
    ort, eager = time_from_ns(times.ort), time_from_ns(times.torch)
    reason = f"stays in PyTorch on purpose: its partition would take about {ort} in ONNX Runtime, and {eager} in PyTorch, on one thread"
    return Verdict(supported=False, code="policy", reason=f"{provenance.target_name(node)} {reason}")


def _dag_of(nodes: list[torch.fx.Node], hoisted: frozenset[torch.fx.Node]) -> Dag:
    place = {node: number for number, node in enumerate(nodes)}
    kinds = [kind_of(node) for node in nodes]
    values = [node.meta.get("val") for node in nodes]
    sources = [[place[source] for source in node.all_input_nodes if source in place] for node in nodes]
    readers = [[place[user] for user in node.users if user in place] for node in nodes]

    def waits(node: torch.fx.Node, others: Iterable[torch.fx.Node]) -> None:
        for other in others:
            if place[other] not in sources[place[node]]:
                sources[place[node]].append(place[other])
                readers[place[other]].append(place[node])

    drawn: list[torch.fx.Node] = []  # the last draw: it waits for those before
    written: list[torch.fx.Node] = []
    for node in nodes:
        if (drawn or written) and checks.may_raise(node):
            waits(node, (*written, *drawn))  # if it raises, they have happened, as in PyTorch
        waits(node, read_before(node) or ())
        waits(node, written_before(node))
        drawn = [node] if checks.draws(node) else drawn
        written += [node] if read_before(node) is not None else []
    return Dag(
        sources=sources,
        readers=readers,
        returned=[any(user not in place for user in node.users) for node in nodes],
        counted=[kind is NodeKind.COMPUTE for kind in kinds],
        anchored=[kind is NodeKind.TUPLE or isinstance(value, (tuple, list)) for kind, value in zip(kinds, values, strict=True)],
        roaming=[node in hoisted for node in nodes],
        writes=[writes(node) for node in nodes],
        size_of=lambda number: provenance.tensor_bytes(values[number]),
    )


def _too_small(count: int, min_nodes: int) -> Verdict:
    reason = f"its partition would have {count} operator{'' if count == 1 else 's'}, fewer than min_partition_nodes={min_nodes}"
    return Verdict(supported=False, code="too_small", reason=reason)


def _hoisted_sizes(verdicts: dict[torch.fx.Node, Verdict]) -> frozenset[torch.fx.Node]:
    early: set[torch.fx.Node] = set()
    for node in verdicts:
        if kind_of(node) is NodeKind.SIZE and all(s.op == "placeholder" or s in early for s in node.all_input_nodes):
            early.add(node)
    return frozenset(node for node in early if verdicts[node].supported)


def writes(node: torch.fx.Node) -> bool:
    """Tell whether a node changes an argument that others may read; rare, because AOTAutograd makes graphs functional."""
    return writes_argument(node) and read_before(node) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPartition:
    """One partition, extracted from its graph."""

    index: int  # its position in the order of execution
    module: torch.fx.GraphModule  # the nodes of the partition; takes `inputs`, returns a tuple of `outputs`
    inputs: tuple[torch.fx.Node, ...]  # nodes of the outer graph whose values it takes, in order
    outputs: tuple[torch.fx.Node, ...]  # nodes of the outer graph whose values it returns, in order
    nodes: tuple[torch.fx.Node, ...]  # nodes of the outer graph that it runs
    carried: tuple[torch.fx.Node, ...] = ()  # hoisted size computations and constants of the outer graph of which it has its own copy

    @property
    def has_symbolic_sizes(self) -> bool:
        """Whether a size of an input, or an input that is a number, varies between calls."""
        metas = [node.meta["val"] for node in self.inputs]
        sizes = [size for meta in metas for size in (meta.shape if isinstance(meta, torch.Tensor) else (meta,))]
        return any(map(_torch.is_symbolic, sizes))


def split(plan: Plan, owner: torch.nn.Module) -> list[GraphPartition]:
    """Extract the partitions of a plan from their graph, which is not changed, in the order of execution."""
    members = grouped((plan.level[node], node) for node in plan.verdicts if plan.in_partition(node))
    return [_cut(plan, owner, index, members[index]) for index in range(plan.partition_count)]


def _cut(plan: Plan, owner: torch.nn.Module, index: int, nodes: list[torch.fx.Node]) -> GraphPartition:
    inside = set(nodes)
    inputs, carried = _sources(plan, nodes, inside)
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for source in inputs:
        copies[source] = graph.placeholder(source.name)
        copies[source].meta = dict(source.meta)
    for node in (*carried, *nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = [node for node in nodes if _leaves(node, inside, plan)]
    graph.output(tuple(copies[node] for node in outputs))
    module = torch.fx.GraphModule(owner, graph, class_name=f"Partition{index}")
    return GraphPartition(
        index=index, module=module, inputs=tuple(inputs), outputs=tuple(outputs), nodes=tuple(nodes), carried=tuple(carried)
    )


def _sources(plan: Plan, nodes: list[torch.fx.Node], inside: set[torch.fx.Node]) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """Find the inputs of a partition, and the size computations and constants that it gets a copy of."""
    inputs: dict[torch.fx.Node, None] = {}
    carried: dict[torch.fx.Node, None] = {}

    def visit(source: torch.fx.Node) -> None:
        if source in inside or source in inputs or source in carried:
            return
        if source in plan.hoisted_sizes or source.op == "get_attr":
            for deeper in source.all_input_nodes:
                visit(deeper)
            carried[source] = None
        else:
            inputs[source] = None

    for node in nodes:
        for source in node.all_input_nodes:
            visit(source)
    return list(inputs), list(carried)


def _leaves(node: torch.fx.Node, inside: set[torch.fx.Node], plan: Plan) -> bool:
    """Tell whether a value is read outside the partition. A tuple is never an output itself; its items are."""
    if any(kind_of(user) is NodeKind.TUPLE and user in inside for user in node.users) and isinstance(node.meta.get("val"), (tuple, list)):
        return False
    return any(user not in inside and user not in plan.hoisted_sizes for user in node.users)
