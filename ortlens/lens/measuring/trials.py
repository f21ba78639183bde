"""What one call of a target runs, and what a probe measures about it: one change to the call, or to the runs of one partition.

Threads, guards and partitions left to PyTorch act on the rest of a call, and are judged by whole calls. Frozen weights, contiguous inputs
and preallocated outputs are judged by runs of the partition on the inputs of an observed call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ortlens import _torch
from ortlens._process import usable_cores
from ortlens.analysis.problems.calls import UNGUARDED_STEPS
from ortlens.analysis.problems.catalogue import remedy
from ortlens.analysis.problems.sessions import SESSIONS
from ortlens.backend.runtime.ab_timing import clocked, waiting_for
from ortlens.backend.runtime.threads import ThreadChoice
from ortlens.lens.observing.watching import PartitionRun, around_calls, around_runs, uncounted, variant_of
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.recording.reporter import Identity
    from ortlens.backend.runtime.runner import PartitionRunner


_SMALL = 1024


@dataclass(slots=True, eq=False)
class ObservedGraph:
    """A graph as a call entered it."""

    graph: CompiledGraph
    graph_id: str
    values: tuple[Any, ...] = ()  # inputs of its first entry
    count: int = 0
    ns: int = 0  # of all entries


@dataclass(slots=True, eq=False)
class ObservedPartition:
    """A partition as a call ran it."""

    runner: PartitionRunner
    graph: CompiledGraph
    identity: Identity
    values: tuple[Any, ...] = ()  # inputs of its first run
    count: int = 0
    ns: int = 0  # of all runs

    @property
    def choice(self) -> ThreadChoice:
        """The threads of its session."""
        return self.runner.sessions[-1].threads


def observe(graphs: Iterable[CompiledGraph], call: Callable[[], Any]) -> tuple[list[ObservedGraph], list[ObservedPartition], Any]:
    """Call a target, and return the graphs and partitions that ran, each the most expensive first, and the result."""
    entered: list[ObservedGraph] = []
    ran: list[ObservedPartition] = []
    with contextlib.ExitStack() as stack:
        for graph in graphs:
            reporter = graph.context.reporter
            if reporter is None or not graph.is_prepared:
                continue
            entered.append(ObservedGraph(graph, reporter.graph_id))
            stack.enter_context(around_calls(graph, _noting(entered[-1], lambda inner, args: inner(args))))
            for runner in graph.runners:
                if len(runner.sessions) == 1 and not runner.is_lost:  # of one per size, it is not known which one runs
                    ran.append(ObservedPartition(runner, graph, reporter.identity(runner)))
                    stack.enter_context(around_runs(runner, _noting(ran[-1], lambda inner, values: inner(*values))))
        result = call()
    return _most_expensive(entered), _most_expensive(ran), result


def _noting(item: ObservedGraph | ObservedPartition, run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
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


Pair: TypeAlias = tuple[Callable[[], int], Callable[[], int]]
"""The present setting and the changed one; each runs once and returns the time in ns."""

MAX_RUNNERS = 8  # partitions that are measured at most, the most expensive ones
MAKING_NS = 3_000_000_000  # a trial whose sessions take longer to create than this is skipped; estimated by the time that those in use took

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

    def remedy(self) -> Mapping[str, Any]:
        """Say what saves it, as fields of a finding; merging graphs saves as much without a risk."""
        if self.breaks:
            return remedy("Remove the graph breaks, so that guards run once per call.")
        if self.generates:
            return UNGUARDED_STEPS
        if self.several:
            return remedy("Compile the functions that it enters one after the other as one, so that guards run once per call.")
        return remedy(
            "They run once per call, for everything that the code reads: modules, their Python attributes, globals.",
            f"For deployment, `{self.freeze_call}` runs the same sessions without them." if self.freeze_call else "",
        )


_WORTH_FREEZING = 1 << 16  # bytes of weights below which freezing them is not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTrial:
    """One change to measure, and what its finding says."""

    rule: str
    subject: str
    change: str  # as a noun: `letting threads sleep`
    remedy: Mapping[str, Any]  # how to make it permanent, as fields of a finding
    pair: Callable[[], Pair | None]  # makes the two ways; None when there is nothing to compare after all
    per_call: int = 1  # how often the timed run happens in one call of the target
    worth_ns: int = 0  # gain per call from which it is a warning, where no rule expected it
    worth_share: float = 0.1  # of the time, likewise


def timed(run: PartitionRun, values: tuple[Any, ...]) -> Callable[[], int]:
    """Return a function that makes a run on the same inputs and returns its time in ns."""
    return clocked(lambda: run(*values), waiting_for(values))


def instead(run: PartitionRun) -> Callable[[PartitionRun, tuple[Any, ...]], tuple[Any, ...]]:
    """Return what `around_runs` takes to run a partition otherwise."""
    return lambda _inner, values: run(*values)


def _present(seen: ObservedPartition) -> PartitionRun:
    """Return the present setting: the session in use, uncounted."""
    return uncounted(seen.runner, seen.runner.sessions[-1].session)


def _prepared(variant: PartitionRunner, seen: ObservedPartition) -> PartitionRun:
    """Give a variant of a partition its session, with the weights of `seen`, and return a function of its inputs."""
    variant.prepare(seen.values)
    return variant.run


@dataclass(frozen=True, slots=True)
class CallTrials:
    """Makes the trials of whole calls, of which `seen` are the partitions, the most expensive first."""

    seen: list[ObservedPartition]
    call: Callable[[], Any]
    wait: Callable[[], None]

    def threads(self) -> Iterator[ChangeTrial]:
        """Yield trials of other numbers of threads, and of threads that sleep instead of spinning, as they apply to the present threads."""
        cores = usable_cores()
        several = [seen for seen in self.seen if seen.choice.count != 1]
        spinning = [seen for seen in several if seen.choice.spinning]
        crowded = [seen for seen in self.seen if seen.choice.count > cores]
        if spinning:
            text = 'Add the entry "session.intra_op.allow_spinning" = "0" to ort_session_options.'
            sleeping = {seen: replace(seen.choice, spinning=False) for seen in spinning}
            yield self._with_threads("spinning_threads", "letting threads sleep", text, sleeping)
        count = cores if crowded or not several else 1
        if crowded:
            rule, choices = "too_many_threads", {seen: replace(seen.choice, count=count) for seen in crowded}
        else:
            probed = ThreadChoice(count=count, spinning=False, reason="probed")
            rule, choices = "thread_count", dict.fromkeys(several or self.seen, probed)
        if crowded or several or count != 1:
            text = f"torch.set_num_threads({count}), or intra_op_num_threads={count} in ort_session_options."
            yield self._with_threads(rule, f"giving each session {counted(count, 'thread')}", text, choices)

    def guards(self, entered: GuardedCalls) -> Iterator[ChangeTrial]:
        """Yield a trial of calls that skip Dynamo's guards."""

        def pair() -> Pair:
            plain, trees = self._whole({}), _torch.trees_without_modules() if entered.generates else []

            def unguarded() -> int:
                with _torch.checking(trees):
                    return plain()

            return plain, unguarded

        yield ChangeTrial(
            rule="heavy_guards",
            subject=GUARDS,
            change="skipping the guards of modules at each step" if entered.generates else "skipping the guards",
            remedy=entered.remedy(),
            worth_ns=GUARDS_NS,
            worth_share=entered.worth_share,
            pair=pair,
        )

    def _with_threads(self, rule: str, change: str, mitigation: str, choices: dict[ObservedPartition, ThreadChoice]) -> ChangeTrial:
        def pair() -> Pair | None:
            chosen = list(choices)[:MAX_RUNNERS]
            if sum(seen.runner.sessions[-1].create_ns for seen in chosen) > MAKING_NS:
                return None
            made = {seen: _prepared(variant_of(seen.runner, choice=choices[seen]), seen) for seen in chosen}
            return self._whole({}), self._whole(made)

        return ChangeTrial(rule=rule, subject=SESSIONS, change=change, remedy=remedy(mitigation), pair=pair)

    def _whole(self, others: dict[ObservedPartition, PartitionRun]) -> Callable[[], int]:
        """Time whole calls in which some partitions run otherwise. All are intercepted and uncounted, so that both sides cost the same."""
        ways = {seen: others.get(seen) or _present(seen) for seen in self.seen}
        once = clocked(self.call, self.wait)

        def intercepted() -> int:
            with contextlib.ExitStack() as stack:
                for seen, way in ways.items():
                    stack.enter_context(around_runs(seen.runner, instead(way)))
                return once()

        return intercepted


def frozen(seen: ObservedPartition) -> Iterator[ChangeTrial]:
    """Yield a trial of weights as constants, if the graph is for inference and most of its weights are inputs now."""
    weights = [seen.values[place] for place, node in enumerate(seen.runner.partition.inputs) if node in seen.runner.weight_nodes()]
    size = sum(weight.nbytes for weight in weights if isinstance(weight, torch.Tensor))
    held = sum(weight.contiguous.nbytes for weight in seen.runner.sessions[-1].frozen)
    if seen.graph.lowered.phase != "inference" or size < _WORTH_FREEZING or 2 * held >= size:
        return

    def pair() -> Pair | None:
        variant = variant_of(seen.runner, freezes=True)
        run = _prepared(variant, seen)
        return _pair(seen, run) if variant.sessions[-1].frozen else None

    yield ChangeTrial(
        rule="unfrozen_weights",
        subject=seen.identity.partition_id,
        change=f"freezing the weights of {seen.identity.partition_id}",
        remedy=remedy('freeze_weights="auto", and weights that stay as they are between calls.', freeze_weights="auto")
        if seen.runner.weights_change is None
        else remedy("Keep weights as they are between calls: they were constants until they changed."),
        pair=pair,
        per_call=seen.count,
    )


def dense(seen: ObservedPartition, copied: Container[str | None]) -> Iterator[ChangeTrial]:
    """Yield a trial per copied input that passes it contiguous; `copied` has the subjects of the findings `layout_copy`."""
    for place, node in enumerate(seen.runner.partition.inputs):
        value, subject = seen.values[place], f"{seen.identity.partition_id}:{node.name}"
        if subject in copied and isinstance(value, torch.Tensor):
            others = (*seen.values[:place], value.contiguous(), *seen.values[place + 1 :])
            yield ChangeTrial(
                rule="layout_copy",
                subject=subject,
                change=f"passing {node.name} contiguous",
                remedy=remedy("Make it contiguous once where it is made; in the call itself .contiguous() costs the same copy."),
                pair=partial(_pair, seen, values=others),
                per_call=seen.count,
            )


def _pair(seen: ObservedPartition, run: PartitionRun | None = None, values: tuple[Any, ...] | None = None) -> Pair:
    """Time the session in use on the observed inputs against another way to run, or against other inputs."""
    return timed(_present(seen), seen.values), timed(run or _present(seen), values or seen.values)
