"""FX graph -> partitions.

The graph is cut into alternating waves: what PyTorch must run before, then one partition, then the next wave of
PyTorch, and so on. A node goes into the earliest wave its inputs allow, so a chain of operations is cut only where an
unsupported node really lies on it. A path with k runs of supported nodes needs k partitions whatever one does, and this
assignment uses no more than the longest such path needs: the number of partitions is minimal. It takes one pass, so
graphs of any size are cheap; torch's `CapabilityBasedPartitioner` keeps the set of descendants of every node and
is quadratic.

A second pass moves supported nodes to a later partition where that brings fewer bytes over the boundary, so that a
mask made of constants is made where it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ortlens.backend import provenance
from ortlens.backend.support import NodeKind, Verdict, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch.fx


@dataclass(slots=True)
class Plan:
    """Where each node of a graph runs.

    Attributes:
        graph: The graph.
        verdicts: Node -> whether ONNX Runtime takes it, for every node but placeholders, attributes and the output.
        level: Node -> wave; supported nodes of wave k form partition k, the others run before it.
        partition_count: Number of waves that have a partition.
        roaming: Numbers computed from sizes of the graph's inputs alone; they are computed wherever they are needed.
    """

    graph: torch.fx.Graph
    verdicts: dict[torch.fx.Node, Verdict]
    level: dict[torch.fx.Node, int] = field(default_factory=dict)
    partition_count: int = 0
    roaming: frozenset[torch.fx.Node] = frozenset()

    def in_partition(self, node: torch.fx.Node) -> bool:
        """Whether ONNX Runtime runs the node.

        Args:
            node: Any node of the graph.

        Returns:
            True for nodes of a partition; roaming numbers belong to none.
        """
        verdict = self.verdicts.get(node)
        return verdict is not None and verdict.supported and node not in self.roaming


def plan_partitions(graph: torch.fx.Graph, verdict_of: Callable[[torch.fx.Node], Verdict], *, min_nodes: int = 1) -> Plan:
    """Cut a graph.

    Args:
        graph: An ATen graph whose nodes carry `meta["val"]`.
        verdict_of: Decides one node.
        min_nodes: Partitions with fewer compute nodes are given back to PyTorch.

    Returns:
        The plan; `partition_count` is 0 when ONNX Runtime takes nothing.
    """
    verdicts = {node: verdict_of(node) for node in graph.nodes if kind_of(node) is not NodeKind.OTHER}
    plan = Plan(graph=graph, verdicts=verdicts, roaming=_roaming_numbers(graph))
    while True:
        plan.level = _earliest_levels(plan)
        _sink(plan)
        small = _small_partitions(plan, min_nodes)
        if not small:
            _renumber(plan)
            return plan
        verdicts.update(small)


def _roaming_numbers(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    roaming: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if kind_of(node) is NodeKind.SIZE and all(s.op == "placeholder" or s in roaming for s in node.all_input_nodes):
            roaming.add(node)
    return frozenset(roaming)


def _earliest_levels(plan: Plan) -> dict[torch.fx.Node, int]:
    level: dict[torch.fx.Node, int] = {}
    floor = 0  # nothing after a write may run before it
    last_effect = 0  # checks and random draws keep the order the program gave them
    for node in plan.verdicts:
        sources = level if writes(node) else (source for source in node.all_input_nodes if source in level)
        own = max((level[s] + (plan.in_partition(s) and not plan.in_partition(node)) for s in sources), default=0)
        own = max(own, floor)
        if plan.verdicts[node].code == "side_effect":
            own = last_effect = max(own, last_effect)
        if writes(node):
            floor = own
        level[node] = own
    return level


def writes(node: torch.fx.Node) -> bool:
    """Whether a node changes one of its arguments; rare, since AOTAutograd makes graphs functional.

    Args:
        node: Any node of an ATen graph.

    Returns:
        True for operators whose schema says so.
    """
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _sink(plan: Plan) -> None:
    """Move supported nodes later where fewer bytes cross a boundary for it."""
    for node in reversed(plan.graph.nodes):
        if not plan.in_partition(node) or kind_of(node) is NodeKind.TUPLE or _makes_tuple(node):
            continue
        users = [user for user in node.users if user not in plan.roaming]
        if not users or not all(plan.in_partition(user) for user in users):
            continue
        levels = {plan.level[user] for user in users}
        if len(levels) > 1:
            continue  # it crosses a boundary wherever it is made
        latest = levels.pop()
        if latest > plan.level[node] and _newly_crossing(plan, node, latest) <= provenance.tensor_bytes(node.meta.get("val")):
            plan.level[node] = latest


def _makes_tuple(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _newly_crossing(plan: Plan, node: torch.fx.Node, level: int) -> int:
    """Bytes of inputs that would have to leave their partition only because of this move."""
    total = 0
    for source in node.all_input_nodes:
        if not plan.in_partition(source) or plan.level[source] >= level:
            continue
        crosses_anyway = any(user is not node and _outside(plan, user, plan.level[source]) for user in source.users)
        if not crosses_anyway:
            total += provenance.tensor_bytes(source.meta.get("val"))
    return total


def _outside(plan: Plan, user: torch.fx.Node, level: int) -> bool:
    return not plan.in_partition(user) or plan.level[user] != level


def _compute_counts(plan: Plan) -> dict[int, int]:
    counts: dict[int, int] = {}
    for node in plan.verdicts:
        if plan.in_partition(node):
            counts[plan.level[node]] = counts.get(plan.level[node], 0) + (kind_of(node) is NodeKind.COMPUTE)
    return counts


def _small_partitions(plan: Plan, min_nodes: int) -> Mapping[torch.fx.Node, Verdict]:
    """Verdicts for the nodes of partitions under the limit; partitions of numbers alone always are."""
    small = {level: count for level, count in _compute_counts(plan).items() if count < max(min_nodes, 1)}
    verdicts = {}
    for node in plan.verdicts:
        if plan.in_partition(node) and plan.level[node] in small:
            count = small[plan.level[node]]
            reason = f"its partition would have {count} compute node{'' if count == 1 else 's'}, under min_partition_nodes={min_nodes}"
            verdicts[node] = Verdict(supported=False, code="too_small", reason=reason)
    return verdicts


def _renumber(plan: Plan) -> None:
    """Close the gaps that sinking left, keeping the order of waves."""
    used = sorted({plan.level[node] for node in plan.verdicts if plan.in_partition(node)})
    position = {level: index for index, level in enumerate(used)}
    plan.partition_count = len(used)
    for node, level in plan.level.items():
        if plan.in_partition(node):
            plan.level[node] = position[level]
        else:
            plan.level[node] = sum(1 for earlier in used if earlier < level)
