"""What happens to an ATen graph before it is partitioned: one ordered list of passes, with what each requires and ensures.

The conditions are checked in every compilation, after the last pass: one walk over the graph each, which takes less than a hundredth of the
time of the passes. A graph that breaks one stays in PyTorch, as after any failure to compile it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.backend.lowering import attention, provenance, storage_windows, type_promotion
from ortlens.backend.lowering.returned_views import base_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


_METADATA_CHECK = torch.ops.aten._assert_tensor_metadata.default  # noqa: SLF001 - an operator's name


class Condition(Enum):
    """What is true of a graph between two passes; `holds` checks it."""

    VALUED = "every node that another reads has its example value"
    ORDERED = "every node comes after those that it reads"
    SETTLED = "no check of a dtype or device is left, which tracing has made"
    READ = "every node is read, or has an effect"

    def holds(self, graph: torch.fx.Graph) -> bool:
        """Tell whether the condition is true of a graph."""
        return _CHECKS[self](graph)


@dataclass(slots=True, kw_only=True)
class _Copy:
    """A graph on its way through the passes.

    Attributes:
        module: The copy.
        is_converted: Tells whether an operator has an ONNX function.
        failures: Node -> what was raised where PyTorch's implicit conversions are not known.
    """

    module: torch.fx.GraphModule
    is_converted: Callable[[Any], bool]
    failures: dict[str, Exception]

    def promote(self) -> None:
        self.failures = type_promotion.promote(self.module, self.is_converted)

    def drop_metadata_checks(self) -> None:
        for node in self.module.graph.find_nodes(op="call_function", target=_METADATA_CHECK):
            self.module.graph.erase_node(node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A change of a graph in place, and its contract.

    Attributes:
        run: The change.
        requires: What must be true of the graph before it.
        ensures: What is true afterwards.
        invalidates: What may no longer be true.
    """

    run: Callable[[_Copy], object]
    requires: frozenset[Condition] = frozenset({Condition.VALUED, Condition.ORDERED})
    ensures: frozenset[Condition] = frozenset()
    invalidates: frozenset[Condition] = frozenset({Condition.READ})


PASSES: dict[str, Pass] = {
    "make tensors of numbers": Pass(run=lambda copy: type_promotion.make_tensors_of_numbers(copy.module.graph)),
    "promote types": Pass(run=_Copy.promote),
    "gather windows": Pass(run=lambda copy: storage_windows.gather_windows(copy.module)),
    "drop metadata checks": Pass(run=_Copy.drop_metadata_checks, ensures=frozenset({Condition.SETTLED})),
    "multiply by group": Pass(run=lambda copy: attention.multiply_by_group(copy.module.graph)),
    "compute once": Pass(run=lambda copy: compute_once(copy.module.graph)),
    "drop what nobody reads": Pass(
        run=lambda copy: copy.module.graph.eliminate_dead_code(), ensures=frozenset({Condition.READ}), invalidates=frozenset()
    ),
}
"""The passes, in order."""


class LoweringError(Exception):
    """A graph does not have a condition that a pass requires or ensures."""


def prepared(module: torch.fx.GraphModule, is_converted: Callable[[Any], bool]) -> tuple[torch.fx.GraphModule, dict[str, Exception]]:
    """Prepare a copy of an ATen graph for the partitioner; PyTorch can still run the original.

    Returns it with what was raised, by node, where implicit conversions of element types are not known.
    """
    copy = _Copy(module=torch.fx.GraphModule(module, _copy_of(module.graph)), is_converted=is_converted, failures={})
    established = frozenset({Condition.VALUED, Condition.ORDERED})  # AOTAutograd's graphs are
    for name, entry in PASSES.items():
        if missing := entry.requires - established:
            raise LoweringError(f"no earlier pass ensures what the pass '{name}' requires: {_text(missing)}")
        entry.run(copy)
        established = (established - entry.invalidates) | entry.ensures
    if broken := [condition for condition in established if not condition.holds(copy.module.graph)]:
        raise LoweringError(f"the lowered graph breaks what its passes ensure: {_text(broken)}")
    return copy.module, copy.failures


def _text(conditions: Any) -> str:
    return " and ".join(sorted(condition.value for condition in conditions))


def _copy_of(graph: torch.fx.Graph) -> torch.fx.Graph:
    copied = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    output = copied.graph_copy(graph, mapping)
    copied.output(output)
    for source, copy in mapping.items():
        copy.meta = dict(source.meta)
    return copied


def _has_values(graph: torch.fx.Graph) -> bool:
    return all("val" in node.meta or not node.users or node.op == "get_attr" for node in graph.nodes)


def _is_ordered(graph: torch.fx.Graph) -> bool:
    earlier: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if not earlier.issuperset(node.all_input_nodes):
            return False
        earlier.add(node)
    return True


def _is_read(graph: torch.fx.Graph) -> bool:
    return all(node.users or node.op in ("placeholder", "output") or node.is_impure() for node in graph.nodes)


_CHECKS: dict[Condition, Callable[[torch.fx.Graph], bool]] = {
    Condition.VALUED: _has_values,
    Condition.ORDERED: _is_ordered,
    Condition.SETTLED: lambda graph: not graph.find_nodes(op="call_function", target=_METADATA_CHECK),
    Condition.READ: _is_read,
}


_SEPARATE_TAGS = frozenset({torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


def compute_once(graph: torch.fx.Graph) -> None:
    """Let one node compute what several nodes of a functional graph do; a graph with an operator that writes stays as it is.

    Decompositions and type promotion repeat themselves: each layer of a model with a key-value cache checks the same position, and each
    residual converts the same mask. ONNX Runtime removes repeats within a session, but not what leaves one: every repeat is bound as an
    output of its own. AOTAutograd removes them before it partitions a training graph, and from inference graphs not at all.

    The first of several equal nodes stays, with its line and its module. These stay all: random draws, what writes or has no schema, views
    (their equal results make what reads them equal, and they move no data), constants (each session folds its own), and what the graph
    returns, since tensors that a program returns are separate.
    """
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
