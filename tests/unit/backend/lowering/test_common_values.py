"""Passes over a lowered graph: what they ensure is checked, and what is computed more than once is computed by one node."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ortlens import Lens
from ortlens.backend.basis.pass_runner import Pass, PassError
from ortlens.backend.lowering import passes
from ortlens.backend.lowering.passes import GraphCondition

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def repeated(x: torch.Tensor) -> torch.Tensor:
    first = (x.t() * 2.0).sin()
    return first @ (x.t() * 2.0).sin().t()


def of_tuples(x: torch.Tensor) -> torch.Tensor:
    return x.sort(1)[0] * x.sort(1)[1] + x.sort(1)[0]


def returned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin(), x.sin(), x.cos().t(), x.cos().t()


def returned_and_read(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x.sin() + 1


def other_numbers(x: torch.Tensor) -> torch.Tensor:
    whole = (x * 4).long()
    return (whole + 1).float() + (whole + 1.0) + (whole + True).float() + x.copysign(0.0) + x.copysign(-0.0)


def written_between(x: torch.Tensor) -> torch.Tensor:
    before = x.sin()
    x.mul_(2)
    return before - x.sin()


def compiled(function: Callable[..., Any], *args: torch.Tensor | list[torch.Tensor]) -> tuple[Any, list[str]]:
    """The result, and the operators of the graph."""
    lens = Lens()
    with torch.no_grad():
        made = torch.compile(function, backend=lens)(*args)
    return made, [node.target.split(".")[1] for node in lens.captured().nodes]


@pytest.mark.parametrize(
    ("function", "counts"),
    [
        (repeated, {"sin": 1, "mul": 1}),
        (of_tuples, {"sort": 1}),
        (returned, {"sin": 2, "cos": 2}),
        (returned_and_read, {"sin": 2}),
        (other_numbers, {"copysign": 2}),
        (written_between, {"sin": 2}),
    ],
)
def test_equal_values_are_computed_once_and_separate_ones_are_not(function: Callable[..., Any], counts: dict[str, int]) -> None:
    made, targets = compiled(function, X.clone())
    torch.testing.assert_close(made, function(X.clone()))
    assert {target: targets.count(target) for target in counts} == counts
    if isinstance(made, tuple):
        assert len({value.untyped_storage().data_ptr() for value in made}) == len(made)


def test_a_position_of_many_layers_is_checked_once() -> None:
    def layers(caches: list[torch.Tensor], at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        for cache in caches:
            cache.index_copy_(1, at, new)
        return new + 1

    ours, theirs = ([torch.zeros(2, 8, 3) for _ in range(4)] for _ in range(2))
    at, new = torch.tensor([5]), torch.randn(2, 1, 3)
    _, targets = compiled(layers, ours, at, new)
    layers(theirs, at, new)
    torch.testing.assert_close(ours, theirs)
    assert targets.count("where") == 1


_aten = torch.ops.aten


def traced() -> torch.fx.GraphModule:
    return make_fx(lambda x, y: (x + y) * 2, tracing_mode="fake")(torch.ones(3), torch.ones(3))


def drops_a_value(copy: passes.Prepared) -> None:
    next(iter(copy.module.graph.find_nodes(op="call_function", target=_aten.add.Tensor))).meta.clear()


def turns_round(copy: passes.Prepared) -> None:
    (output,) = copy.module.graph.find_nodes(op="output")
    next(iter(copy.module.graph.nodes)).prepend(output.all_input_nodes[0])


def leaves_dead_code(copy: passes.Prepared) -> None:
    node = next(iter(copy.module.graph.find_nodes(op="call_function", target=_aten.add.Tensor)))
    with copy.module.graph.inserting_after(node):
        copy.module.graph.call_function(_aten.neg.default, (node,)).meta = dict(node.meta)


@pytest.mark.parametrize(
    ("change", "condition"),
    [(drops_a_value, GraphCondition.VALUED), (turns_round, GraphCondition.ORDERED), (leaves_dead_code, GraphCondition.READ)],
)
def test_a_pass_that_breaks_what_holds_is_seen(
    change: Callable[[passes.Prepared], None], condition: GraphCondition, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = passes.prepared(traced(), lambda _: True)
    assert prepared.failures == {}
    assert all(each.holds(prepared.module.graph) for each in GraphCondition)
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES, Pass(name="planted", run=change)))
    with pytest.raises(PassError, match=condition.value):
        passes.prepared(traced(), lambda _: True)


def packed(x: torch.Tensor) -> Any:  # noqa: ANN401 - indexing gives Any
    first, second, third = x.relu().view(3, 2, 4)
    return first * second - third * first.exp()


def packed_in_part(x: torch.Tensor) -> torch.Tensor:
    parts = x.relu().view(3, 2, 4)
    return parts[0] * parts[2] + parts[-1]


@pytest.mark.parametrize(("function", "stacked"), [(packed, 1), (packed_in_part, 0)])
def test_the_gradient_of_parts_is_stacked_and_reads_nothing_detached(function: Callable[..., Any], stacked: int) -> None:
    lens = Lens()
    ours, theirs = (X.clone().requires_grad_() for _ in range(2))
    torch.compile(function, backend=lens)(ours).sum().backward()
    function(theirs).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    targets = [node.target for node in lens.captured().nodes]
    assert targets.count("aten.stack.default") == stacked
    assert "aten.detach.default" not in targets


def test_a_sum_of_many_terms_is_no_deeper_than_one_of_few() -> None:
    graph = torch.fx.Graph()
    total = first = graph.placeholder("x")
    first.meta["val"] = X
    for _ in range(2000):
        total = graph.call_function(_aten.add.Tensor, (total, first))
        total.meta["val"] = X
    graph.output((total,))
    passes.stack_parts(graph)
    assert len(graph.find_nodes(op="call_function", target=_aten.add.Tensor)) == 2000
