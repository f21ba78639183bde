"""Checks one call of a partition: every value inside it, and the outputs of the session that really runs.

Both sides get the same inputs, so that an error in one partition does not carry over to the next. Inside a partition it does: to find
out whether a value is wrong or only computed from wrong values, its operator is run in PyTorch on ONNX Runtime's inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx

from ortlens.lens.verify.cancellation import NOTE, cancels
from ortlens.lens.verify.compare_values import compare
from ortlens.lens.verify.inner_values import InnerValues, is_single, makers
from ortlens.lens.verify.lockstep import Missing, Step, call_on_foreign, rounds_a_number, steps
from ortlens.lens.verify.nonfinite import Origin, is_excused, origin_of
from ortlens.lens.verify.open_results import differ_by_ties, is_uninitialised
from ortlens.lens.verify.verdicts import NUMBER_ROUNDED, Verdict, has_infinite, has_nan, is_finite, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.lens.time_budget import TimeBudget
    from ortlens.lens.verify.compare_values import Tolerances
    from ortlens.trace import records as r

_REWRITTEN = "not in the model: rewritten during conversion"
_AS_CONVERTED = "present before optimisation, then fused away"
_CARRIED_ON = "the operator is right for the inputs that ONNX Runtime computed"


class Reference(NamedTuple):
    """What a value is compared with: PyTorch's value, and that of the run in double precision."""

    eager: Any
    double: Any


@dataclass(slots=True, kw_only=True)
class PartitionCheck:
    """The check of one call of a partition."""

    runner: PartitionRunner
    args: Sequence[Any]  # its inputs; they may change after the call
    tolerances: Tolerances
    # makes a runner of the model as converted, for values that the model that runs does not hold; returns None if it cannot
    whole: Callable[[], PartitionRunner | None]
    budget: TimeBudget  # when it is over, the rest is left out, which its verdicts say
    verdicts: list[Verdict] = field(default_factory=list)  # one per value and per output, in the order of the graph
    origins: list[Origin] = field(default_factory=list)  # where NaN or infinities come from
    is_whole: bool = True  # whether the time was enough for all of it
    # the first value that is wrong by itself, and outputs that are wrong although the values inside are right, each with its reference
    suspects: list[tuple[Verdict, Reference]] = field(default_factory=list)
    _open: str = ""
    _unwritten: set[torch.fx.Node] = field(default_factory=set)
    _by_node: dict[str, Verdict] = field(default_factory=dict)
    _kept: dict[str, tuple[Reference, Any]] = field(default_factory=dict)

    def run(self, outputs: Sequence[Any], step_done: Callable[[int], None]) -> None:
        """Check the values, then `outputs`, those of the session that really runs."""
        inner = _Sources(self)
        returned = {node.name for node in self.runner.partition.outputs}
        places = {node: place for place, node in enumerate(self.runner.partition.module.graph.nodes)}
        done: set[torch.fx.Node] = set()
        for step in steps(self.runner.partition.module, self.args, inner.take):
            if self.budget.is_over():
                break
            step_done(1)
            done.add(step.node)
            if is_uninitialised(step.node) or not self._unwritten.isdisjoint(step.node.all_input_nodes):
                self._unwritten.add(step.node)
            else:
                self._look_for_origin(step)
            if is_single(step.node.meta.get("val")):
                verdict = self._value(step, places[step.node], inner)
                if step.node.name in returned:
                    self._by_node[step.node.name] = verdict
                    self._kept[step.node.name] = Reference(step.eager, step.double), step.ort
        self._leave_out({node: place for node, place in places.items() if node.op == "call_function" and node not in done}, inner)
        for node, output in zip(self.runner.partition.outputs, outputs, strict=True):
            if node.name in self._by_node:
                self._output(node, output)
        self.verdicts.sort(key=lambda verdict: (verdict.place, verdict.scope != "value"))

    def _leave_out(self, nodes: Mapping[torch.fx.Node, int], inner: _Sources) -> None:
        """Say of values, and of the outputs among them, that they were not compared."""
        self.is_whole = not nodes
        returned = {node.name for node in self.runner.partition.outputs}
        for node, place in nodes.items():
            maker, _ = makers(node)
            scopes: list[r.NumericScope] = ["value"] if isinstance(node.meta.get("val"), torch.Tensor) else []
            if node.name in returned:
                scopes.append("output")
            name, note = inner.name(node), f"not compared: {self.budget.over}"
            for scope in scopes:
                self.verdicts.append(Verdict(node=maker.name, scope=scope, place=place, onnx_value=name, note=note, line_of=maker))

    def _value(self, step: Step, place: int, inner: _Sources) -> Verdict:
        maker, _ = makers(step.node)
        name = inner.name(step.node)
        verdict = Verdict(node=maker.name, scope="value", place=place, onnx_value=name, line_of=maker)
        if is_uninitialised(maker):
            verdict.note = "uninitialised memory: any value is right"
        elif name is None:
            verdict.note = inner.why_not(step.node)
        else:
            judge(verdict, step.ort, step.eager, step.double, self.tolerances)
            self._reconsider(verdict, step)
            if step.node not in inner.running.names:
                verdict.add(_AS_CONVERTED)
        origin = next((found for found in self.origins if found.node is maker), None)
        if origin is not None and not (is_finite(step.eager) and is_finite(step.ort)):
            verdict.nonfinite = "origin"
            verdict.add(origin.note)
        if name is not None or isinstance(step.eager, torch.Tensor):  # numbers that the model does not hold are not values of the model
            self.verdicts.append(verdict)
        return verdict

    def _follows_origin(self, verdict: Verdict, ort: Any, reference: Reference) -> bool:
        """Tell whether a value differs only in elements that are NaN or infinite, and these follow from PyTorch's own.

        The other elements have been compared. Then there is nothing to compare with.
        """
        found, tolerance = verdict.comparison, verdict.tolerance
        origin = next((origin for origin in self.origins if origin.sides != "ort"), None)
        if origin is None or found is None or tolerance is None or tolerance.given or not (found.clashes and found.eager_bad):
            return False
        if not (found.within or found.finite_alike()) or not is_excused(ort, *reference):
            return False
        verdict.ok = None
        verdict.add(f"no verdict: PyTorch's value contains NaN or infinities from {origin.node.name}")
        return True

    def _look_for_origin(self, step: Step) -> None:
        origin = origin_of(step, makers(step.node)[0], [found.node for found in self.origins])
        if origin is not None:
            self.origins.append(origin)

    def _reconsider(self, verdict: Verdict, step: Step) -> None:
        """Reconsider a value that differs, or that was accepted as rounding although uninitialised memory is involved."""
        excused = verdict.ok is True and verdict.comparison is not None and not verdict.comparison.within
        if step.node in self._unwritten and excused:
            verdict.ok, verdict.note = False, ""
        if verdict.ok is True and self._rounds_a_number(verdict, step):
            self._blame(verdict, step)
            return
        if verdict.ok is not False or self._follows_origin(verdict, step.ort, Reference(step.eager, step.double)):
            return
        if self._strict(verdict):
            self._blame(verdict, step)
        elif cancels(makers(step.node)[0], step.ort, step.eager, step.read, verdict.tolerance):
            verdict.ok, verdict.note = True, NOTE
        elif self._differs_by_ties(step, step.ort, step.eager, step.read):
            self._open = f"the order of equal values is undefined at {verdict.node}"
            verdict.accept_ties()
        else:
            self._look_closer(verdict, step)

    def _rounds_a_number(self, verdict: Verdict, step: Step) -> bool:
        if self._strict(verdict) or verdict.comparison is None or not verdict.comparison.max_abs:
            return False
        number = rounds_a_number(step.node, step.ort, call_on_foreign(step.node, step.read_ort), step.read_ort)
        if number is not None:
            verdict.ok = False
            verdict.add(NUMBER_ROUNDED.format(number))
        return number is not None

    def _look_closer(self, verdict: Verdict, step: Step) -> None:
        """Decide whether a value is wrong, or computed from values that differ."""
        local = call_on_foreign(step.node, step.read_ort)
        if not (_is_close(step.ort, local, self.tolerances) or self._differs_by_ties(step, step.ort, local, step.read_ort)):
            self._blame(verdict, step)
        elif self.suspects:
            verdict.add(f"{_CARRIED_ON}; see {self.suspects[0][0].node}")
        else:
            verdict.ok = None
            unwritten = "parts of it are uninitialised memory" if step.node in self._unwritten else ""
            self._open = self._open or unwritten or f"{verdict.node} amplifies rounding differences beyond the tolerance"
            verdict.add(f"no verdict: {_CARRIED_ON}, and {self._open}")

    def _blame(self, verdict: Verdict, step: Step) -> None:
        if not self.suspects:
            self.suspects.append((verdict, Reference(step.eager, step.double)))

    def _strict(self, verdict: Verdict) -> bool:
        return verdict.tolerance is None or verdict.tolerance.given

    def _differs_by_ties(self, step: Step, first: Any, second: Any, read: Callable[[torch.fx.Node], Any]) -> bool:
        maker, item = makers(step.node)
        return item is not None and differ_by_ties(maker, item, first, second, read(maker.all_input_nodes[0]))

    def _output(self, node: torch.fx.Node, output: Any) -> None:
        known, (reference, inside) = self._by_node[node.name], self._kept[node.name]
        verdict = Verdict(node=known.node, scope="output", place=known.place, onnx_value=known.onnx_value, line_of=known.line_of)
        judge(verdict, output, reference.eager, reference.double, self.tolerances)
        self.verdicts.append(verdict)
        if verdict.ok is False and self._follows_origin(verdict, output, reference):
            return
        if verdict.ok is not False or self._strict(verdict):
            if verdict.ok is False and known.ok:
                self.suspects.append((verdict, reference))
            return
        is_excused = known.ok is True and (known.comparison is None or known.note.startswith(NOTE))
        if (known.ok is not True or is_excused) and _is_close(output, inside, self.tolerances):
            verdict.ok = known.ok
            verdict.comparison = known.comparison and verdict.comparison
            verdict.add("as inside the partition" if known.ok is False else known.note)
        elif self._open:
            verdict.ok = None
            verdict.add(f"no verdict: {self._open}")
        elif not any(suspect.scope == "value" for suspect, _ in self.suspects):
            self.suspects.append((verdict, reference))

    @property
    def open_reason(self) -> str:
        """Why a value that differs has no verdict; empty if there is none such."""
        return self._open

    def spoilt_outputs(self) -> bool:
        """Tell whether NaN, or an infinity that the run in double precision does not have, reaches an output of the partition."""
        for (eager, double), inside in self._kept.values():
            if has_nan(eager) or has_nan(inside):
                return True
            if (has_infinite(eager) or has_infinite(inside)) and not has_infinite(double):
                return True
        return False


class _Sources:
    """ONNX Runtime's values: from the model that runs, else from the model as converted."""

    def __init__(self, check: PartitionCheck) -> None:
        self.running = InnerValues(check.runner, check.args)
        calls = (node for node in check.runner.partition.module.graph.nodes if node.op == "call_function")
        lost = any(isinstance(node.meta.get("val"), torch.Tensor) and node not in self.running.names for node in calls)
        whole = check.whole() if lost else None
        self._whole = None if whole is None else InnerValues(whole, check.args, only_beside=self.running.names)

    def take(self, node: torch.fx.Node) -> Any:
        if node in self.running.names or self._whole is None:
            return self.running.take(node)
        return self._whole.take(node)

    def name(self, node: torch.fx.Node) -> str | None:
        """Name of the value in the model that computed it; None if there is none, or the run failed."""
        holder = next((source for source in self._both() if node in source.names), None)
        return None if holder is None or node in holder.failures else holder.names[node]

    def why_not(self, node: torch.fx.Node) -> str:
        return next((source.failures[node] for source in self._both() if node in source.failures), _REWRITTEN)

    def _both(self) -> list[InnerValues]:
        return [self.running] if self._whole is None else [self.running, self._whole]


def _is_close(ort: Any, other: Any, tolerances: Tolerances) -> bool:
    """Tell whether two values differ by a single rounding at most."""
    if isinstance(ort, Missing) or isinstance(other, Missing) or not isinstance(ort, torch.Tensor):
        return type(ort) is type(other) and not isinstance(ort, Missing) and bool(ort == other)
    if not isinstance(other, torch.Tensor) or ort.shape != other.shape or ort.dtype is not other.dtype:
        return False
    found = compare(ort, other, None, tolerances.of(ort.dtype))
    return found.within and not found.clashes
