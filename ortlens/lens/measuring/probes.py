"""Probes: what a change would bring, measured by really making it, beside the code that runs.

Settings of sessions that act on the rest of the call (threads, spinning, guards, partitions left to PyTorch) are judged by whole
calls of the target; the others by runs of the one partition, on the inputs of an observed call. Either way the two are timed in
turns. The compiled code stays as it is: other sessions are put in its place for the timed call alone, answer from the values
that come, and are not counted.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ortlens.analysis.findings.compiling import GUARDS
from ortlens.analysis.findings.registry import RULES, findings_of
from ortlens.analysis.findings.sessions import SESSIONS
from ortlens.backend.graph import CompiledGraph
from ortlens.backend.runtime.threads import ThreadChoice, usable_cores
from ortlens.lens.dynamo.listener import lens_failure
from ortlens.lens.measuring.turns import Comparison, clocked, compare
from ortlens.lens.profiling import machine_peaks
from ortlens.lens.twins import uncounted, variant_of
from ortlens.lens.watching import around_runs
from ortlens.progress import progress
from ortlens.trace import records as r
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.backend.recording.reporter import Identity
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.trace.recorder import Recorder

_TRIAL_NS = 700_000_000
"""How long the two ways of one trial are timed."""

_MAKING_NS = 3_000_000_000
"""The sessions of a trial may take so long to make, by what making those in use took; else it is left out."""

_MAX_RUNNERS = 8
_FEW_NODES = 5
_MUCH = 0.1
"""Share of a call from which a gain that no rule expected is a warning."""

_WORTH_FREEZING = 1 << 16


@dataclass(slots=True, eq=False)
class Seen:
    """A partition as it ran in one call of the target.

    Attributes:
        runner: Its runner.
        graph: Its graph.
        identity: Its ids.
        values: Inputs of its first run.
        runs: How often it ran.
    """

    runner: PartitionRunner
    graph: CompiledGraph
    identity: Identity
    values: tuple[Any, ...] = ()
    runs: int = 0

    @property
    def choice(self) -> ThreadChoice:
        """The threads it runs with."""
        return self.runner.sessions[-1].threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One change to measure.

    Attributes:
        rule: The rule whose finding it is.
        subject: The finding's subject.
        change: The change, as a noun: `sleeping threads`.
        mitigation: How to make it for good.
        pair: Makes the two ways; None where there is nothing to compare after all.
        per_call: How often what is timed happens in a call of the target.
    """

    rule: str
    subject: str
    change: str
    mitigation: str
    pair: Callable[[], tuple[Callable[[], int], Callable[[], int]] | None]
    per_call: int = 1


@dataclass(slots=True)
class Probe:
    """Measures for one target with one set of arguments.

    Attributes:
        recorder: Holds the records; findings go there.
        graphs: The live graphs.
        call: Calls the target.
        capture: Takes a snapshot, for the rules to look at.
        seen: The partitions that ran in an observed call.
    """

    recorder: Recorder
    graphs: tuple[CompiledGraph, ...]
    call: Callable[[], Any]
    capture: Callable[[], r.Capture]
    seen: list[Seen] = field(default_factory=list)

    def run(self) -> None:
        """Observe one call, then measure one change after the other. A trial that fails becomes a finding and is left out."""
        self._observe()
        with self._uncounted_eager():
            self._machine()
            fired = {(finding.rule, finding.subject): finding for finding in findings_of(self.capture())}
            trials = list(self._trials(fired))
            with progress("probing", len(trials), "change") as step:
                for trial in trials:
                    self._measure(trial, fired.get((trial.rule, trial.subject)))
                    step(1)
        self._cold_start(fired)

    def _measure(self, trial: Trial, known: r.Finding | None) -> None:
        try:
            pair = trial.pair()
            if pair is not None:
                self.recorder.add(finding_of(trial, compare(*pair, _TRIAL_NS), known))
        except Exception as error:  # noqa: BLE001 - a guard of the lens: a trial must not end the others
            lens_failure(self.recorder, f"probing {trial.change}", error)

    @contextlib.contextmanager
    def _uncounted_eager(self) -> Iterator[None]:
        """Put the counts of nodes that PyTorch runs back to what they were: the sessions' are not counted either."""
        logs = self.recorder.logs()[1]
        before = {graph_id: (log.calls[:], log.total_ns[:]) for graph_id, log in logs.items()}
        try:
            yield
        finally:
            for graph_id, (calls, total_ns) in before.items():
                logs[graph_id].calls[:], logs[graph_id].total_ns[:] = calls, total_ns

    def _observe(self) -> None:
        """Note the inputs of every partition that one call runs."""
        here = threading.get_ident()
        found: dict[PartitionRunner, Seen] = {}
        self.call()  # sessions that are still to be made are made now
        with contextlib.ExitStack() as stack:
            for graph in self.graphs:
                reporter = graph.job.reporter
                for runner in graph.runners if reporter is not None else ():
                    if reporter is not None and len(runner.sessions) == 1:  # with one per size it is not said which one runs
                        found[runner] = Seen(runner, graph, reporter.identity(runner))
                        stack.enter_context(around_runs(runner, _noting(found[runner], here)))
            self.call()
        ran = [seen for seen in found.values() if seen.runs]
        cost = {session.session_id: session.p50_ns or 0 for session in self.capture().sessions}
        ran.sort(key=lambda seen: -cost.get(seen.identity.session_id or "", 0) * seen.runs)
        self.seen = ran

    def _machine(self) -> None:
        """Measure what the machine reaches with the threads of these sessions."""
        for count in {seen.choice.count or usable_cores() for seen in self.seen}:
            machine_peaks.measure(_dtypes(self.seen), count)

    def _trials(self, fired: dict[tuple[str, str | None], r.Finding]) -> Iterator[Trial]:
        yield from self._thread_trials()
        for seen in self.seen[:_MAX_RUNNERS]:
            yield from self._frozen(seen)
            yield from self._dense(seen)
            yield from self._preallocated(seen, fired)
        yield from self._left_to_torch(fired)
        yield from self._guards()

    # ------------------------------------------------------------------------------------------------ whole calls

    def _thread_trials(self) -> Iterator[Trial]:
        cores = usable_cores()
        several = [seen for seen in self.seen if seen.choice.count != 1]
        spinning = [seen for seen in several if seen.choice.spinning]
        crowded = [seen for seen in self.seen if seen.choice.count > cores]
        if spinning:
            yield self._with_threads(
                "spinning_threads",
                "letting threads sleep",
                'Add the entry "session.intra_op.allow_spinning" = "0" to ort_session_options.',
                {seen: replace(seen.choice, spinning=False) for seen in spinning},
            )
        if crowded:
            yield self._with_threads(
                "too_many_threads",
                f"giving each session {cores} threads",
                f"torch.set_num_threads({cores}), or intra_op_num_threads={cores} in ort_session_options.",
                {seen: replace(seen.choice, count=cores) for seen in crowded},
            )
            return
        other = 1 if several else cores
        if other != 1 or several:
            yield self._with_threads(
                "thread_count",
                f"giving each session {other} thread{'s' if other > 1 else ''}",
                f"torch.set_num_threads({other}), or intra_op_num_threads={other} in ort_session_options.",
                {seen: ThreadChoice(count=other, spinning=False, reason="probed") for seen in (several or self.seen)},
            )

    def _with_threads(self, rule: str, change: str, mitigation: str, choices: dict[Seen, ThreadChoice]) -> Trial:
        def pair() -> tuple[Callable[[], int], Callable[[], int]] | None:
            chosen = list(choices)[:_MAX_RUNNERS]
            if sum(seen.runner.sessions[-1].create_ns for seen in chosen) > _MAKING_NS:
                return None
            made = {seen: _prepared(variant_of(seen.runner, choice=choices[seen]), seen) for seen in chosen}
            return self._whole({}), self._whole(made)

        return Trial(rule=rule, subject=SESSIONS, change=change, mitigation=mitigation, pair=pair)

    def _left_to_torch(self, fired: dict[tuple[str, str | None], r.Finding]) -> Iterator[Trial]:
        by_graph: dict[str, list[Seen]] = defaultdict(list)
        for seen in self.seen:
            by_graph[seen.identity.graph_id].append(seen)
        for rule, most in (("small_partitions", _FEW_NODES), ("tiny_graph", None)):
            for graph_id, members in by_graph.items():
                chosen = [seen for seen in members if most is None or _node_count(seen) <= most]
                if (rule, graph_id) in fired and chosen:
                    yield self._without(rule, graph_id, chosen)

    def _without(self, rule: str, graph_id: str, chosen: list[Seen]) -> Trial:
        largest = max(_node_count(seen) for seen in chosen)
        return Trial(
            rule=rule,
            subject=graph_id,
            change=f"leaving {len(chosen)} partition{'s' if len(chosen) > 1 else ''} of {graph_id} to PyTorch",
            mitigation=f"min_partition_nodes={largest + 1} leaves partitions of up to {largest} compute nodes to PyTorch.",
            pair=lambda: (self._whole({}), self._whole({seen: seen.runner.part.module for seen in chosen})),
        )

    def _guards(self) -> Iterator[Trial]:
        if not any(graph.compile_id is not None for graph in self.recorder.records(r.Graph)):
            return  # an exported program was not compiled by Dynamo, and has no guards

        def pair() -> tuple[Callable[[], int], Callable[[], int]]:
            plain = self._whole({})

            def unguarded() -> int:
                with torch.compiler.set_stance("fail_on_recompile", skip_guard_eval_unsafe=True):
                    return plain()

            return plain, unguarded

        yield Trial(
            rule="heavy_guards",
            subject=GUARDS,
            change="skipping the guards",
            mitigation="After a warm-up with every kind of input: torch.compiler.set_stance(skip_guard_eval_unsafe=True), which gives "
            'wrong answers silently when what the guards check does change. Milder: torch.compile(..., options={"guard_filter_fn": '
            "torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe}).",
            pair=pair,
        )

    def _whole(self, others: dict[Seen, Callable[..., tuple[Any, ...]]]) -> Callable[[], int]:
        """Whole calls with some partitions run another way; all are intercepted and uncounted, so that both sides cost the same."""
        ways = {seen: others.get(seen) or _plain(seen) for seen in self.seen}
        timed = clocked(self.call)

        def once() -> int:
            with contextlib.ExitStack() as stack:
                for seen, way in ways.items():
                    stack.enter_context(around_runs(seen.runner, _instead(way)))
                return timed()

        return once

    # ------------------------------------------------------------------------------------------- single partitions

    def _frozen(self, seen: Seen) -> Iterator[Trial]:
        weights = [seen.values[place] for place, node in enumerate(seen.runner.part.inputs) if node in seen.runner.weight_nodes()]
        size = sum(weight.nbytes for weight in weights if isinstance(weight, torch.Tensor))
        held = sum(weight.contiguous.nbytes for weight in seen.runner.sessions[-1].frozen)
        if seen.graph.job.phase != "inference" or size < _WORTH_FREEZING or 2 * held >= size:
            return

        def pair() -> tuple[Callable[[], int], Callable[[], int]] | None:
            variant = variant_of(seen.runner, freezes=True)
            run = _prepared(variant, seen)
            return (_running(_plain(seen), seen.values), _running(run, seen.values)) if variant.sessions[-1].frozen else None

        yield Trial(
            rule="unfrozen_weights",
            subject=seen.identity.partition_id,
            change=f"freezing the weights of {seen.identity.partition_id}",
            mitigation='freeze_weights="auto", and weights that stay as they are between calls.',
            pair=pair,
            per_call=seen.runs,
        )

    def _dense(self, seen: Seen) -> Iterator[Trial]:
        prefix = f"{seen.identity.partition_id}:"
        told = {finding.subject for finding in self.recorder.records(r.Finding) if finding.rule == "layout_copy"}
        for place, node in enumerate(seen.runner.part.inputs):
            value = seen.values[place]
            if prefix + node.name in told and isinstance(value, torch.Tensor):
                dense = (*seen.values[:place], value.contiguous(), *seen.values[place + 1 :])
                yield Trial(
                    rule="layout_copy",
                    subject=prefix + node.name,
                    change=f"handing {node.name} over contiguous",
                    mitigation="Make it contiguous once where it is made; in the call itself .contiguous() costs the same copy.",
                    pair=partial(_two_inputs, seen, dense),
                    per_call=seen.runs,
                )

    def _preallocated(self, seen: Seen, fired: dict[tuple[str, str | None], r.Finding]) -> Iterator[Trial]:
        session_id = seen.identity.session_id
        if session_id is not None and ("output_allocations", session_id) in fired:
            yield Trial(
                rule="output_allocations",
                subject=session_id,
                change=f"letting PyTorch allocate the outputs of {session_id}",
                mitigation="preallocate_output=True.",
                pair=lambda: (
                    _running(_plain(seen), seen.values),
                    _running(_prepared(variant_of(seen.runner, preallocate=True), seen), seen.values),
                ),
                per_call=seen.runs,
            )

    # ---------------------------------------------------------------------------------------------------- the start

    def _cold_start(self, fired: dict[tuple[str, str | None], r.Finding]) -> None:
        """Convert once more into a cache, then with that cache, and tell what was saved."""
        known = fired.get(("cold_start", "compile"))
        graphs = [graph for graph in self.graphs if graph.job.cache is None and not graph.job.dry_run]
        spent = sum(graph.phases.convert_ns + graph.phases.optimize_ns for graph in graphs)
        if known is None or spent > _MAKING_NS:
            return
        try:
            with tempfile.TemporaryDirectory() as folder:
                converted, read = (sum(_converting_ns(graph, folder) for graph in graphs) for _ in range(2))
        except Exception as error:  # noqa: BLE001 - as above
            lens_failure(self.recorder, "probing cache_dir", error)
            return
        said = f"measured: converting took {time_from_ns(converted)}, reading the converted models back {time_from_ns(read)}"
        self.recorder.add(replace(known, measured=True, evidence=f"{known.evidence}; {said}"))


def _noting(seen: Seen, thread: int) -> Callable[[Callable[..., tuple[Any, ...]], tuple[Any, ...]], tuple[Any, ...]]:
    def around(inner: Callable[..., tuple[Any, ...]], values: tuple[Any, ...]) -> tuple[Any, ...]:
        if threading.get_ident() == thread:
            seen.values = seen.values or values
            seen.runs += 1
        return inner(*values)

    return around


def _instead(way: Callable[..., tuple[Any, ...]]) -> Callable[[Callable[..., tuple[Any, ...]], tuple[Any, ...]], tuple[Any, ...]]:
    return lambda _inner, values: way(*values)


def _plain(seen: Seen) -> Callable[..., tuple[Any, ...]]:
    """The session in use, uncounted."""
    return uncounted(seen.runner, seen.runner.sessions[-1].session)


def _prepared(variant: PartitionRunner, seen: Seen) -> Callable[..., tuple[Any, ...]]:
    variant.prepare(seen.values)
    return variant.run


def _running(run: Callable[..., tuple[Any, ...]], values: tuple[Any, ...]) -> Callable[[], int]:
    return clocked(lambda: run(*values))


def _two_inputs(seen: Seen, others: tuple[Any, ...]) -> tuple[Callable[[], int], Callable[[], int]]:
    return _running(_plain(seen), seen.values), _running(_plain(seen), others)


def _node_count(seen: Seen) -> int:
    return len(seen.runner.part.nodes)


def _dtypes(seen: list[Seen]) -> set[str]:
    tensors = [value for item in seen for value in item.values if isinstance(value, torch.Tensor)]
    return {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}


def _converting_ns(graph: CompiledGraph, folder: str) -> int:
    from ortlens.backend.cache.store import ModelCache

    job = replace(graph.job, cache=ModelCache(folder), reporter=None, prepared=None)
    phases = CompiledGraph(job).phases
    return phases.convert_ns + phases.optimize_ns


def finding_of(trial: Trial, compared: Comparison, known: r.Finding | None) -> r.Finding:
    """What a trial found, in the place of what a rule estimated or a run recorded.

    Args:
        trial: What was tried.
        compared: How the two ways compare.
        known: The finding of the same rule about the same subject, if there is one.

    Returns:
        The record, measured. Without a gain it is information, and says so.
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
    if known is None and compared.gain_ns < _MUCH * compared.base_ns:
        base = replace(base, severity="info")
    title = known.title if known is not None else f"{trial.change} would save {time_from_ns(gain)} of a call"
    return replace(base, title=title, evidence=evidence, mitigation=trial.mitigation, gain_ns=gain, measured=True)


def _blank(trial: Trial) -> r.Finding:
    hazard = next((rule.hazard for rule in RULES if rule.name == trial.rule), "Calls take longer than they need to.")
    return r.Finding(rule=trial.rule, subject=trial.subject, severity="warning", title="", hazard=hazard)
