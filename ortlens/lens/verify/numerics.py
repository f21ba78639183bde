"""`Lens.verify`: compares ONNX Runtime's results with PyTorch's, partition by partition, inside a call of the user's function.

Runs of the check are not counted, and the call gets the results of the session. Then the call as a whole is compared with the same call
of the function itself. Several functions that were compiled for the same arguments are compared one after the other. Weights, buffers,
gradients, arguments and random generators are put back.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from ortlens._shell import display_name, no_progress, progress
from ortlens.backend.observed import in_all, uncounted_eager
from ortlens.lens.verify.call_check import CallCheck, eager_call
from ortlens.lens.verify.call_state import CallState
from ortlens.lens.verify.causes import RULES, finding_of_call
from ortlens.lens.verify.checked_partitions import MAX_CALLS, CheckedPartitions
from ortlens.lens.verify.compare_values import ValueVerdict
from ortlens.lens.verify.excuses import OF_CALLS, CallEvidence, excuse
from ortlens.lens.verify.lockstep import NodeRaised, steps
from ortlens.trace import records as r
from ortlens.trace.guard import lens_failed
from ortlens.units import size_from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.backend.observed import ObservedPartition
    from ortlens.lens.observing.compilations import CompiledTargets, Target
    from ortlens.lens.observing.time_budget import TimeBudget
    from ortlens.lens.verify.call_state import Outcome
    from ortlens.lens.verify.checked_partitions import Checked
    from ortlens.lens.verify.compare_values import Tolerances
    from ortlens.trace.recorder import Recorder

_MAX_ATTEMPTS = 3  # most calls of the target: again if a call compiled something, which then ran unchecked
_OTHER_ARGUMENTS = "not called: it was compiled for other arguments than these; call verify again with its own"


@dataclass(slots=True)
class Verification:
    """One run of `verify`. The call as a whole is compared even if that takes longer than the budget."""

    recorder: Recorder
    targets: CompiledTargets
    tolerances: Tolerances
    budget: TimeBudget
    per_op: bool
    _step: Callable[[int], None] = no_progress
    _partitions: CheckedPartitions = field(init=False)
    _findings: dict[str, r.Finding] = field(default_factory=dict)  # about calls, by target
    _calls: list[ValueVerdict] = field(default_factory=list)

    def _checks(self, *, per_op: bool, most: int | None = MAX_CALLS) -> CheckedPartitions:
        return CheckedPartitions(self.recorder, self.targets.graphs, self.tolerances, self._step, self.budget, per_op=per_op, most=most)

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Call the targets that take these arguments, check, and replace earlier rows; what a single target raises is raised."""
        targets, others = self.targets.taking(args, kwargs)
        several = len(targets) + len(others) > 1
        logs = set(self.recorder.logs()[0])
        known = {graph.graph_id for graph in self.recorder.records(r.Graph)}
        values = sum(len(partition.part.nodes) for graph in self.targets.graphs() for partition in graph.partitions())
        with uncounted_eager(self.recorder), progress("verifying", values, "value") as self._step:
            self._partitions = self._checks(per_op=self.per_op)
            for place, target in enumerate(targets):
                prefix = f"{target.name}: " if several else ""
                if place and self.budget.is_over():
                    self._calls.append(_not_called(target, f"not compared: {self.budget.over}", left_out=True))
                else:
                    self._verify(target, args, kwargs, raises=len(targets) == 1, prefix=prefix)
        self._calls += [_not_called(target, _OTHER_ARGUMENTS) for target in others]
        for log in self.recorder.logs()[0]:  # of sessions that were made meanwhile: their calls are ours, not the user's
            if log not in logs:
                log.forget()
        for graph in self.recorder.records(r.Graph):
            if graph.graph_id not in known:
                self.recorder.amend(r.Graph, graph.graph_id, only_verified=True)
        self._record()

    def _verify(self, target: Target, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, raises: bool, prefix: str) -> None:
        """Check one target: the partitions that its call runs, and the call."""
        self._partitions.begin()
        check = CallCheck(
            call=functools.partial(target.compiled, *args, **kwargs),
            eager=eager_call(target.function, args, kwargs),
            state=CallState(target.function, args, kwargs),
            tolerances=self.tolerances,
            place_in_code=_first_line(target.function),
        )
        compiled = self._compiled(check)
        self._compare_call(check, compiled, prefix)
        if raises and compiled.error is not None and not check.wrong():
            raise compiled.error
        if left_out := check.state.left_out:
            note = f"{size_from_bytes(left_out)} of weights were not copied: what the call wrote to them was neither compared nor put back"
            check.verdicts.append(check.verdict("weights", note=note))
        for verdict in check.verdicts:
            verdict.node = f"{prefix}{verdict.node}"
        self._calls += check.verdicts

    def _compiled(self, check: CallCheck) -> Outcome:
        """Call the compiled function, while its partitions are checked."""
        for attempt in range(_MAX_ATTEMPTS):
            before = self._partitions.sessions()
            with self._partitions.watched(self._partitions.checking):
                compiled = check.called()
            after = self._partitions.sessions()
            known = all(item in self._partitions.checked or before.get(item) == made for item, made in after.items())
            if known or attempt == _MAX_ATTEMPTS - 1:
                break
        return compiled

    def _compare_call(self, check: CallCheck, compiled: Outcome, prefix: str) -> None:
        """Compare the call as a whole with the same call of the function itself."""
        if check.eager is None:
            self._partitions.report_raised(None)
            check.verdicts = [check.verdict("result", note="the function itself is not known, so the call as a whole was not compared")]
            return
        try:
            with self._partitions.watched(lambda _partition, _args, outputs: outputs):  # neither checked inside nor recorded
                again = check.called()
            check.run(compiled, again)
            self._partitions.report_raised(check.expected.error)
            if check.wrong() and self.budget.is_over():
                check.cause = "unsought"
            elif check.wrong():
                lowered = in_all(graph.in_torch() for graph in self.targets.graphs() if graph.is_prepared)
                check.trace(self._partitions.watched(with_pytorchs_numbers), lowered)
                if self._partitions.in_other_threads and check.cause == "boundary":  # numbers are not replaced there either
                    check.cause = ""
                self._look_inside(check)
            self._conclude(check, prefix)
        except Exception as error:  # noqa: BLE001 - a guard of the lens: what was compared inside stays
            lens_failed(self.recorder, "comparing the call", error)
            note = f"ortlens failed while comparing: {type(error).__name__}: {error}"[:300]
            check.verdicts = [check.verdict("result", note=note)]

    def _look_inside(self, check: CallCheck) -> None:
        """Compare skipped calls, and together the values that were right alone, if the fault is inside and was not found."""
        partitions = self._partitions
        has_skipped = any(partitions.checked[partition].calls > MAX_CALLS for partition in partitions.ran)
        if check.cause != "inside" or any(partitions.wrong()) or not (self.per_op or has_skipped):
            return
        closer = self._checks(per_op=False, most=None)
        with closer.watched(closer.checking):
            check.called()
        partitions.adopt(closer)

    def _conclude(self, check: CallCheck, prefix: str) -> None:
        """Give the call no verdict where the numbers inside have none, because each is right for its inputs."""
        first = next(self._partitions.wrong(), None)
        if check.cause == "inside" and first is None and self._partitions.saw_everything:
            evidence = CallEvidence(amplifies=self._partitions.open_reason or "the function amplifies rounding differences")
            for verdict in check.wrong():
                verdict.restate("")
                excuse(verdict, evidence, OF_CALLS)
        if wrong := check.wrong():
            row = None if first is None else first[1].row(first[0].partition_id or "")
            self._findings[prefix] = finding_of_call(wrong, check.cause, row, prefix)

    def _record(self) -> None:
        rows: list[r.Numeric] = []
        for partition, known in (*self._partitions.checked.items(), *self._partitions.not_run()):
            for verdict in sorted(known.verdicts.values(), key=lambda verdict: (verdict.place, verdict.scope != "value")):
                if verdict.scope in ("output", "op") and (left := self._calls_left(known)):
                    verdict.add(left)
                    verdict.left_out |= known.is_cut_short
                rows.append(verdict.row(partition.partition_id or ""))
        rows += [verdict.row(None) for verdict in self._calls]
        first = next((place for place, row in enumerate(rows) if row.ok is False), None)
        if first is not None:
            rows[first] = replace(rows[first], first_divergence=True)
        self.recorder.replace_all(r.Numeric, rows)
        found = [*self._partitions.findings.values(), *self._findings.values()]
        self.recorder.replace_findings(RULES, sorted(found, key=lambda finding: RULES.index(finding.rule)))

    def _calls_left(self, known: Checked) -> str:
        """Say which calls of a partition were not compared, if others were."""
        if known.is_cut_short:
            others = f"{known.calls - known.compared} of {known.calls} calls of this partition were not compared: {self.budget.over}"
            return others if known.compared else ""
        return f"calls {MAX_CALLS + 1} to {known.calls} of this partition were not compared" if known.calls > MAX_CALLS else ""


def _not_called(target: Target, note: str, *, left_out: bool = False) -> ValueVerdict:
    place = _first_line(target.function)
    return ValueVerdict(node=f"{target.name}: result", scope="call", place=0, note=note, left_out=left_out, place_in_code=place)


def _first_line(target: Any) -> tuple[str | None, int | None]:
    """Find the file and first line of a function; of a module, those of its `forward`."""
    function = getattr(target, "__self__", target)
    function = function.forward if isinstance(function, torch.nn.Module) else target
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return (None, None) if code is None else (display_name(code.co_filename), code.co_firstlineno)


def with_pytorchs_numbers(partition: ObservedPartition, args: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
    """Put PyTorch's values into the memory of the outputs that ONNX Runtime returned; what PyTorch raises is raised."""
    wanted = {node.name: place for place, node in enumerate(partition.part.outputs)}
    made = list(outputs)
    try:
        with torch.no_grad():
            for step in steps(partition.part.module, args, double=False):
                place = wanted.get(step.node.name)
                if place is not None:
                    made[place] = _overwritten(made[place], step.eager)
    except NodeRaised as raised:
        raise raised.error from None  # as the partition would in PyTorch
    return tuple(made)


def _overwritten(output: Any, value: Any) -> Any:
    both = isinstance(output, torch.Tensor) and isinstance(value, torch.Tensor)
    return output.copy_(value) if both and output.shape == value.shape and output.dtype is value.dtype else value
