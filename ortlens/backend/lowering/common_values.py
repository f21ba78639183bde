"""Values that a graph computes more than once, computed once.

Decompositions and type promotion repeat themselves: each layer of a model with a key-value cache checks the same position, and each
residual converts the same mask. ONNX Runtime removes repeats within a session, but not what leaves one: every repeat is bound as an
output of its own. AOTAutograd removes them before it partitions a training graph, and from inference graphs not at all.

The first of several equal nodes stays, with its line and its module. These stay all: random draws, what writes or has no schema, views
(their equal results make what reads them equal, and they move no data), constants (each session folds its own), and what the graph
returns, since tensors that a program returns are separate.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.backend.lowering import provenance
from ortlens.backend.lowering.returned_views import base_of

if TYPE_CHECKING:
    from collections.abc import Hashable

_SEPARATE_TAGS = frozenset({torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


def compute_once(graph: torch.fx.Graph) -> None:
    """Let one node compute what several nodes of a functional graph do; a graph with an operator that writes stays as it is."""
    if any(_writes(node) for node in graph.nodes):
        return
    returned = _returned(graph)
    number: dict[torch.fx.Node, int] = {}  # equal numbers: equal values
    first: dict[Hashable, torch.fx.Node] = {}
    made_of_inputs: set[torch.fx.Node] = set()
    for node in list(graph.nodes):
        if node.op in ("placeholder", "output"):
            number[node] = len(number)
            made_of_inputs.add(node)
            continue
        if not made_of_inputs.isdisjoint(node.all_input_nodes):
            made_of_inputs.add(node)
        key = _key(node, number)
        equal = node if key is None else first.setdefault(key, node)
        if equal is not node and _made(equal) != _made(node):
            equal = node
        number[node] = number.get(equal, len(number))
        if equal is not node and node in made_of_inputs and returned.isdisjoint((node, equal)) and _makes_a_value(node):
            node.replace_all_uses_with(equal)
            graph.erase_node(node)


def _key(node: torch.fx.Node, number: dict[torch.fx.Node, int]) -> Hashable | None:
    """Collect what determines the value of a node; None where another node with the same may have another value."""
    if node.op == "get_attr":
        return (node.op, node.target)
    if node.op != "call_function" or not (node.target is operator.getitem or _is_pure(node.target)):
        return None
    arguments = _frozen((*node.args, *node.kwargs.items()), number)
    return None if arguments is None else (node.target, arguments)


def _is_pure(target: Any) -> bool:
    return getattr(target, "namespace", None) in ("aten", "prims") and _SEPARATE_TAGS.isdisjoint(target.tags)


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _frozen(value: Any, number: dict[torch.fx.Node, int]) -> Hashable | None:
    """Make an argument a part of a key; None where it cannot be one."""
    if isinstance(value, torch.fx.Node):
        return ("node", number[value])
    if isinstance(value, (list, tuple)):
        items = [_frozen(item, number) for item in value]
        return None if None in items else tuple(items)
    return (type(value), repr(value)) if isinstance(value, _PLAIN) else None


def _made(node: torch.fx.Node) -> tuple[str, ...]:
    """Describe how what a node makes is typed and laid out."""
    value = node.meta.get("val")
    return tuple(map(provenance.layout_text, provenance.tensors_in(value)))


def _makes_a_value(node: torch.fx.Node) -> bool:
    """Tell whether a node makes tensors of its own."""
    return base_of(node) is None and next(provenance.tensors_in(node.meta.get("val")), None) is not None


def _returned(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Collect what the graph returns, what that is a view of, and what makes it as an item of a tuple."""
    found: set[torch.fx.Node] = set()
    for node in next(iter(graph.find_nodes(op="output"))).all_input_nodes:
        step: torch.fx.Node | None = node
        while step is not None:
            found.add(step)
            step = base_of(step) or (step.all_input_nodes[0] if step.target is operator.getitem else None)
    return found
