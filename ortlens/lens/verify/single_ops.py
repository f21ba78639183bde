"""Converts each operator by itself and runs it on PyTorch's inputs, without the errors of others.

Each model holds one FX node and is converted like a partition, without the later rewrites. Nodes with the same operator,
arguments, dtypes and sizes share a model.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import map_aggregate

from ortlens.lens.verify.compare_values import Tolerances, ValueVerdict, compare, judge
from ortlens.lens.verify.excuses import LEAVES_UNWRITTEN, OF_NODES, UNINITIALISED, excuse, is_at_fault
from ortlens.lens.verify.float64 import Missing, call_in_double, widened

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from ortlens.backend.observed import ObservedGraph, ObservedPartition
    from ortlens.lens.verify.lockstep import NodeStep


class SingleOps:
    """Converts and runs operators one by one."""

    def __init__(self, graph: ObservedGraph) -> None:
        """Prepare to convert operators like the partitions of a graph."""
        self._graph = graph
        self._made: dict[Hashable, ObservedPartition | Missing] = {}

    def verdicts(self, step: NodeStep, tolerances: Tolerances) -> Iterator[ValueVerdict]:
        """Check the operator of one node, not a selection of its outputs: one verdict per output that is read."""
        node = step.node
        if node.target is operator.getitem and node.all_input_nodes[0].op == "call_function":
            return
        items = _items(node)
        made = self._results(step, items)
        double = call_in_double(node, step.read)
        for item, result in zip(items, made, strict=True):
            name = node.name if item is None else f"{node.name}.{item}"
            verdict = ValueVerdict(node=node.name, scope="op", place=step.place, onnx_value=name, line_of=node)
            alone = step._replace(item=item, ort=result, eager=_item(step.eager, item), double=_item(double, item), read_ort=step.read)
            if node.target in LEAVES_UNWRITTEN:
                verdict.note = UNINITIALISED
            else:
                judge(verdict, alone.ort, alone.eager, alone.double, tolerances)
            if verdict.ok is False:
                excuse(verdict, alone, OF_NODES)
            is_at_fault(verdict, alone)
            yield verdict

    def is_right_on_copies(self, step: NodeStep, tolerances: Tolerances) -> bool:
        """Tell whether a node that is wrong by itself is right on plain dense copies of its inputs, so that their memory is the cause."""
        read = step.read
        if all(_is_plain(read(node)) for node in step.node.all_input_nodes):
            return False

        def copied(node: torch.fx.Node) -> Any:
            value = read(node)
            plain = isinstance(value, torch.Tensor) and not _is_plain(value)
            return value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) if plain else value

        return all(verdict.ok for verdict in self.verdicts(step._replace(read=copied), tolerances))

    def rounds_only(self, step: NodeStep) -> bool:
        """Tell whether the ONNX function of a node is right in double precision, and only rounds; False also if it does not run so."""
        node = step.node
        values = {source: widened(step.read(source)) for source in node.all_input_nodes}
        floats = [value.dtype for value in map(step.read, values) if isinstance(value, torch.Tensor) and value.dtype.is_floating_point]
        if not floats or torch.float64 in floats:
            return False
        expected = call_in_double(node, values.__getitem__)
        if isinstance(expected, Missing):
            return False
        items = _items(node)
        try:
            partition = self._graph.alone(_part_of(node, items, values, expected), node.name)
            made = partition.run(*values.values())
        except Exception:  # noqa: BLE001 - then nothing is known
            return False
        pairs = [(ours, _item(expected, item)) for ours, item in zip(made, items, strict=True)]
        strict = Tolerances().of(torch.float64)
        return all(ours.shape == theirs.shape and compare(ours, theirs, None, strict).agrees for ours, theirs in pairs)

    def _results(self, step: NodeStep, items: Sequence[int | None]) -> Sequence[Any]:
        key = _key(step.node, items)
        try:
            if key not in self._made:
                self._made[key] = self._graph.alone(_part_of(step.node, items), step.node.name)
            partition = self._made[key]
            if not isinstance(partition, Missing):
                return partition.run(*(step.read(source) for source in step.node.all_input_nodes if source.op != "get_attr"))
            failure = partition
        except Exception as error:  # noqa: BLE001 - recorded as the reason why this operator was not checked
            failure = Missing(f"it could not be run by itself: {type(error).__name__}: {error}"[:300])
            self._made.setdefault(key, failure)
        return [failure] * len(items)


def _items(node: torch.fx.Node) -> Sequence[int | None]:
    """List the outputs of an operator that are read; None for an operator with one."""
    if not isinstance(node.meta.get("val"), (tuple, list)):
        return [None]
    return sorted({int(user.args[1]) for user in node.users if user.target is operator.getitem})  # type: ignore[arg-type]  # an int there


def _item(value: Any, item: int | None) -> Any:
    return value if item is None or isinstance(value, Missing) else value[item]


def _part_of(
    node: torch.fx.Node, items: Sequence[int | None], values: Mapping[torch.fx.Node, Any] | None = None, expected: Any = None
) -> torch.fx.GraphModule:
    """Write the program of one operator: as in the graph, or of `values` of its inputs in double precision, which give `expected`."""
    graph, owner = torch.fx.Graph(), node.graph.owning_module if values is None else None
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for source in node.all_input_nodes:
        is_constant = values is None and source.op == "get_attr"
        copies[source] = graph.node_copy(source) if is_constant else graph.placeholder(source.name)
        copies[source].meta = dict(source.meta) if values is None else {**source.meta, "val": values[source]}
    made = graph.node_copy(node, copies.__getitem__)
    if values is not None:
        made.args, made.kwargs = map_aggregate((made.args, made.kwargs), widened)
        made.meta = {**node.meta, "val": expected}
    outputs = []
    for item in items:
        chosen = made if item is None else graph.call_function(operator.getitem, (made, item))
        if item is not None:
            chosen.meta["val"] = made.meta["val"][item]
        outputs.append(chosen)
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(torch.nn.Module() if owner is None else owner, graph)


def _is_plain(value: Any) -> bool:
    """Tell whether a value is dense memory from its beginning on, read as it is; or no tensor."""
    if not isinstance(value, torch.Tensor):
        return True
    return value.is_contiguous() and value.storage_offset() == 0 and not value.is_conj() and not value.is_neg()


def _key(node: torch.fx.Node, items: Sequence[int | None]) -> Hashable:
    """Return the key of an operator's model: nodes with the same key share it."""

    def described(source: torch.fx.Node) -> str:
        value = source.meta.get("val")
        if source.op == "get_attr" or not isinstance(value, torch.Tensor):
            return f"{source.op}:{source.target if source.op == 'get_attr' else type(value).__name__}"
        return f"{value.dtype}{list(map(str, value.shape))}{list(map(str, value.stride()))}{value.device}"

    places = {source: f"#{place}" for place, source in enumerate(node.all_input_nodes)}
    args = torch.fx.map_arg((node.args, node.kwargs), places.__getitem__)
    owner = id(node.graph.owning_module) if any(source.op == "get_attr" for source in node.all_input_nodes) else None
    return (node.target, repr(args), tuple(map(described, node.all_input_nodes)), tuple(items), owner)
