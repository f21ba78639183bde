"""Probes: measure what a change would bring, by making it beside the code that runs.

Changes that act on the rest of a call are judged by whole calls of the target, the others by runs of one partition. Either way the
present setting and the changed one are timed in turns. The compiled code stays as it is: another session replaces the one in use for
a timed call only, computes the results of that call, and is not counted.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from ortlens._process import usable_cores
from ortlens.analysis.findings.registry import RULES, findings_of
from ortlens.backend.graph import CompiledGraph
from ortlens.backend.runtime.turns import Comparison, compare, compare_briefly
from ortlens.lens.measuring.call_trials import MAKING_NS, MAX_RUNNERS, CallTrials
from ortlens.lens.measuring.partition_trials import dense, frozen, preallocated
from ortlens.lens.measuring.trials import ObservedPartition, Trial, as_entered, uncounted_eager
from ortlens.lens.profiling import machine_peaks
from ortlens.lens.watching import around_runs
from ortlens.progress import progress
from ortlens.trace import records as r
from ortlens.trace.guard import lens_failed
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.lens.measuring.trials import Run
    from ortlens.trace.recorder import Recorder

_TRIAL_NS = 700_000_000
"""Time for the two sides of one trial together."""


@dataclass(slots=True)
class Probe:
    """Measures for one target with one set of arguments.

    Attributes:
        recorder: Holds the records; findings go there.
        graphs: The live graphs.
        call: Calls the target.
        capture: Takes a snapshot, for the rules to read.
        seen: The partitions that ran in an observed call, the most expensive first.
    """

    recorder: Recorder
    graphs: tuple[CompiledGraph, ...]
    call: Callable[[], Any]
    capture: Callable[[], r.Capture]
    seen: list[ObservedPartition] = field(default_factory=list)

    def run(self) -> None:
        """Observe one call, then measure one change after the other. A trial that fails becomes a finding; the others go on."""
        self._observe()
        with uncounted_eager(self.recorder):
            self._machine()
            fired = {(finding.rule, finding.subject): finding for finding in findings_of(self.capture())}
            trials = list(self._trials(fired))
            with progress("probing", len(trials), "change") as step:
                for trial in trials:
                    self._measure(trial, fired.get((trial.rule, trial.subject)))
                    step(1)
        self._cold_start(fired)

    def threads_alone(self, budget_ns: int) -> None:
        """Measure what fewer threads would bring where sessions have more of them than there are cores, and nothing else.

        Only a gain is recorded: on a busy machine, threads that wait for a core hide in the noise.
        """
        self._observe()
        if sum(seen.runner.sessions[-1].create_ns for seen in self.seen) > budget_ns:
            return
        fired = {(finding.rule, finding.subject): finding for finding in findings_of(self.capture())}
        with uncounted_eager(self.recorder):
            for trial in CallTrials(self.seen, self.call).threads():
                if trial.rule == "too_many_threads":
                    self._measure(trial, fired.get((trial.rule, trial.subject)), budget_ns, only_gains=True)

    def _observe(self) -> None:
        """Note the inputs of every partition that one call runs."""
        here = threading.get_ident()
        found: dict[PartitionRunner, ObservedPartition] = {}
        self.call()  # creates the sessions that are still missing
        with contextlib.ExitStack() as stack:
            for graph in self.graphs:
                reporter = graph.context.reporter
                for runner in graph.runners if reporter is not None else ():
                    if reporter is not None and len(runner.sessions) == 1:  # of one per size, it is not known which one runs
                        found[runner] = ObservedPartition(runner, graph, reporter.identity(runner))
                        stack.enter_context(around_runs(runner, _noting(found[runner], here)))
            self.call()
        cost = {session.session_id: session.p50_ns or 0 for session in self.capture().sessions}
        ran = [seen for seen in found.values() if seen.runs]
        self.seen = sorted(ran, key=lambda seen: -cost.get(seen.identity.session_id or "", 0) * seen.runs)

    def _machine(self) -> None:
        """Measure the peak speed of the machine with the threads of these sessions."""
        for count in {seen.choice.count or usable_cores() for seen in self.seen}:
            machine_peaks.measure(_dtypes(self.seen), count)

    def _trials(self, fired: dict[tuple[str, str | None], r.Finding]) -> Iterator[Trial]:
        calls = CallTrials(self.seen, self.call)
        copied = {finding.subject for finding in self.recorder.records(r.Finding) if finding.rule == "layout_copy"}
        yield from calls.threads()
        for seen in self.seen[:MAX_RUNNERS]:
            yield from frozen(seen)
            yield from dense(seen, copied)
            yield from preallocated(seen, fired)
        yield from calls.left_to_torch(fired)
        if any(graph.compile_id is not None for graph in self.recorder.records(r.Graph)):
            yield from calls.guards(
                several=len({seen.identity.graph_id for seen in self.seen}) > 1
            )  # an exported program was not compiled by Dynamo, and has none

    def _measure(self, trial: Trial, known: r.Finding | None, budget_ns: int = _TRIAL_NS, *, only_gains: bool = False) -> None:
        try:
            pair = trial.pair()
            compared = None if pair is None else compare(*pair, budget_ns)
            if compared is not None and (compared.is_faster or not only_gains):
                self.recorder.add(finding_of(trial, compared, known))
        except Exception as error:  # noqa: BLE001 - a guard of the lens: a trial must not end the others
            lens_failed(self.recorder, f"probing {trial.change}", error)

    def _cold_start(self, fired: dict[tuple[str, str | None], r.Finding]) -> None:
        """Convert again into a cache, then from that cache, and record the time saved."""
        known = fired.get(("cold_start", "compile"))
        graphs = [graph for graph in self.graphs if graph.context.cache is None and not graph.context.dry_run]
        spent = sum(graph.phases.convert_ns + graph.phases.optimize_ns for graph in graphs)
        if known is None or spent > MAKING_NS:
            return
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                converted, read = (sum(_converting_ns(graph, folder) for graph in graphs) for _ in range(2))
        except Exception as error:  # noqa: BLE001 - as above
            lens_failed(self.recorder, "probing cache_dir", error)
            return
        text = f"measured: converting took {time_from_ns(converted)}, reading the converted models back {time_from_ns(read)}"
        self.recorder.add(replace(known, measured=True, evidence=f"{known.evidence}; {text}"))


def finding_of(trial: Trial, compared: Comparison, known: r.Finding | None) -> r.Finding:
    """Make the measured finding of a trial, which replaces the estimate of a rule, `known`.

    Without a gain it is information and says so.
    """
    evidence = (
        f"measured: {time_from_ns(compared.base_ns)} as it is, {time_from_ns(compared.other_ns)} with {trial.change} "
        f"(medians of {compared.rounds} pairs in turns{f'; {trial.per_call} runs per call' if trial.per_call > 1 else ''})"
    )
    base = known or _blank(trial)
    evidence = f"{known.evidence}; {evidence}" if known is not None else evidence
    if not compared.is_faster:
        verdict = "is slower" if compared.is_slower else "shows no difference beyond the noise"
        title = f"{trial.change} {verdict}: {time_from_ns(compared.other_ns)} against {time_from_ns(compared.base_ns)}"
        return replace(base, severity="info", title=title, evidence=evidence, mitigation="Leave it as it is.", gain_ns=0, measured=True)
    gain = compared.gain_ns * trial.per_call
    if known is None and (gain < trial.worth_ns or compared.gain_ns < trial.worth_share * compared.base_ns):
        base = replace(base, severity="info")
    title = known.title if known is not None else f"{trial.change} makes calls faster"
    return replace(base, title=title, evidence=evidence, mitigation=trial.mitigation, gain_ns=gain, measured=True)


def _blank(trial: Trial) -> r.Finding:
    hazard = next((rule.hazard for rule in RULES if rule.name == trial.rule), "Calls take longer than they need to.")
    return r.Finding(rule=trial.rule, subject=trial.subject, severity="warning", title="", hazard=hazard)


def guards_trial(recorder: Recorder, call: Callable[[], Any], budget_ns: int, *, several: bool) -> None:
    """Measure what skipping the guards would save, and record it if that is worth a warning; `several` as for `CallTrials.guards`."""
    (trial,) = CallTrials([], call).guards(several=several)
    try:
        pair = trial.pair()
        made = None if pair is None else finding_of(trial, compare_briefly(*pair, budget_ns), None)
    except Exception as error:  # noqa: BLE001 - as above
        lens_failed(recorder, f"probing {trial.change}", error)
        return
    if made is not None and made.severity == "warning":
        recorder.add(made)


def _noting(seen: ObservedPartition, thread: int) -> Callable[[Run, tuple[Any, ...]], tuple[Any, ...]]:
    def around(inner: Run, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if threading.get_ident() == thread:
            seen.values = seen.values or as_entered(values)
            seen.runs += 1
        return inner(*values)

    return around


def _dtypes(seen: list[ObservedPartition]) -> set[str]:
    tensors = [value for item in seen for value in item.values if isinstance(value, torch.Tensor)]
    return {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}


def _converting_ns(graph: CompiledGraph, folder: str) -> int:
    from ortlens.backend.cache.store import ModelCache

    context = replace(graph.context, cache=ModelCache(folder), reporter=None, whole_graph_key=None)
    phases = CompiledGraph(graph.lowered, context).phases
    return phases.convert_ns + phases.optimize_ns
