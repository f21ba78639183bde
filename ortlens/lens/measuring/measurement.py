"""Everything that is measured about a call: its ledger, and what it would take in other ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortlens.lens.measuring.against_torch import time_against_torch
from ortlens.lens.measuring.ledger_pass import MAX_CALLS, MEASURE_NS, LedgerPass
from ortlens.trace import records as r
from ortlens.trace.guard import lens_failed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch.fx

    from ortlens.analysis.ledger import StepReading
    from ortlens.backend.graph import CompiledGraph
    from ortlens.lens.dynamo.listener import DynamoWatch
    from ortlens.trace.recorder import Recorder


class _Calls:
    """Calls a target, and remembers what it returned and raised, to tell its failures from those of a measurement."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.made = 0
        self.result: Any = None
        self.raised: BaseException | None = None

    def __call__(self) -> Any:
        try:
            self.result = self._call()
        except BaseException as error:
            self.raised = error
            raise
        self.made += 1
        return self.result


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Measures calls for a lens."""

    recorder: Recorder
    watch: DynamoWatch
    graphs: Callable[[], tuple[CompiledGraph, ...]]  # those that are compiled now
    originals: Mapping[str | None, torch.fx.GraphModule] | None  # Dynamo's, by compile id; None where the backend is not ours
    steps: list[StepReading] | None  # calls of the model inside the `generate` that is measured
    captured: Callable[[], r.Capture]  # the capture so far

    def run(self, call: Callable[[], Any], *, made: int = 0, **limits: Any) -> Any:
        """Measure a call, and return its last result; `made` counts the calls made before, to prepare it.

        Exceptions of the target are raised; a failure of the measurement becomes a finding. Limits are those of `LedgerPass.measure`.
        """
        calls = _Calls(call)
        try:
            return self._measured(calls, made, **limits)
        except Exception as error:
            if error is calls.raised:
                raise
            lens_failed(self.recorder, "measuring calls", error)
            return calls.result if calls.made else call()

    def _measured(self, call: _Calls, made: int, **limits: Any) -> Any:
        ledger = LedgerPass(self.recorder, self.watch, self.graphs, self.steps)
        most = limits.pop("max_calls", MAX_CALLS)
        if self.originals is not None and most > 1:  # the call that is observed counts as one of them
            before = ledger.work()
            time_against_torch(self.recorder, self.graphs(), self.originals, call)
            ledger.note_work(ledger.work(), before)
            most -= 1
        result = ledger.measure(call, max_calls=most, **limits)
        if ledger.averaged:
            figures: dict[str, float] = {"ledger_calls": ledger.averaged}
            if ledger.spread:
                figures["ledger_spread"] = ledger.spread
            if ledger.cores is not None:
                figures["ledger_others"], figures["ledger_idle"] = ledger.cores
            if ledger.uncompiled_ns:
                figures["uncompiled_ns"] = ledger.uncompiled_ns
            self.recorder.note(**figures)
        elif ledger.found_none:
            self._note_none(ledger, call.made, made)
        if limits.get("budget_ns", MEASURE_NS) is not None and not ledger.found_none:  # else the caller counts the calls, or they vary
            self._try_without_guards(call, ledger.wait)
            self._try_fewer_threads(call)
        return result

    def _note_none(self, ledger: LedgerPass, made: int, before: int) -> None:
        """Note why no call counts. The calls before compiled the target; an exported program was compiled without them."""
        by_dynamo = bool(self.watch.started)
        self.recorder.note(
            ledger_made=made + before,
            ledger_compiling=ledger.compiling + (before if by_dynamo else 0),
            ledger_creating=ledger.creating + (0 if by_dynamo else before),
        )

    def _try_fewer_threads(self, call: Callable[[], Any]) -> None:
        """Measure what fewer threads would bring, where sessions have more threads than there are cores."""
        from ortlens._process import usable_cores
        from ortlens.lens.measuring.probes import Probe

        if any((session.threads or 0) > usable_cores() for session in self.recorder.records(r.Session)):
            Probe(self.recorder, self.graphs(), call, self.captured).threads_alone(MEASURE_NS)

    def _try_without_guards(self, call: Callable[[], Any], wait: Callable[[], None]) -> None:
        """Measure how much of a call is guards, where entering graphs takes much of it."""
        from ortlens.lens.measuring.probes import guards_trial
        from ortlens.lens.measuring.trials import GUARDS_NS, GUARDS_SHARE, ONE_GRAPH_SHARE

        by_dynamo = {graph.graph_id for graph in self.recorder.records(r.Graph) if graph.compile_id}  # an exported program has no guards
        parts = self.recorder.records(r.LedgerPart)
        entering = [part.ns for part in parts if part.part == "guards" and part.graph_id in by_dynamo]
        several = len(entering) > 1
        share = GUARDS_SHARE if several else ONE_GRAPH_SHARE
        if sum(entering) >= max(GUARDS_NS, share * sum(part.ns for part in parts)):
            guards_trial(self.recorder, call, wait, MEASURE_NS, several=several)
