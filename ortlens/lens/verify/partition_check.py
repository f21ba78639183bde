"""Checks one call of a partition: every value inside it, and the outputs of the session that really runs.

Both sides get the same inputs, so that an error in one partition does not carry over to the next. Inside a partition it does: to find
out whether a value is wrong or only computed from wrong values, its operator is run in PyTorch on ONNX Runtime's inputs.

ONNX Runtime's values inside come from a session beside the one that runs. The model is the same, with more outputs and without ONNX
Runtime's rewrites. The rewrites would have to keep every requested value, and some do not: MatMul_BatchNormalization_Fusion of version
1.31 returns scaled values instead. The effect of the rewrites shows in the outputs of the session that really runs, which are compared
separately. Values are requested in groups of bounded size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnxruntime
import torch

from ortlens._process import replaced
from ortlens.backend.basis import provenance
from ortlens.backend.basis.node_provenance import with_outputs
from ortlens.backend.observed import WeightChanged
from ortlens.lens.observing.optimizers import LEVELS
from ortlens.lens.verify.compare_values import ValueVerdict, judge, verdict_on
from ortlens.lens.verify.excuses import (
    CARRIED_ON,
    LEAVES_UNWRITTEN,
    NONFINITE,
    OF_NODES,
    TIES,
    UNINITIALISED,
    NonfiniteOrigin,
    excuse,
    has_infinite,
    has_nan,
    is_at_fault,
    is_finite,
    origin_of,
)
from ortlens.lens.verify.lockstep import NodeStep, maker_of, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import onnx

    from ortlens.backend.observed import ObservedPartition
    from ortlens.lens.observing.time_budget import TimeBudget
    from ortlens.lens.verify.compare_values import Tolerances
    from ortlens.trace import records as r


@dataclass(slots=True, kw_only=True)
class PartitionCheck:
    """The check of one call of a partition."""

    partition: ObservedPartition
    args: Sequence[Any]  # its inputs; they may change after the call
    tolerances: Tolerances
    # makes the partition as it was converted, for values that the model that runs does not hold; returns None if it cannot
    whole: Callable[[], ObservedPartition | None]
    budget: TimeBudget  # when it is over, the rest is left out, which its verdicts say
    verdicts: list[ValueVerdict] = field(default_factory=list)  # one per value and per output, in the order of the graph
    origins: list[NonfiniteOrigin] = field(default_factory=list)  # where NaN or infinities come from
    is_whole: bool = True  # whether the time was enough for all of it
    # the first value that is wrong by itself, and outputs that are wrong although the values inside are right, with their steps
    suspects: list[tuple[ValueVerdict, NodeStep]] = field(default_factory=list)
    open_reason: str = ""  # why a value that differs has no verdict
    _unwritten: set[torch.fx.Node] = field(default_factory=set)
    _returned: dict[torch.fx.Node, tuple[ValueVerdict, NodeStep]] = field(default_factory=dict)

    def run(self, outputs: Sequence[Any], step_done: Callable[[int], None]) -> None:
        """Check the values, then `outputs`, those of the session that really runs."""
        module = self.partition.part.module
        (returned,) = (node.all_input_nodes for node in module.graph.find_nodes(op="output"))
        inner = InnerValues(self.partition, self.args, self.whole)
        left = {node: place for place, node in enumerate(module.graph.nodes) if node.op == "call_function"}
        for made in steps(module, self.args, inner.take):
            if self.budget.is_over():
                break
            step = made._replace(origins=self.origins)
            step_done(1)
            del left[step.node]
            if step.node.target in LEAVES_UNWRITTEN or not self._unwritten.isdisjoint(step.node.all_input_nodes):
                self._unwritten.add(step.node)
            elif (origin := origin_of(step)) is not None:
                self.origins.append(origin)
            if is_single(step.node.meta.get("val")):
                verdict = self._value(step, inner)
                if step.node in returned:
                    self._returned[step.node] = verdict, step
        self.is_whole = not left
        note = f"not compared: {self.budget.over}"
        late: list[tuple[torch.fx.Node, r.NumericScope]] = [(node, "output") for node in left.keys() & set(returned)]
        late += [(node, "value") for node in left if isinstance(node.meta.get("val"), torch.Tensor)]
        self.verdicts += [verdict_on(node, scope, left[node], inner.name(node), note=note, left_out=True) for node, scope in late]
        for node, output in zip(returned, outputs, strict=True):
            if node in self._returned:
                self._output(*self._returned[node], output)
        self.verdicts.sort(key=lambda verdict: (verdict.place, verdict.scope != "value"))

    def _value(self, step: NodeStep, inner: InnerValues) -> ValueVerdict:
        name = inner.name(step.node)
        verdict = verdict_on(step.node, "value", step.place, name)
        if step.maker.target in LEAVES_UNWRITTEN:
            verdict.note = UNINITIALISED
        elif name is None:
            verdict.note = inner.why_not(step.node)
        else:
            judge(verdict, step.ort, step.eager, step.double, self.tolerances)
            self._reconsider(verdict, step)
            if inner.holders.get(step.node) != self.partition:
                verdict.add("present before optimisation, then fused away")
        origin = next((found for found in self.origins if found.node is step.maker), None)
        if origin is not None and not (is_finite(step.eager) and is_finite(step.ort)):
            verdict.nonfinite = "origin"
            verdict.add(origin.note)
        if name is not None or isinstance(step.eager, torch.Tensor):  # numbers that the model does not hold are not values of the model
            self.verdicts.append(verdict)
        return verdict

    def _reconsider(self, verdict: ValueVerdict, step: NodeStep) -> None:
        """Reconsider a value that differs, or that was accepted as rounding although uninitialised memory is involved."""
        if step.node in self._unwritten and verdict.ok is True and verdict.comparison is not None and not verdict.comparison.within:
            verdict.ok = False
            verdict.restate("")
        is_wrong = is_at_fault(verdict, step)
        if not is_wrong and verdict.ok is not False:
            return
        found = None if is_wrong or verdict.is_strict else excuse(verdict, step, OF_NODES)
        if found is None:
            self.suspects = self.suspects or [(verdict, step)]
        elif found is TIES:
            self.open_reason = f"the order of equal values is undefined at {verdict.node}"
        elif found is CARRIED_ON and self.suspects:
            verdict.add(f"{found.text}; see {self.suspects[0][0].node}")
        elif found is CARRIED_ON:
            unwritten = "parts of it are uninitialised memory" if step.node in self._unwritten else ""
            self.open_reason = self.open_reason or unwritten or f"{verdict.node} amplifies rounding differences beyond the tolerance"
            verdict.leave_open(f"{found.text}, and {self.open_reason}")

    def _output(self, known: ValueVerdict, step: NodeStep, output: Any) -> None:
        verdict, returned = verdict_on(step.node, "output", step.place, known.onnx_value), step._replace(ort=output)
        judge(verdict, output, step.eager, step.double, self.tolerances)
        self.verdicts.append(verdict)
        if is_at_fault(verdict, returned, knows_inputs=False) or (verdict.ok is False and verdict.is_strict):
            if known.ok:
                self.suspects.append((verdict, step))
        elif verdict.ok is not False or excuse(verdict, returned, (NONFINITE,)):
            return
        elif (known.ok is not True or known.is_excused) and verdict.is_close(output, step.ort):
            verdict.ok = known.ok
            verdict.comparison = known.comparison and verdict.comparison
            verdict.open_because = known.open_because
            verdict.add("as inside the partition" if known.ok is False else known.text)
        elif self.open_reason:
            verdict.leave_open(self.open_reason)
        elif not any(suspect.scope == "value" for suspect, _ in self.suspects):
            self.suspects.append((verdict, step))

    def spoilt_outputs(self) -> bool:
        """Tell whether NaN, or an infinity that the run in double precision does not have, reaches an output of the partition."""
        return any(
            any(map(has_nan, (step.eager, step.ort))) or (any(map(has_infinite, (step.eager, step.ort))) and not has_infinite(step.double))
            for _, step in self._returned.values()
        )


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
        while wanted:
            try:
                self._values |= self._results(wanted, level)
                wanted.clear()
            except Exception as error:  # noqa: BLE001 - recorded as the reason why these values were not compared
                if level is None:
                    self._leave_out(wanted, error)
            level = "disable" if level is None else None

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

    def at_level(options: onnxruntime.SessionOptions) -> AbstractContextManager[None]:
        name = "graph_optimization_level"
        chosen = getattr(options, name) if level is None else getattr(onnxruntime.GraphOptimizationLevel, LEVELS[level])
        return replaced(options, name, chosen)

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
