"""What a plan contains, which nodes a refusal of ONNX Runtime takes to PyTorch, and how a part is taken out of its graph."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from ortlens.backend.partitioning.plan import GraphPartition, NodeKind, Plan, kind_of, plan_partitions, split
from ortlens.backend.planner import Exclusions
from tests.unit.backend.conversion.test_converter import as_partition
from tests.unit.backend.graphs import (
    EFFECT,
    NO,
    YES,
    Dag,
    aten,
    dags,
    graph_of,
    longest_alternation,
    module_of,
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


def partition_of(function: Callable[..., Any], *args: torch.Tensor) -> GraphPartition:
    module = as_partition(function, *args)
    nodes = tuple(node for node in module.graph.nodes if node.op == "call_function")
    return GraphPartition(index=0, module=module, inputs=(), outputs=(), nodes=nodes)


def several(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(0), x.cos().sum(0), x.sum(1), y.sum(0), z.sum(0)


X, Y, Z = torch.ones(3, 3), torch.ones(3, 5), torch.ones(3, 3, dtype=torch.float64)
NO_KERNEL = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for ReduceSum(13) node with name 'sum_1/ReduceSum'"
OTHER = "[ONNXRuntimeError] : 1 : FAIL : Node (sum_1/ReduceSum) Op (ReduceSum) [ShapeInferenceError] axis out of range"


@pytest.mark.parametrize(
    ("message", "broadly", "excluded"),
    [
        (OTHER, False, {"sum_1", "sum_2"}),  # of the same operator, attributes and sizes
        (NO_KERNEL, False, {"sum_1", "sum_2", "sum_4"}),  # of any sizes
        (OTHER, True, {"sum_1", "sum_2", "sum_3", "sum_4"}),  # of any sizes and attributes, but not of another dtype
    ],
)
def test_a_refusal_takes_the_equals_of_the_named_node(message: str, broadly: bool, excluded: set[str]) -> None:  # noqa: FBT001
    exclusions = Exclusions({})
    exclusions.session_refused(partition_of(several, X, Y, Z), {"sum_1/ReduceSum": "sum_1"}, RuntimeError(message), broadly=broadly)
    assert set(exclusions.verdicts) == excluded


def test_a_missing_kernel_is_named_with_the_element_types() -> None:
    exclusions, unnamed = Exclusions({}), Exclusions({})
    exclusions.session_refused(partition_of(several, X, Y, Z), {"sum_1/ReduceSum": "sum_1"}, RuntimeError(NO_KERNEL))
    assert exclusions.verdicts["sum_1"].reason == "ONNX Runtime has no kernel of ReduceSum for float32 on this device"
    unnamed.session_refused(partition_of(several, X, Y, Z), {}, RuntimeError(NO_KERNEL.replace("'sum_1/ReduceSum'", "''")))
    assert unnamed.verdicts["sum_1"].reason == "ONNX Runtime has no kernel of ReduceSum for float32 and float64 on this device"


def test_a_refusal_that_names_no_node_takes_the_partition() -> None:
    exclusions, partition = Exclusions({}), partition_of(several, X, Y, Z)
    exclusions.session_refused(partition, {"sum_1/ReduceSum": "sum_1"}, RuntimeError("out of memory"))
    assert set(exclusions.verdicts) == {node.name for node in partition.nodes}


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
