"""From a plan to one GraphModule per partition, which can be converted to ONNX or, if that fails, run by PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.partitioning.kinds import NodeKind, kind_of

if TYPE_CHECKING:
    from ortlens.backend.partitioning.plan import Plan


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
    members: list[list[torch.fx.Node]] = [[] for _ in range(plan.partition_count)]
    for node in plan.verdicts:
        if plan.in_partition(node):
            members[plan.level[node]].append(node)
    return [_cut(plan, owner, index, nodes) for index, nodes in enumerate(members)]


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
