"""What happens to an ATen graph before it is partitioned: one ordered list of passes, with what each requires and ensures.

The conditions are checked in every compilation, after the last pass: one walk over the graph each, which takes less than a hundredth of the
time of the passes. A graph that breaks one stays in PyTorch, as after any failure to compile it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.backend.lowering import common_values, grouped_products, size_numbers, storage_windows, type_promotion

if TYPE_CHECKING:
    from collections.abc import Callable

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
    "make tensors of numbers": Pass(run=lambda copy: size_numbers.make_tensors_of_numbers(copy.module.graph)),
    "promote types": Pass(run=_Copy.promote),
    "gather windows": Pass(run=lambda copy: storage_windows.gather_windows(copy.module)),
    "drop metadata checks": Pass(run=_Copy.drop_metadata_checks, ensures=frozenset({Condition.SETTLED})),
    "multiply by group": Pass(run=lambda copy: grouped_products.multiply_by_group(copy.module.graph)),
    "compute once": Pass(run=lambda copy: common_values.compute_once(copy.module.graph)),
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
