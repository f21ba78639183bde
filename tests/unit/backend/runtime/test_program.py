"""The code between partitions, with PyTorch standing in for ONNX Runtime."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from ortlens.backend.partitioning.plan import GraphPartition, Verdict, plan_partitions, split
from ortlens.backend.runtime.program import _behind_prim, eager_nodes, make_program
from ortlens.trace.runlog import EagerLog
from tests.unit.backend.graphs import NO, YES, Dag, aten, dags, graph_of, module_of, traced, verdicts_of


class TorchRunner:
    """A partition run by its own module, which checks that it is given exactly its inputs."""

    def __init__(self, partition: GraphPartition) -> None:
        self.partition = partition
        self.calls = 0

    def run(self, *args: Any) -> tuple[Any, ...]:
        self.calls += 1
        assert len(args) == len(self.partition.inputs)
        results = self.partition.module(*args)
        assert isinstance(results, tuple)
        assert len(results) == len(self.partition.outputs)
        return results


def program_of(
    module: torch.fx.GraphModule, verdict_of: Callable[[torch.fx.Node], Verdict], *, log: bool = False
) -> tuple[Callable[[list[Any]], list[Any]], list[TorchRunner], EagerLog | None]:
    plan = plan_partitions(module.graph, verdict_of)
    runners = [TorchRunner(part) for part in split(plan, module)]
    eager_log = EagerLog(tuple(node.name for node in eager_nodes(plan))) if log else None
    return make_program(plan, module, runners, eager_log), runners, eager_log


@settings(max_examples=60)
@given(dags())
def test_any_graph_cut_anywhere_gives_what_the_whole_gives(dag: Dag) -> None:
    graph, nodes = graph_of(dag)
    module = module_of(graph)
    program, runners, log = program_of(module, verdicts_of(dict(zip(nodes, dag.supported, strict=True))), log=True)
    inputs = [torch.linspace(-1, 1, 3) * (number + 1) for number in range(dag.inputs)]
    args = list(inputs)
    torch.testing.assert_close(tuple(program(args)), module(*inputs))
    assert args == [], "a boxed function empties its list, so that inputs can be freed early"
    assert [runner.calls for runner in runners] == [1] * len(runners)
    assert log is not None
    assert list(log.calls) == [1] * dag.supported.count(False)


CUT_ANYWHERE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "several_outputs": (lambda x: torch.topk(x.sin(), 2), (torch.rand(5),)),
    "output_is_input": (lambda x: (x, x.sin()), (torch.rand(5),)),
    "same_output_twice": (lambda x: [x.sin()] * 2, (torch.rand(5),)),
    "no_inputs": (lambda: torch.ones(3) * 2, ()),
    "list_argument": (lambda x, y: torch.cat([x.sin(), y, x]), (torch.rand(2), torch.rand(3))),
    "keywords": (lambda x: x.sum(0, keepdim=True, dtype=torch.float64) + torch.full((2,), 3.5, dtype=torch.float64), (torch.rand(3),)),
    "index": (lambda x, i: x[i, :, None] + x[..., 1:3:2].sum(), (torch.rand(3, 4), torch.tensor([0, 2]))),
    "unused_input": (lambda x, _: x.sin(), (torch.rand(2), torch.rand(3))),
    "split": (lambda x: [part * 2 for part in x.sin().split([1, 2, 2])], (torch.rand(5),)),
}


@pytest.mark.parametrize("name", CUT_ANYWHERE)
def test_every_single_node_can_be_the_one_that_stays(name: str) -> None:
    function, args = CUT_ANYWHERE[name]
    module = traced(function, *args)
    from torch.utils._pytree import tree_leaves

    expected = tree_leaves(function(*args))
    targets = {node.target for node in module.graph.nodes if node.op == "call_function" and hasattr(node.target, "_schema")}
    for target in [None, *targets]:

        def verdict(node: torch.fx.Node, target: Any = target) -> Verdict:
            producer = node if hasattr(node.target, "_schema") else node.all_input_nodes[0]
            return NO if producer.target is target else YES

        program, _, _ = program_of(module, verdict)
        torch.testing.assert_close(tree_leaves(program(list(args))), expected)


def test_constants_of_the_graph_reach_both_sides() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    table = graph.get_attr("nested.table")
    inside = graph.call_function(aten.mul.Tensor, (x, table))
    outside = graph.call_function(aten.add.Tensor, (inside, table))
    graph.output((outside, table))
    owner = torch.nn.Module()
    owner.nested = torch.nn.Module()
    owner.nested.register_buffer("table", torch.tensor([1.0, 2.0]))
    for node in (x, table, inside, outside):
        node.meta["val"] = torch.empty(2)
    module = torch.fx.GraphModule(owner, graph)
    program, runners, _ = program_of(module, lambda node: NO if node is outside else YES)
    torch.testing.assert_close(program([torch.tensor([3.0, 4.0])]), [torch.tensor([4.0, 10.0]), torch.tensor([1.0, 2.0])])
    assert [list(runner.partition.inputs) for runner in runners] == [[x]], "a constant is carried, not handed in"


def test_inputs_and_values_go_after_their_last_use() -> None:
    alive: list[list[bool]] = []
    watched: list[weakref.ref[torch.Tensor]] = []

    def make(x: torch.Tensor) -> torch.Tensor:
        made = x + 1
        watched.append(weakref.ref(made))
        return made

    def look(x: torch.Tensor) -> torch.Tensor:
        alive.append([reference() is not None for reference in watched])
        return x * 2

    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for function in (make, look, look):
        value = graph.call_function(function, (value,))
    graph.output((value,))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(2)
    program, _, _ = program_of(module_of(graph), lambda _: NO)
    args = [torch.zeros(2)]
    watched.append(weakref.ref(args[0]))
    torch.testing.assert_close(program(args), [torch.full((2,), 4.0)])
    assert alive == [[False, True], [False, False]]


def test_writes_into_a_constant_that_nothing_else_reads_are_made_in_place() -> None:
    graph = torch.fx.Graph()
    index, source = graph.placeholder("index"), graph.placeholder("source")
    alone, read, inside = (graph.call_function(aten.full.default, ([4], 0.0)) for _ in range(3))
    rows = [graph.call_function(aten.scatter_add.default, (table, 0, index, source)) for table in (alone, read, inside)]
    values = [graph.call_function(aten.scatter.value, (rows[0], 0, index, 2.0)), *rows, read]
    graph.output(tuple(values))
    for node in graph.nodes:
        node.meta["val"] = torch.zeros(4)
    module = module_of(graph)
    program, _, _ = program_of(module, lambda node: YES if node is inside else NO)
    args = [torch.tensor([1, 1, 3]), torch.tensor([1.0, 2.0, 3.0])]
    expected = module(*args)
    with torch.profiler.profile() as profile:
        torch.testing.assert_close(program(list(args)), list(expected))
    counts = {event.key: event.count for event in profile.key_averages()}
    assert (counts["aten::scatter_add"], counts["aten::scatter"]) == (2, 1)


def test_arguments_of_every_kind_reach_the_operator_as_they_are() -> None:
    seen: list[Any] = []

    def take(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((args, kwargs))
        return torch.zeros(1)

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    given_args = (x, [x, None], (1, (2.5, True)), "it's", slice(None, x, 2), torch.float16, torch.device("cpu"), float("inf"), {"k": [x]})
    result = graph.call_function(take, given_args, {"flag": False, "nested": {"a": x}})
    graph.output((result,))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(1)
    program, _, _ = program_of(module_of(graph), lambda _: NO)
    value = torch.ones(1)
    program([value])
    ((args, kwargs),) = seen
    taken = (value, [value, None], (1, (2.5, True)), "it's", slice(None, value, 2), torch.float16, torch.device("cpu"), float("inf"))
    assert args == (*taken, {"k": [value]})
    assert kwargs == {"flag": False, "nested": {"a": value}}


@pytest.mark.parametrize(("prim", "called"), [("bessel_j0", torch.special.bessel_j0), ("broadcast_in_dim", None), ("copy_to", None)])
def test_a_prim_that_makes_a_tensor_is_called_without_its_checks(prim: str, called: Any) -> None:
    target = getattr(torch.ops.prims, prim).default
    assert _behind_prim(target) is (called or target)
    assert _behind_prim(torch.ops.aten.sin.default) is torch.ops.aten.sin.default
