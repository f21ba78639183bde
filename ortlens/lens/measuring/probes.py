"""Probes: measure what a change would bring, by making it beside the code that runs.

Changes that act on the rest of a call are judged by whole calls of the target, the others by runs of one partition. Either way the
present setting and the changed one are timed in turns. The compiled code stays as it is: another session replaces the one in use for
a timed call only, computes the results of that call, and is not counted.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from ortlens._process import usable_cores
from ortlens._shell import progress
from ortlens.analysis.problems.catalogue import remedy
from ortlens.analysis.problems.stream import RULES, findings_of
from ortlens.backend.graph import CompiledGraph
from ortlens.backend.runtime.ab_timing import compare, compare_briefly, waiting_for
from ortlens.lens.measuring.trials import (
    MAKING_NS,
    MAX_RUNNERS,
    CallTrials,
    ChangeTrial,
    GuardedCalls,
    ObservedPartition,
    dense,
    frozen,
    observe,
)
from ortlens.lens.observing import machine_peaks
from ortlens.lens.observing.watching import uncounted_eager
from ortlens.trace import records as r
from ortlens.trace.guard import lens_guard
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ortlens.analysis.speed import AbTiming
    from ortlens.trace.recorder import Recorder

_TRIAL_NS = 700_000_000  # time for the two sides of one trial together


@dataclass(slots=True)
class Probe:
    """Measures for one target with one set of arguments."""

    recorder: Recorder
    graphs: tuple[CompiledGraph, ...]
    call: Callable[[], Any]
    capture: Callable[[], r.Capture]  # for the rules to read
    generates: bool = False  # whether the call generates tokens
    seen: list[ObservedPartition] = field(default_factory=list)

    def run(self) -> None:
        """Observe one call, then measure one change after the other. A trial that fails becomes a finding; the others go on."""
        calls, fired = self._observed()
        with uncounted_eager(self.recorder):
            values = [value for seen in self.seen for value in seen.values if isinstance(value, torch.Tensor)]
            for count in {seen.choice.count or usable_cores() for seen in self.seen}:
                machine_peaks.measure({str(value.dtype).removeprefix("torch.") for value in values}, count)
            trials = list(self._trials(calls))
            with progress("probing", len(trials), "change") as step:
                for trial in trials:
                    _measure(self.recorder, trial, fired, _TRIAL_NS)
                    step(1)
        self._cold_start(fired)

    def threads_alone(self, budget_ns: int) -> None:
        """Measure what fewer threads bring; only a gain is recorded, since waiting for a core hides in the noise of a busy machine."""
        calls, fired = self._observed()
        if sum(seen.runner.sessions[-1].create_ns for seen in self.seen) > budget_ns:
            return
        with uncounted_eager(self.recorder):
            for trial in (trial for trial in calls.threads() if trial.rule == "too_many_threads"):
                _measure(self.recorder, trial, fired, budget_ns, keeps=lambda made: bool(made.gain_ns))

    def _observed(self) -> tuple[CallTrials, dict[tuple[str, str | None], r.Finding]]:
        """Note the inputs of every partition that one call runs; return the trials of such calls, and what the rules say."""
        self.call()  # creates the sessions that are still missing
        _, self.seen, _ = observe(self.graphs, self.call)
        fired = {(item.rule, item.subject): item.record() for item in findings_of(self.capture())}
        return CallTrials(self.seen, self.call, waiting_for([seen.values for seen in self.seen])), fired

    def _trials(self, calls: CallTrials) -> Iterator[ChangeTrial]:
        copied = {finding.subject for finding in self.recorder.records(r.Finding) if finding.rule == "layout_copy"}
        yield from calls.threads()
        for seen in self.seen[:MAX_RUNNERS]:
            yield from frozen(seen)
            yield from dense(seen, copied)
        if any(graph.compile_id is not None for graph in self.recorder.records(r.Graph)):  # Dynamo compiled it: else there are no guards
            several = len({seen.identity.graph_id for seen in self.seen}) > 1
            yield from calls.guards(guarded_calls(self.recorder, self.capture(), several=several, generates=self.generates))

    def _cold_start(self, fired: dict[tuple[str, str | None], r.Finding]) -> None:
        """Convert again into a cache, then from that cache, and record the time saved."""
        known = fired.get(("cold_start", "compile"))
        contexts = [(graph, graph.context) for graph in self.graphs]
        graphs = [graph for graph, made in contexts if made.cache is None and made.registry is not None and not made.dry_run]
        spent = sum(graph.phases.convert_ns + graph.phases.optimize_ns for graph in graphs)
        if known is None or spent > MAKING_NS:
            return
        with lens_guard(self.recorder, "probing cache_dir"):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                converted, read = (sum(_converting_ns(graph, folder) for graph in graphs) for _ in range(2))
            text = f"measured: converting took {time_from_ns(converted)}, reading the converted models back {time_from_ns(read)}"
            self.recorder.add(replace(known, measured=True, evidence=f"{known.evidence}; {text}"))


def guarded_calls(recorder: Recorder, capture: r.Capture, *, several: bool, generates: bool) -> GuardedCalls:
    """Note what is known of calls that enter one graph, or several."""
    freeze_call = capture.figures.freeze_call
    return GuardedCalls(several=several, breaks=bool(recorder.records(r.Break)), generates=generates, freeze_call=freeze_call)


def finding_of(trial: ChangeTrial, compared: AbTiming, known: r.Finding | None) -> r.Finding:
    """Make the measured finding of a trial in place of the estimate of a rule, `known`; without a gain it is information."""
    evidence = (
        f"measured: {time_from_ns(compared.base_ns)} as it is, {time_from_ns(compared.other_ns)} with {trial.change} "
        f"(medians of {compared.rounds} pairs in turns{f'; {trial.per_call} runs per call' if trial.per_call > 1 else ''})"
    )
    hazard = RULES[trial.rule].hazard if trial.rule in RULES else "Calls take longer than they need to."
    base = known or r.Finding(rule=trial.rule, subject=trial.subject, severity="warning", title="", hazard=hazard)
    evidence = f"{known.evidence}; {evidence}" if known is not None else evidence
    if not compared.is_faster:
        verdict = "is slower" if compared.is_slower else "shows no difference beyond the noise"
        title = f"{trial.change} {verdict}: {time_from_ns(compared.other_ns)} against {time_from_ns(compared.base_ns)}"
        return replace(base, severity="info", title=title, evidence=evidence, **remedy("Leave it as it is."), gain_ns=0, measured=True)
    gain = compared.gain_ns * trial.per_call
    if known is None and (gain < trial.worth_ns or compared.gain_ns < trial.worth_share * compared.base_ns):
        base = replace(base, severity="info")
    title = known.title if known is not None else f"{trial.change} makes calls faster"
    return replace(base, title=title, evidence=evidence, **trial.remedy, gain_ns=gain, measured=True)


def guards_trial(recorder: Recorder, call: Callable[[], Any], wait: Callable[[], None], budget_ns: int, entered: GuardedCalls) -> None:
    """Measure what skipping the guards would save, and record it if that is worth a warning, or replaces the estimate for a generation."""
    (trial,) = CallTrials([], call, wait).guards(entered)
    is_kept = (lambda made: bool(made.gain_ns)) if entered.generates else (lambda made: made.severity == "warning")
    _measure(recorder, trial, {}, budget_ns, compare_briefly, keeps=is_kept)


def _measure(  # noqa: PLR0913 - what is measured, how, and when it is worth a finding
    recorder: Recorder,
    trial: ChangeTrial,
    fired: Mapping[tuple[str, str | None], r.Finding],
    budget_ns: int,
    timer: Callable[..., AbTiming] = compare,
    *,
    keeps: Callable[[r.Finding], bool] = lambda _made: True,
) -> None:
    """Record the finding of a trial, unless there is nothing to compare after all, or it fails, which ends no other."""
    with lens_guard(recorder, f"probing {trial.change}"):
        if (pair := trial.pair()) is not None:
            made = finding_of(trial, timer(*pair, budget_ns), fired.get((trial.rule, trial.subject)))
            if keeps(made):
                recorder.add(made)


def _converting_ns(graph: CompiledGraph, folder: str) -> int:
    from ortlens.backend.cache.store import ModelCache

    context = replace(graph.context, cache=ModelCache(folder), reporter=None, whole_graph_key=None)
    phases = CompiledGraph(graph.lowered, context).phases
    return phases.convert_ns + phases.optimize_ns
