"""Hand-made FX graphs of cheap ATen operators, and independent answers to what the partitioner claims."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from ortlens.backend.partitioning.plan import Verdict

aten = torch.ops.aten
NO = Verdict(supported=False, code="no_converter", reason="asked")
EFFECT = Verdict(supported=False, code="side_effect", reason="asked")
YES = Verdict(supported=True)


@dataclass(frozen=True)
class Dag:
    """A graph as plain data: node k takes `sources[k]` (numbers below k + `inputs`; the first `inputs` are placeholders)."""

    inputs: int
    sources: tuple[tuple[int, ...], ...]
    supported: tuple[bool, ...]


@st.composite
def dags(draw: st.DrawFn, *, most: int = 14, inputs: int = 2) -> Dag:
    """Any graph of one- and two-argument operators with any of them unsupported."""
    count = draw(st.integers(1, most))
    sources = tuple(tuple(draw(st.lists(st.integers(0, number + inputs - 1), min_size=1, max_size=2))) for number in range(count))
    flags = tuple(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    return Dag(inputs, sources, flags)


def graph_of(dag: Dag) -> tuple[torch.fx.Graph, list[torch.fx.Node]]:
    """The graph; every node without a user is an output."""
    graph = torch.fx.Graph()
    values: list[torch.fx.Node] = [graph.placeholder(f"in{number}") for number in range(dag.inputs)]
    for value in values:
        value.meta["val"] = torch.empty(3)
    for sources in dag.sources:
        args = [values[source] for source in sources]
        node = graph.call_function(aten.sub.Tensor, tuple(args)) if len(args) > 1 else graph.call_function(aten.sin.default, tuple(args))
        node.meta["val"] = torch.empty(3)
        values.append(node)
    made = values[dag.inputs :]
    used = {source for node in made for source in node.all_input_nodes}
    graph.output(tuple(node for node in made if node not in used))
    graph.lint()
    return graph, made


def verdicts_of(flags: Mapping[torch.fx.Node, bool]) -> Callable[[torch.fx.Node], Verdict]:
    return lambda node: YES if flags.get(node, True) else NO


def longest_alternation(dag: Dag) -> int:
    """Most runs of supported nodes on any path: no plan can do with fewer partitions. Every path is walked, none assumed."""
    users: dict[int, list[int]] = {number: [] for number in range(len(dag.sources))}
    for number, sources in enumerate(dag.sources):
        for source in set(sources):
            if source >= dag.inputs:
                users[source - dag.inputs].append(number)

    def runs_after(number: int, *, inside: bool) -> int:
        now = dag.supported[number]
        own = int(now and not inside)
        return own + max((runs_after(user, inside=now) for user in users[number]), default=0)

    return max(runs_after(number, inside=False) for number in range(len(dag.sources)))


def module_of(graph: torch.fx.Graph) -> torch.fx.GraphModule:
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def traced(function: Callable[..., Any], *args: Any, symbolic: bool = False, **tracing: Any) -> torch.fx.GraphModule:
    """The ATen graph of a function, with `meta["val"]` on every node, as AOTAutograd would hand it over."""
    from torch.fx.experimental.proxy_tensor import make_fx

    module: torch.fx.GraphModule = make_fx(function, tracing_mode="symbolic" if symbolic else "fake", **tracing)(*args)
    return module


def node_named(graph: torch.fx.Graph, target: Any) -> torch.fx.Node:
    found: torch.fx.Node = next(node for node in graph.nodes if node.target is target)
    return found
