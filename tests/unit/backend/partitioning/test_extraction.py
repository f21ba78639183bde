from __future__ import annotations

import operator

import torch
from hypothesis import given, settings

from ortlens.backend.partitioning.plan import GraphPartition, NodeKind, Plan, kind_of, plan_partitions, split
from tests.unit.backend.graphs import NO, YES, Dag, aten, dags, graph_of, module_of, traced, verdicts_of


def parts_of(module: torch.fx.GraphModule, *stays: object) -> tuple[Plan, list[GraphPartition]]:
    def refused(node: torch.fx.Node) -> bool:
        producer = node.all_input_nodes[0] if node.target is operator.getitem else node
        return producer.target in stays

    plan = plan_partitions(module.graph, lambda node: NO if refused(node) else YES)
    return plan, split(plan, module)


@settings(max_examples=60)
@given(dags())
def test_parts_hold_each_supported_node_once_and_take_and_give_what_they_must(dag: Dag) -> None:
    graph, nodes = graph_of(dag)
    before = str(graph)
    flags = dict(zip(nodes, dag.supported, strict=True))
    plan = plan_partitions(graph, verdicts_of(flags))
    parts = split(plan, module_of(graph))
    assert str(graph) == before, "the graph itself is what PyTorch falls back to"
    assert [part.index for part in parts] == list(range(plan.partition_count))
    assert sorted(node.name for part in parts for node in part.nodes) == sorted(node.name for node in nodes if flags[node])
    for part in parts:
        inside = set(part.nodes)
        needed = {source for node in part.nodes for source in node.all_input_nodes} - inside
        assert set(part.inputs) == needed
        assert len(part.inputs) == len(needed)
        assert set(part.outputs) == {node for node in part.nodes if any(user not in inside for user in node.users)}
        placeholders = [node for node in part.module.graph.nodes if node.op == "placeholder"]
        assert [node.name for node in placeholders] == [node.name for node in part.inputs]
        assert all("val" in node.meta for node in part.module.graph.nodes if node.op != "output")
        part.module.graph.lint()


def test_a_tuple_never_crosses_but_its_items_do() -> None:
    module = traced(lambda x: (torch.topk(x.sin(), 2)[0].cumsum(0), torch.topk(x, 1)[1]), torch.rand(5))
    _, parts = parts_of(module, aten.cumsum.default)
    assert parts
    for part in parts:
        assert all(isinstance(node.meta["val"], torch.Tensor) for node in (*part.inputs, *part.outputs))


def test_sizes_of_inputs_are_carried_by_every_part_that_needs_them() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0] * 2
        return (x.new_zeros(n).sin() + n).cumsum(0).cos() * n

    module = traced(function, torch.rand(4), symbolic=True)
    _, parts = parts_of(module, aten.cumsum.default)
    assert len(parts) == 2
    for part in parts:
        carried = [node for node in part.module.graph.nodes if kind_of(node) is NodeKind.SIZE]
        assert carried
        assert not {node.name for node in carried} & {node.name for node in part.outputs}


def test_inputs_that_are_handed_through_make_no_part_and_others_follow_their_first_use() -> None:
    assert parts_of(traced(lambda x, y: (y, x), torch.rand(2), torch.rand(3)))[1] == []
    (part,) = parts_of(traced(lambda a, b, c: (c.sin() + a) * b, torch.rand(2), torch.rand(2), torch.rand(2)))[1]
    assert [node.name for node in part.inputs] == ["c_1", "a_1", "b_1"]
