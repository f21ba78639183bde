"""ONNX Runtime's values inside a partition, from a session beside the one that runs, with every value as an output.

The model is the one that runs, with more outputs and without ONNX Runtime's rewrites. The rewrites would have to keep every requested
value, and some do not: MatMul_BatchNormalization_Fusion of version 1.31 returns scaled values instead. The effect of the rewrites
shows in the outputs of the session that really runs, which are compared separately. Values are requested in groups of bounded size.
"""

from __future__ import annotations

import contextlib
import operator
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
import onnxruntime
import torch
import torch.fx

from ortlens.backend.conversion.upcasting import narrow_dtypes, wide_value
from ortlens.backend.lowering import provenance
from ortlens.backend.runtime.binding import Output
from ortlens.lens.shadow_sessions import WeightChanged, shadow_session_of, uncounted

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from ortlens.backend.runtime.runner import PartitionRunner

Level: TypeAlias = onnxruntime.GraphOptimizationLevel

_OFF: Level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

GROUP_BYTES = 1 << 30
"""Bytes of the values of one run; a partition with more is run several times."""


def makers(node: torch.fx.Node) -> tuple[torch.fx.Node, int | None]:
    """Return the node that computes a value, and the place of its output; None for an operator with one output."""
    if node.target is operator.getitem and isinstance(place := node.args[1], int):
        return node.all_input_nodes[0], place
    return node, None


def names_of(node: torch.fx.Node) -> tuple[str, ...]:
    """Return possible names of a node's value in the model, the likeliest first; see `conversion.converter`."""
    maker, place = makers(node)
    return (node.name,) if place is None else (f"{maker.name}.{place}", node.name)


class InnerValues:
    """ONNX Runtime's values of one call of a partition. A group runs when its first value is requested; each value is returned once."""

    def __init__(
        self,
        runner: PartitionRunner,
        args: Sequence[Any],
        *,
        only_beside: Container[torch.fx.Node] = (),
    ) -> None:
        """Find the values that the model holds; those of the nodes `only_beside` are not needed."""
        self._runner, self._args = runner, args
        held = {name for node in runner.model.graph.node for name in node.output if name}
        held |= {tensor.name for tensor in runner.model.graph.initializer}
        calls = [node for node in runner.partition.module.graph.nodes if node.op == "call_function" and is_single(node.meta.get("val"))]
        wanted = [node for node in calls if node not in only_beside]
        found = {node: name for node in wanted if (name := next(filter(held.__contains__, names_of(node)), None))}
        self._groups = list(_groups(found))
        self._values: dict[torch.fx.Node, Any] = {}
        self.names: dict[torch.fx.Node, str] = found
        self.failures: dict[torch.fx.Node, str] = {}

    def take(self, node: torch.fx.Node) -> Any:
        """Take the value of a node, in the order of the graph; None if the model does not hold it or the run failed (see `failures`)."""
        if node not in self.names or node in self.failures:
            return None
        if node not in self._values:
            self._run(next(group for group in self._groups if node in group))
        return self._values.pop(node, None)

    def _run(self, group: Sequence[torch.fx.Node]) -> None:
        self._values = {}
        wanted, level = list(group), _OFF
        while wanted and not self._values:
            level = self._attempt(wanted, level)

    def _attempt(self, wanted: list[torch.fx.Node], level: Level | None) -> Level | None:
        """Run for these values; if that fails, return the level for the next attempt."""
        try:
            self._values = self._results(wanted, level)
        except Exception as error:  # noqa: BLE001 - recorded as the reason why these values were not compared
            return self._tried_otherwise(error, wanted, level)
        return level

    def _results(self, wanted: Sequence[torch.fx.Node], level: Level | None) -> dict[torch.fx.Node, Any]:
        model = _with_outputs(self._runner.model, [self.names[node] for node in wanted])
        session = session_with(self._runner, self._args, level=level, model=model)
        narrow = narrow_dtypes(self._runner.factory.options.upcast)
        outputs = [Output(name=self.names[node], meta=wide_value(node.meta["val"], narrow)) for node in wanted]
        made = uncounted(self._runner, session, outputs=outputs)(*self._args)
        return {node: _as_in_pytorch(value, node) for node, value in zip(wanted, made, strict=True)}

    def _tried_otherwise(self, error: Exception, wanted: list[torch.fx.Node], level: Level | None) -> Level | None:
        """Decide the next attempt: first with rewrites, which some models need to run; then without the value that the error names."""
        if level is not None:
            return None
        told = str(error) if isinstance(error, WeightChanged) else f"ONNX Runtime does not return it: {type(error).__name__}: {error}"
        reason = told[:300]
        named = [node for node in wanted if re.search(rf"(?<![\w.]){re.escape(self.names[node])}(?![\w.]*\w)", str(error))]
        for node in named if 0 < len(named) < len(wanted) else list(wanted):
            self.failures[node] = reason
            wanted.remove(node)
        return _OFF


def session_with(
    runner: PartitionRunner,
    args: Sequence[Any],
    *,
    level: Level | None = None,
    without: Sequence[str] = (),
    model: onnx.ModelProto | None = None,
) -> onnxruntime.InferenceSession:
    """Create a session beside the one that runs, with its level and model unless others are given.

    Raises LookupError while PyTorch runs the partition.
    """
    twin = shadow_session_of(runner, args, _at_level(level), model=model, without=without)
    if twin is None:
        raise LookupError("no session runs this partition")
    return twin.session


def _as_in_pytorch(value: Any, node: torch.fx.Node) -> Any:
    """Convert a value to PyTorch's type: the model may compute it in a wider one."""
    return value.to(node.meta["val"].dtype) if isinstance(value, torch.Tensor) else value


def _at_level(
    level: Level | None,
) -> Callable[[onnxruntime.SessionOptions], contextlib.AbstractContextManager[object]]:
    @contextlib.contextmanager
    def arranged(options: onnxruntime.SessionOptions) -> Iterator[None]:
        before = options.graph_optimization_level
        options.graph_optimization_level = before if level is None else level
        try:
            yield
        finally:
            options.graph_optimization_level = before

    return arranged


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


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Copy a model with exactly these outputs, in this order; ONNX Runtime infers their types."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    typed = {value.name: value for value in model.graph.output}
    del made.graph.output[:]
    for name in dict.fromkeys(names):
        made.graph.output.append(typed.get(name) or onnx.ValueInfoProto(name=name))
    return made
