"""Checks one call of a partition: every value inside it, and the outputs of the session that really runs.

Both sides get the same inputs, so that an error in one partition does not carry over to the next. Inside a partition it does: to find
out whether a value is wrong or only computed from wrong values, its operator is run in PyTorch on ONNX Runtime's inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.lens.verify.compare_values import ValueVerdict, judge
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
from ortlens.lens.verify.inner_values import InnerValues, is_single
from ortlens.lens.verify.lockstep import NodeStep, maker_of, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        values = [node for node in left if isinstance(node.meta.get("val"), torch.Tensor)]
        late = [_verdict(node, "value", left[node], inner.name(node), note) for node in values]
        late += [_verdict(node, "output", left[node], inner.name(node), note) for node in left.keys() & set(returned)]
        for verdict in late:
            verdict.left_out = True
        self.verdicts += late
        for node, output in zip(returned, outputs, strict=True):
            if node in self._returned:
                self._output(*self._returned[node], output)
        self.verdicts.sort(key=lambda verdict: (verdict.place, verdict.scope != "value"))

    def _value(self, step: NodeStep, inner: InnerValues) -> ValueVerdict:
        name = inner.name(step.node)
        verdict = _verdict(step.node, "value", step.place, name)
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
        verdict, returned = _verdict(step.node, "output", step.place, known.onnx_value), step._replace(ort=output)
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


def _verdict(node: torch.fx.Node, scope: r.NumericScope, place: int, name: str | None, note: str = "") -> ValueVerdict:
    maker, _ = maker_of(node)
    return ValueVerdict(node=maker.name, scope=scope, place=place, onnx_value=name, note=note, line_of=maker)
