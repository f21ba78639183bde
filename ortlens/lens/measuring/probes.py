"""Findings about changes that were measured: fewer threads and calls without guards beside the compiled code.

Whole calls are timed in turns, as they are and with the change. The compiled code stays as it is: another session replaces the one in
use for a timed call only, computes the results of that call, and is not counted. `observe` notes what one call runs: the graphs that it
enters and the partitions in them, with their inputs and times.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from ortlens import _torch
from ortlens._process import cpu_quota, usable_cores
from ortlens.analysis.problems.calls import UNGUARDED_STEPS
from ortlens.analysis.problems.catalogue import remedy
from ortlens.analysis.problems.sessions import SESSIONS, throttled_times
from ortlens.analysis.problems.stream import RULES
from ortlens.backend.basis.ab_timing import clocked, compare, compare_briefly, compare_sustained, waiting_for
from ortlens.backend.observed import ObservedGraph, ObservedPartition, in_all, uncounted_eager
from ortlens.trace import records as r
from ortlens.trace.guard import lens_guard
from ortlens.units import counted, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ortlens.analysis.speed import AbTiming
    from ortlens.backend.observed import PartitionRun
    from ortlens.trace.recorder import Recorder


_MAX_RUNNERS = 8  # partitions that get another session at most, the most expensive ones

GUARDS = "guards"  # subject of the finding about guards: they are evaluated for the call as a whole
GUARDS_NS, GUARDS_SHARE, ONE_GRAPH_SHARE, GENERATE_SHARE = 200_000, 0.25, 0.5, 0.1
"""What skipping guards must save to be worth a warning: that of several graphs can be had without a risk, by merging them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCalls:
    """What is known of a call whose guards are skipped."""

    several: bool  # whether it enters several graphs, or one several times
    breaks: bool  # whether the graph breaks
    generates: bool  # whether it generates tokens, and enters the model for each
    freeze_call: str | None  # freezes the target, which was tried; None where it was not, or does not work

    @property
    def worth_share(self) -> float:
        """The share of a call that skipping them must save."""
        return GENERATE_SHARE if self.generates else GUARDS_SHARE if self.several else ONE_GRAPH_SHARE

    def change(self) -> TimedChange:
        """Return skipping guards as a change, with what saves them; merging graphs saves as much without a risk."""
        how: Mapping[str, Any] = UNGUARDED_STEPS
        if self.breaks:
            how = remedy("Remove the graph breaks, so that guards run once per call.")
        elif self.several and not self.generates:
            how = remedy("Compile the functions that it enters one after the other as one, so that guards run once per call.")
        elif not self.generates:
            how = remedy(
                "They run once per call, for everything that the code reads: modules, their Python attributes, globals.",
                f"For deployment, `{self.freeze_call}` runs the same sessions without them." if self.freeze_call else "",
            )
        what = "skipping the guards of modules at each step" if self.generates else "skipping the guards"
        return TimedChange(rule="heavy_guards", subject=GUARDS, what=what, remedy=how, worth_ns=GUARDS_NS, worth_share=self.worth_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedChange:
    """A change to a call, and what its finding says."""

    rule: str
    subject: str
    what: str  # as a noun: `skipping the guards`
    remedy: Mapping[str, Any]  # how to make it permanent, as fields of a finding
    worth_ns: int = 0  # gain per call from which it is a warning, where no rule expected it
    worth_share: float = 0.1  # of the time, likewise


def try_without_guards(
    recorder: Recorder, call: Callable[[], Any], wait: Callable[[], None], budget_ns: int, entered: GuardedCalls
) -> None:
    """Measure what skipping the guards would save, and record it if that is worth a warning, or replaces the estimate for a generation."""
    with lens_guard(recorder, "probing calls without guards"):
        plain, trees = clocked(call, wait), _torch.trees_without_modules() if entered.generates else []

        def unguarded() -> int:
            with _torch.checking(trees):
                return plain()

        made = finding_of(entered.change(), compare_briefly(plain, unguarded, budget_ns), None)
        if made is not None and (entered.generates or made.severity == "warning"):
            recorder.add(made)


def try_fewer_threads(
    recorder: Recorder, graphs: Iterable[ObservedGraph], call: Callable[[], Any], known: r.Finding | None, budget_ns: int
) -> None:
    """Measure as many threads as there are cores, for sessions that have more, and record a gain: waiting for a core hides in noise."""
    call()  # creates the sessions that are still missing
    _, ran, _ = observe(graphs, call)
    cores, seen = usable_cores(), [each.subject for each in ran]
    crowded = [each for each in ran if each.subject.latest.threads.count > cores][:_MAX_RUNNERS]
    if not crowded or sum(each.subject.latest.create_ns for each in crowded) > budget_ns:
        return
    with lens_guard(recorder, "probing fewer threads"), uncounted_eager(recorder):
        others: dict[ObservedPartition, PartitionRun] = {}
        for each in crowded:
            fewer = replace(each.subject.latest.threads, count=cores)
            others[each.subject] = each.subject.variant(each.values, threads=fewer).run
        once = clocked(call, waiting_for([each.values for each in ran]))
        recorder.add(*fewer_threads(_intercepted(once, seen, {}), _intercepted(once, seen, others), known, budget_ns))


def fewer_threads(as_is: Callable[[], int], fewer: Callable[[], int], known: r.Finding | None, budget_ns: int) -> list[r.Finding]:
    """Time calls as they are and with a thread per usable core; return what replaces the estimate of the rule, if there is one."""
    threads, stopped = counted(usable_cores(), "thread"), list[tuple[int, int]]()
    if cpu_quota() is None:
        compared = compare(as_is, fewer, budget_ns)
    else:
        compared, stopped = compare_sustained(as_is, fewer)
    change = TimedChange(rule="too_many_threads", subject=SESSIONS, what=f"{threads} per session", remedy={})
    found = finding_of(change, compared, known)
    if found is not None and stopped:
        before, after = (throttled_times(*each) for each in stopped)
        as_is_ns, fewer_ns = map(time_from_ns, (compared.base_ns, compared.other_ns))
        found = replace(
            found,
            title=f"{found.title}: {as_is_ns} per call under load, {fewer_ns} with {threads}",
            evidence=f"{found.evidence}, in which the kernel stopped the process {before} as it is, and {after} with {threads}",
        )
    return [] if found is None else [found]


def _intercepted(
    once: Callable[[], int], seen: Sequence[ObservedPartition], others: Mapping[ObservedPartition, PartitionRun]
) -> Callable[[], int]:
    """Time whole calls in which some partitions run otherwise. All are intercepted and uncounted, so that both sides cost the same."""
    ways = {each: others.get(each) or each.uncounted(each.latest.session) for each in seen}

    def intercepted() -> int:
        with in_all(each.around(instead(way)) for each, way in ways.items()):
            return once()

    return intercepted


def finding_of(change: TimedChange, compared: AbTiming, known: r.Finding | None) -> r.Finding | None:
    """Make the finding of a change that makes calls faster, in place of the estimate of a rule, `known`, which else is information."""
    if known is None and not compared.is_faster:
        return None
    before, gain = compared.base_ns, compared.base_ns - compared.other_ns
    times = f"{time_from_ns(before)} as it is, {time_from_ns(compared.other_ns)} with {change.what}"
    evidence = f"measured: {times} (medians of {counted(compared.rounds, 'round')} in turns)"
    if known is not None:
        known = replace(known, evidence=f"{known.evidence}; {evidence}", measured=True, gain_ns=None)
        return replace(known, gain_ns=gain, **change.remedy) if compared.is_faster else replace(known, severity="info")
    return r.Finding(
        rule=change.rule,
        subject=change.subject,
        severity="info" if gain < change.worth_ns or gain < change.worth_share * before else "warning",
        title=f"{change.what} makes calls faster",
        evidence=evidence,
        hazard=RULES[change.rule].hazard if change.rule in RULES else "Calls take longer than they need to.",
        **change.remedy,
        gain_ns=gain,
        measured=True,
    )


Subject = TypeVar("Subject", ObservedGraph, ObservedPartition)

_SMALL = 1024


@dataclass(slots=True, eq=False)
class Ran(Generic[Subject]):
    """A graph as a call entered it, or a partition as a call ran it."""

    subject: Subject
    values: tuple[Any, ...] = ()  # inputs of the first run
    count: int = 0
    ns: int = 0  # of all runs


def observe(graphs: Iterable[ObservedGraph], call: Callable[[], Any]) -> tuple[list[Ran[ObservedGraph]], list[Ran[ObservedPartition]], Any]:
    """Call a target, and return the graphs and partitions that ran, each the most expensive first, and the result."""
    entered = [Ran(graph) for graph in graphs if graph.graph_id is not None and graph.is_prepared]
    ran = [Ran(partition) for item in entered for partition in item.subject.partitions() if partition.is_single]
    noting = [item.subject.around(_noting(item, lambda inner, args: inner(args))) for item in entered]
    noting += [item.subject.around(_noting(item, lambda inner, values: inner(*values))) for item in ran]
    with in_all(noting):
        result = call()
    return _most_expensive(entered), _most_expensive(ran), result


def _noting(item: Ran[Any], run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Note inputs and time, of this thread alone."""
    thread = threading.get_ident()

    def around(inner: Any, values: Any) -> Any:
        if threading.get_ident() != thread:
            return run(inner, values)
        item.values = item.values or as_entered(values)
        item.count += 1
        wait = waiting_for(item.values)
        wait()
        started = time.perf_counter_ns()
        outputs = run(inner, values)
        wait()
        item.ns += time.perf_counter_ns() - started
        return outputs

    return around


def _most_expensive(items: list[Any]) -> list[Any]:
    return sorted((item for item in items if item.count), key=lambda item: -item.ns)


def as_entered(values: Sequence[Any]) -> tuple[Any, ...]:
    """Keep inputs for later runs; copy small integer tensors: programs advance positions in a cache in place, at last beyond its end."""
    return tuple(value.clone() if _is_small_index(value) else value for value in values)


def _is_small_index(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex() and value.numel() <= _SMALL


def timed(run: PartitionRun, values: tuple[Any, ...]) -> Callable[[], int]:
    """Return a function that makes a run on the same inputs and returns its time in ns."""
    return clocked(lambda: run(*values), waiting_for(values))


def instead(run: PartitionRun) -> Callable[[PartitionRun, tuple[Any, ...]], tuple[Any, ...]]:
    """Return what `around` takes to run a partition otherwise."""
    return lambda _inner, values: run(*values)
