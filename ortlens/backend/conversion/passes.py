"""Optimisation passes: what each requires and ensures, and how a list of them runs without harm to the model.

`run_passes` works on a copy. A pass that fails leaves the original model as it was, and the error names the pass.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir
import onnx_ir.passes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Condition(enum.Enum):
    """What can be true of a model between two passes; `holds` checks it."""

    INLINED = "no node calls a local function"
    NO_UNUSED_NODES = "every node computes a value that is used"
    CONSTANTS_LIFTED = "constants are initializers, not nodes"
    UNIQUE_NAMES = "every value has a name of its own"

    def holds(self, model: ir.Model) -> bool:
        """Tell whether the condition is true of the model's main graph."""
        return _CHECKS[self](model)


class OptimizationError(Exception):
    """An optimisation pass failed; the cause is chained.

    Attributes:
        pass_name: Name of the pass.
    """

    def __init__(self, pass_name: str, reason: object) -> None:
        """Name the pass, and why it failed: the exception that it raised, or what it lacked."""
        detail = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else reason
        super().__init__(f"the optimisation pass {pass_name} failed: {detail}")
        self.pass_name = pass_name


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationPass:
    """A pass over a model and its contract.

    Attributes:
        name: Appears in the error when the pass fails.
        make: Returns the pass, which declares itself whether it works in place (`PassBase.in_place`).
        requires: What must be true of the model before the pass.
        ensures: What is true of it afterwards.
        invalidates: What may no longer be true of it afterwards.
    """

    name: str
    make: Callable[[], ir.passes.PassBase]
    requires: frozenset[Condition] = frozenset()
    ensures: frozenset[Condition] = frozenset()
    invalidates: frozenset[Condition] = frozenset()


class InPlace(ir.passes.InPlacePass):
    """A function that changes a model in place, as a pass."""

    def __init__(self, function: Callable[[ir.Model], object]) -> None:
        """Wrap a function that changes the model it takes; what it returns is ignored."""
        super().__init__()
        self._function = function

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Apply the function."""
        self._function(model)
        return ir.passes.PassResult(model, modified=True)


def run_passes(model: ir.Model, passes: Sequence[OptimizationPass]) -> ir.Model:
    """Run passes in order on a copy of a model, which shares its tensors.

    Raise `OptimizationError` if a pass fails, or no earlier pass ensures what it requires.
    """
    result = model.clone()
    established: frozenset[Condition] = frozenset()
    for entry in passes:
        missing = entry.requires - established
        if missing:
            raise OptimizationError(entry.name, "no earlier pass ensures that " + " and ".join(sorted(c.value for c in missing)))
        try:
            result = entry.make()(result).model
        except Exception as error:
            raise OptimizationError(entry.name, error) from error
        established = (established - entry.invalidates) | entry.ensures
    return result


def _uses_every_node(model: ir.Model) -> bool:
    return all(any(value.uses() or value.is_graph_output() for value in node.outputs) for node in model.graph)


def _names_every_value(model: ir.Model) -> bool:
    names = [value.name for node in model.graph for value in node.outputs if value.uses() or value.is_graph_output()]
    names += [value.name for value in model.graph.inputs]
    return None not in names and len(names) == len(set(names))


_CHECKS: dict[Condition, Callable[[ir.Model], bool]] = {
    Condition.INLINED: lambda model: not any(node.op_identifier() in model.functions for node in model.graph),
    Condition.NO_UNUSED_NODES: _uses_every_node,
    Condition.CONSTANTS_LIFTED: lambda model: not any(node.op_type == "Constant" for node in model.graph),
    Condition.UNIQUE_NAMES: _names_every_value,
}
