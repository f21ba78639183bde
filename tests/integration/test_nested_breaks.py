"""A break in a called function ends the outer graphs, or does not (`nested_graph_breaks`): counts, places, stacks and costs are right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ortlens

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dynamo about what it cannot trace

X = torch.linspace(0.1, 1, 4)


def inner(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def middle(x: torch.Tensor) -> torch.Tensor:
    return inner(x + 1) * 2


def three_deep(x: torch.Tensor) -> torch.Tensor:
    return middle(x.exp()).sin()


def in_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = inner(x) + 1
    return x.tan()


def broken_twice(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    x = x.cos()
    torch._dynamo.graph_break()
    return x.tan()


def two_in_one(x: torch.Tensor) -> torch.Tensor:
    return broken_twice(x.exp()) + 1


def called_twice(x: torch.Tensor) -> torch.Tensor:
    return inner(inner(x.exp())) + 1


def choosing(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x.cos()
    return x.sin()


def on_data(x: torch.Tensor) -> torch.Tensor:
    return choosing(x.exp()) * 2


def weighed(x: torch.Tensor) -> torch.Tensor:
    return x * x.mean().item()


def by_number(x: torch.Tensor) -> torch.Tensor:
    return weighed(x.exp()).sin()


def in_context(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = inner(x.exp())
    return y.tan()


def in_list(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([inner(x + shift) for shift in range(2)]).sum(0)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        torch._dynamo.graph_break()
        return y.relu()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x))
        return y


BREAK = "torch._dynamo.graph_break()"
PROGRAMS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "three_deep": (three_deep, "inner", BREAK),
    "in_loop": (in_loop, "inner", BREAK),
    "two_in_one": (two_in_one, "broken_twice", BREAK),
    "called_twice": (called_twice, "inner", BREAK),
    "on_data": (on_data, "choosing", "if x.sum() > 0:"),
    "by_number": (by_number, "weighed", "return x * x.mean().item()"),
    "in_context": (in_context, "inner", BREAK),
    "in_list": (in_list, "inner", BREAK),
    "submodule": (Model(), "forward", BREAK),
    "sequential": (nn.Sequential(Layer(), nn.Linear(4, 4), Layer()), "forward", BREAK),
}


@pytest.mark.parametrize(
    ("name", "is_nested"), [*((name, True) for name in PROGRAMS), *((name, False) for name in ("two_in_one", "in_context", "submodule"))]
)
def test_graphs_and_breaks_are_those_of_pytorch_and_the_line_is_that_of_the_inner_function(name: str, is_nested: bool) -> None:  # noqa: FBT001
    target, function, source = PROGRAMS[name]
    torch._dynamo.reset()
    with torch.no_grad(), torch._dynamo.config.patch(nested_graph_breaks=is_nested):
        theirs = torch._dynamo.explain(target)(X)
        torch._dynamo.reset()
        lens = ortlens.explain(target, calls=3)(X)
    torch.testing.assert_close(lens.result, target(X), rtol=1e-4, atol=1e-4)
    capture = lens.captured()
    assert (len(lens.graphs), int(lens.breaks.occurrences.sum())) == (theirs.graph_count, theirs.graph_break_count)
    assert {(item.function, item.source, item.file) for item in capture.breaks} == {(function, source, __file__)}
    for item in capture.breaks:
        assert item.cost_ns is not None
        assert item.user_stack[-1].endswith(f" {function}")
        assert not any("ortlens/_os_errors.py" in frame for frame in item.user_stack)
    assert all((graph.entries_per_call or 0) >= 1 for graph in capture.graphs)
