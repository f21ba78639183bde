from __future__ import annotations

import torch
import torch.fx
from hypothesis import given, settings

from ortlens.backend.partitioning.plan import NodeKind, Plan, kind_of, plan_partitions
from tests.unit.backend.graphs import (
    EFFECT,
    NO,
    YES,
    Dag,
    aten,
    dags,
    graph_of,
    longest_alternation,
    traced,
    verdicts_of,
)


def planned(dag: Dag, *, min_nodes: int = 1) -> tuple[Plan, list[torch.fx.Node]]:
    graph, nodes = graph_of(dag)
    flags = dict(zip(nodes, dag.supported, strict=True))
    return plan_partitions(graph, verdicts_of(flags), min_nodes=min_nodes), nodes


def wave(plan: Plan, node: torch.fx.Node) -> tuple[int, int]:
    """When a node runs: PyTorch's nodes of a level before the partition of that level."""
    return plan.level[node], int(plan.in_partition(node))


@settings(max_examples=60)
@given(dags(most=12))
def test_as_few_partitions_as_the_longest_alternation_needs(dag: Dag) -> None:
    plan, nodes = planned(dag)
    assert plan.partition_count == longest_alternation(dag)
    assert {plan.level[node] for node in nodes if plan.in_partition(node)} == set(range(plan.partition_count))
    assert [plan.in_partition(node) for node in nodes] == list(dag.supported)


def test_a_constant_is_made_where_it_is_used() -> None:
    def late_mask(x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(100, 100).tril()
        return x.sin().cumsum(0).cos() @ mask

    graph = traced(late_mask, torch.ones(100, 100)).graph
    plan = plan_partitions(graph, lambda node: NO if node.target is aten.cumsum.default else YES)
    levels = {node.target: plan.level[node] for node in plan.verdicts}
    assert (levels[aten.sin.default], levels[aten.cos.default]) == (0, 1)
    assert levels[aten.tril.default] == levels[aten.ones.default] == 1


@settings(max_examples=60)
@given(dags())
def test_no_partition_is_under_the_limit(dag: Dag) -> None:
    for least in (2, 3, 50):
        plan, nodes = planned(dag, min_nodes=least)
        sizes = [sum(plan.in_partition(n) and plan.level[n] == level for n in nodes) for level in range(plan.partition_count)]
        assert all(size >= least for size in sizes)
        for node, flag in zip(nodes, dag.supported, strict=True):
            given_back = flag and not plan.in_partition(node)
            assert (plan.verdicts[node].code == "too_small") == given_back
            if given_back:
                assert f"min_partition_nodes={least}" in (plan.verdicts[node].reason or "")


@settings(max_examples=60)
@given(dags())
def test_effects_keep_the_order_of_the_program(dag: Dag) -> None:
    graph, nodes = graph_of(dag)
    flags = dict(zip(nodes, dag.supported, strict=True))
    plan = plan_partitions(graph, lambda node: YES if flags[node] else EFFECT)
    effects = [wave(plan, node) for node in nodes if not flags[node]]
    assert effects == sorted(effects)
    for node in nodes:
        for source in node.all_input_nodes:
            if source.op != "placeholder":
                assert wave(plan, source) <= wave(plan, node)


def test_a_write_comes_after_every_earlier_read_and_before_every_later_one() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3)
    before = graph.call_function(aten.sin.default, (x,))
    write = graph.call_function(aten.add_.Tensor, (x, 1))
    after = graph.call_function(aten.cos.default, (x,))
    for node in (before, write, after):
        node.meta["val"] = torch.empty(3)
    graph.output((before, after))
    plan = plan_partitions(graph, lambda node: EFFECT if node is write else YES)
    assert wave(plan, before) < wave(plan, write) < wave(plan, after)
    assert plan.partition_count == 2


def test_numbers_of_input_sizes_belong_nowhere_and_are_no_partition() -> None:
    graph = traced(lambda x: x.new_zeros(x.shape[0] * 2 + 1), torch.ones(4), symbolic=True).graph
    plan = plan_partitions(graph, lambda _: YES)
    numbers = {node for node in graph.nodes if kind_of(node) is NodeKind.SIZE}
    assert numbers
    assert numbers == plan.hoisted_sizes
    assert not any(plan.in_partition(node) for node in numbers)
    assert plan.partition_count == 1
