"""Runs a partition's FX graph node by node in PyTorch, as it is and in double precision.

Both runs free a value after its last use, so they need the memory of the model's own activations once and in double
precision. Weights are converted when they are read, and the copies are freed again.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ortlens.lens.verify.float64 import FOR_ANY_LAYOUT, Missing, call_in_double

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ortlens.lens.verify.excuses import NonfiniteOrigin

_NOT_ASKED = Missing("not asked for")


class NodeRaised(Exception):  # noqa: N818 - the error is what the node raised
    """PyTorch raises at a node."""

    def __init__(self, node: torch.fx.Node, error: Exception) -> None:
        """Keep the node and the error."""
        super().__init__(f"{node.name} raises {type(error).__name__}: {error}"[:300])
        self.node, self.error = node, error


class NodeStep(NamedTuple):
    """One node and its values."""

    node: torch.fx.Node
    maker: torch.fx.Node  # the operator that computes it: another node where this one selects one of several results
    item: int | None  # which of its results; None for an operator with one
    place: int  # of the node in its graph
    eager: Any  # PyTorch's result for PyTorch's inputs
    double: Any  # the result in double precision, or why there is none
    ort: Any  # ONNX Runtime's value; if unknown, PyTorch's result for ONNX Runtime's inputs
    read: Callable[[torch.fx.Node], Any]  # returns PyTorch's value of a node that this one reads
    read_ort: Callable[[torch.fx.Node], Any]  # returns ONNX Runtime's value
    origins: Sequence[NonfiniteOrigin] = ()  # where NaN and infinities come from so far

    @property
    def origin(self) -> str | None:
        """Name the first node from which they come in PyTorch as well."""
        return next((origin.node.name for origin in self.origins if origin.sides != "ort"), None)

    def local(self) -> Any:
        """Compute PyTorch's result for ONNX Runtime's inputs; a `Missing` if PyTorch fails on these."""
        return self.eager if self.read_ort is self.read else call_on_foreign(self.node, self.read_ort)


def maker_of(node: torch.fx.Node) -> tuple[torch.fx.Node, int | None]:
    """Return the node that computes a value, and the place of its output; None for an operator with one output."""
    if node.target is operator.getitem and isinstance(place := node.args[1], int):
        return node.all_input_nodes[0], place
    return node, None


def steps(
    module: torch.fx.GraphModule, args: Sequence[Any], supply: Callable[[torch.fx.Node], Any] | None = None, *, double: bool = True
) -> Iterator[NodeStep]:
    """Run a partition node by node, and yield each call of an operator; `args` are not written to.

    The inputs of a step can be read until the next one is requested. `supply` returns ONNX Runtime's value of a node, None if unknown.
    Raises NodeRaised where PyTorch raises.
    """
    eager: dict[torch.fx.Node, Any] = {}
    wide: dict[torch.fx.Node, Any] = {}
    ort: dict[torch.fx.Node, Any] = {}

    def read_double(source: torch.fx.Node) -> Any:  # the result of an operator, or a weight or input of the partition
        return wide[source] if source in wide else eager[source]

    given, dying = iter(args), _last_reads(module.graph)
    for place, node in enumerate(module.graph.nodes):
        if node.op == "placeholder":
            eager[node] = ort[node] = next(given)
        elif node.op == "get_attr":
            eager[node] = ort[node] = operator.attrgetter(str(node.target))(module)
        elif node.op == "call_function":
            try:
                eager[node] = call(node, eager.__getitem__)
            except Exception as error:
                raise NodeRaised(node, error) from error
            missing = next((wide[source] for source in node.all_input_nodes if isinstance(wide.get(source), Missing)), None)
            wide[node] = (missing or call_in_double(node, read_double)) if double else _NOT_ASKED
            known = _NOT_ASKED if supply is None else supply(node)
            ort[node] = call_on_foreign(node, ort.__getitem__) if known is None else known
            yield NodeStep(node, *maker_of(node), place, eager[node], wide[node], ort[node], eager.__getitem__, ort.__getitem__)
        for dead in dying[node]:
            for values in (eager, wide, ort):
                values.pop(dead, None)


def _last_reads(graph: torch.fx.Graph) -> Mapping[torch.fx.Node, list[torch.fx.Node]]:
    """Map nodes to those that nothing reads after them."""
    dying: dict[torch.fx.Node, list[torch.fx.Node]] = {node: [] for node in graph.nodes}
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        # The inputs of an operator with several outputs are kept until its last output is read, to judge each output by them.
        readers = [item for user in node.users for item in (user, *(item for item in user.users if item.target is operator.getitem))]
        dying[max(readers, key=places.__getitem__, default=node)].append(node)
    return dying


def call_on_foreign(node: torch.fx.Node, read: Callable[[torch.fx.Node], Any]) -> Any:
    """Run one node on ONNX Runtime's values; a `Missing` if PyTorch fails, and on a GPU, which a wrong index makes unusable."""
    values = [read(source) for source in node.all_input_nodes]
    missing = next((value for value in values if isinstance(value, Missing)), None)
    if missing is not None:
        return missing
    if any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in values):
        return Missing("not run on values of another device")
    try:
        return call(node, read)
    except Exception as error:  # noqa: BLE001 - any exception of the operator on foreign values
        return Missing(f"PyTorch rejects ONNX Runtime's values here ({type(error).__name__})")


def call(node: torch.fx.Node, read: Callable[[torch.fx.Node], Any], args: tuple[Any, ...] | None = None) -> Any:
    """Run one node on the values that `read` returns, with its own arguments unless others are given."""
    target: Any = FOR_ANY_LAYOUT.get(node.target, node.target)
    given, named = torch.fx.map_arg((node.args if args is None else args, node.kwargs), read)
    return target(*given, **named)
