"""ONNX Runtime's values inside a partition, from a session beside the one that runs, with every value as an output.

The model is the one that runs, with more outputs and without ONNX Runtime's rewrites. The rewrites would have to keep every requested
value, and some do not: MatMul_BatchNormalization_Fusion of version 1.31 returns scaled values instead. The effect of the rewrites
shows in the outputs of the session that really runs, which are compared separately. Values are requested in groups of bounded size.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import onnxruntime
import torch
import torch.fx

from ortlens.backend.basis import provenance
from ortlens.backend.basis.node_provenance import with_outputs
from ortlens.backend.observed import WeightChanged
from ortlens.lens.observing.optimizers import LEVELS
from ortlens.lens.verify.lockstep import maker_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import onnx

    from ortlens.backend.observed import ObservedPartition

GROUP_BYTES = 1 << 30  # bytes of the values of one run; a partition with more is run several times


class InnerValues:
    """ONNX Runtime's values of one call of a partition. A group runs when its first value is requested; each value is returned once."""

    def __init__(
        self, partition: ObservedPartition, args: Sequence[Any], whole: Callable[[], ObservedPartition | None] = lambda: None
    ) -> None:
        """Find the values that the model holds; those that it lost are taken from the partition that `whole` makes if needed."""
        self._args = args
        self._names: dict[torch.fx.Node, str] = {}
        self.holders: dict[torch.fx.Node, ObservedPartition] = {}  # those whose models hold the values
        self._values: dict[torch.fx.Node, Any] = {}
        self._failures: dict[torch.fx.Node, str] = {}
        calls = [node for node in partition.part.module.graph.nodes if node.op == "call_function"]
        groups = self._find(partition, calls)
        lost = [node for node in calls if node not in self._names]
        if any(isinstance(node.meta.get("val"), torch.Tensor) for node in lost) and (other := whole()) is not None:
            groups += self._find(other, lost)
        self._group_of = {node: group for group in groups for node in group}

    def _find(self, partition: ObservedPartition, nodes: Sequence[torch.fx.Node]) -> list[list[torch.fx.Node]]:
        """Find which of the nodes have a value in the model of a partition, in groups to run together."""
        values = {name for node in partition.model.graph.node for name in node.output if name}
        values |= {tensor.name for tensor in partition.model.graph.initializer}
        singles = [node for node in nodes if is_single(node.meta.get("val"))]
        makers = {node: maker_of(node) for node in singles}
        # An item of an operator's results has its own name or, more likely, that of the operator and a number; see `conversion.converter`.
        names = {node: (*(() if place is None else (f"{maker.name}.{place}",)), node.name) for node, (maker, place) in makers.items()}
        found = {node: name for node in singles if (name := next(filter(values.__contains__, names[node]), None))}
        self._names |= found
        self.holders |= dict.fromkeys(found, partition)
        return list(_groups(found))

    def take(self, node: torch.fx.Node) -> Any:
        """Take the value of a node, in the order of the graph; None if no model holds it or the run failed (see `why_not`)."""
        if node in self._group_of and node not in self._values and node not in self._failures:
            self._run(self._group_of[node])
        return self._values.pop(node, None)

    def name(self, node: torch.fx.Node) -> str | None:
        """Name of the value in the model that computed it; None if there is none, or the run failed."""
        return None if node in self._failures else self._names.get(node)

    def why_not(self, node: torch.fx.Node) -> str:
        """Say why there is no value of a node."""
        return self._failures.get(node, "not in the model: rewritten during conversion")

    def _run(self, group: Sequence[torch.fx.Node]) -> None:
        """Run for the values of a group; if that fails, with rewrites, which some models need to run; then without the value at fault."""
        level: str | None
        wanted, level = list(group), "disable"
        while wanted and (error := self._attempt(wanted, level)) is not None:
            if level is None:
                self._leave_out(wanted, error)
            level = "disable" if level is None else None

    def _attempt(self, wanted: Sequence[torch.fx.Node], level: str | None) -> Exception | None:
        try:
            self._values |= self._results(wanted, level)
        except Exception as error:  # noqa: BLE001 - recorded as the reason why these values were not compared
            return error
        return None

    def _results(self, wanted: Sequence[torch.fx.Node], level: str | None) -> dict[torch.fx.Node, Any]:
        partition = self.holders[wanted[0]]
        model = with_outputs(partition.model, [self._names[node] for node in wanted])
        session = session_with(partition, self._args, level=level, model=model)
        made = partition.uncounted(session, values=[(self._names[node], node) for node in wanted])(*self._args)
        # The model may compute a value in a wider type than PyTorch.
        return {
            node: value.to(node.meta["val"].dtype) if isinstance(value, torch.Tensor) else value
            for node, value in zip(wanted, made, strict=True)
        }

    def _leave_out(self, wanted: list[torch.fx.Node], error: Exception) -> None:
        """Note the failure of the values that an error names, or of all, and remove them from those that are wanted."""
        is_stale = isinstance(error, WeightChanged)
        reason = str(error) if is_stale else f"ONNX Runtime does not return it: {type(error).__name__}: {error}"
        named = [node for node in wanted if re.search(rf"(?<![\w.]){re.escape(self._names[node])}(?![\w.]*\w)", str(error))]
        for node in named if 0 < len(named) < len(wanted) else list(wanted):
            self._failures[node] = reason[:300]
            wanted.remove(node)


def session_with(
    partition: ObservedPartition,
    args: Sequence[Any],
    *,
    level: str | None = None,
    without: Sequence[str] = (),
    model: onnx.ModelProto | None = None,
) -> onnxruntime.InferenceSession:
    """Create a session beside the one that runs, with its level and model unless others are given; LookupError if PyTorch runs it."""

    @contextlib.contextmanager
    def at_level(options: onnxruntime.SessionOptions) -> Iterator[None]:
        before = options.graph_optimization_level
        options.graph_optimization_level = before if level is None else getattr(onnxruntime.GraphOptimizationLevel, LEVELS[level])
        try:
            yield
        finally:
            options.graph_optimization_level = before

    twin = partition.twin(args, at_level, model=model, without=without)
    if twin is None:
        raise LookupError("no session runs this partition")
    return twin.session


def is_single(value: object) -> bool:
    """Tell whether a fake value is one tensor or number, not a tuple."""
    return isinstance(value, (torch.Tensor, torch.SymInt, torch.SymBool, bool, int))


def _groups(found: dict[torch.fx.Node, str]) -> Iterator[list[torch.fx.Node]]:
    group: list[torch.fx.Node] = []
    total = 0
    for node in found:
        size = provenance.tensor_bytes(node.meta["val"])
        if group and total + size > GROUP_BYTES:
            yield group
            group, total = [], 0
        group.append(node)
        total += size
    if group:
        yield group
