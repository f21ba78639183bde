"""One node of a compiled graph as a partition of its own, and the values that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.fx

from ortlens.backend.partitioning import extraction
from ortlens.backend.partitioning.plan import Plan, writes
from ortlens.backend.partitioning.support import NodeKind, Verdict, kind_of

if TYPE_CHECKING:
    from ortlens.backend.graph import CompiledGraph


def partition_of_node(graph: CompiledGraph, name: str) -> tuple[extraction.Partition, Verdict] | None:
    """Cut out one node, with the items that are read of its result, and tell whether ONNX Runtime runs it.

    None when there is no such node, or it computes nothing.
    """
    plan = graph.plan
    node = next((node for node in plan.verdicts if node.name == name), None)
    if node is None or node in plan.hoisted_sizes:
        return None
    members = [node, *(user for user in node.users if kind_of(user) is NodeKind.TUPLE)]
    verdicts = dict.fromkeys(members, Verdict(supported=True))
    only = Plan(graph=plan.graph, verdicts=verdicts, level=dict.fromkeys(members, 0), partition_count=1, hoisted_sizes=plan.hoisted_sizes)
    return extraction.split(only, graph.promoted)[0], plan.verdicts[node]


def input_values(graph: CompiledGraph, part: extraction.Partition, args: list[Any]) -> list[Any]:
    """Compute the inputs of a partition in PyTorch.

    Nothing is written to `args`, the inputs of the graph: operators that would are skipped.
    """
    wanted = set(part.inputs)
    env: dict[torch.fx.Node, Any] = dict(zip(graph.placeholders(), args, strict=True))
    for node in graph.promoted.graph.nodes:
        if wanted <= env.keys():
            break
        if node.op == "get_attr":
            env[node] = getattr(graph.promoted, str(node.target))
        elif node.op == "call_function" and writes(node):
            env[node] = env[node.all_input_nodes[0]]  # what it would have written to
        elif node.op == "call_function":
            values = torch.fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = node.target(*values[0], **values[1])
    return [env[node] for node in part.inputs]
