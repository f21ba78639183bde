"""Profiles each partition in a second session beside the one that runs, to see where the time inside ONNX Runtime goes.

ONNX Runtime's profiler slows a run down, so its totals are not reported. Profiled runs alternate with plain runs of the session in
use, on the same inputs. The plain runs give the time of a run, the profiled ones its division among kernels. Where torch's profiler sees
the device of a session, both run under it as well, and kernels have the device's times.
"""

from __future__ import annotations

import functools
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens._shell import progress
from ortlens.backend.basis.ab_timing import no_wait, waiting_for
from ortlens.backend.observed import in_all
from ortlens.errors import UsageError
from ortlens.lens.profiling import profiles
from ortlens.lens.profiling.kernel_records import ProfiledSession, ProfilerTwin, record_profile, with_profiler, without_weights
from ortlens.trace import records as r
from ortlens.trace.runlog import RunLog
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.backend.observed import ObservedPartition, PartitionRun, Twin
    from ortlens.lens.observing.compilations import CompiledTargets
    from ortlens.lens.observing.time_budget import Repeats, TimeBudget
    from ortlens.trace.recorder import Recorder

_MAX_CALLS = 3  # most calls of the target: a call may compile more graphs, which the next one profiles


class _RunTimes(RunLog):
    """Appends the time inside ONNX Runtime of each run to a list; on a device, until the device is done."""

    __slots__ = ("_runs_ns", "_wait")

    def __init__(self, runs_ns: list[int], wait: Callable[[], None]) -> None:
        super().__init__(None, None)
        self._runs_ns, self._wait = runs_ns, wait

    def record(self, start: int, bound: int, ran: int, done: int, thread: int) -> None:
        del start, done, thread
        if self._wait is not no_wait:
            self._wait()
            ran = time.perf_counter_ns()
        self._runs_ns.append(ran - bound)


@dataclass(slots=True)
class _Sitting:
    """One session that is being profiled, and its twin with the profiler."""

    shadow: Twin
    partition: ObservedPartition
    folder: Path
    twin: ProfilerTwin

    def measure(self, args: tuple[Any, ...], repeats: Repeats, step: Callable[[int], None]) -> None:
        """Run the same inputs in turns with and without the profiler."""
        pairs = ((self.shadow.info.session, self.twin.turns.plain_ns), (self.twin.session, self.twin.turns.profiled_ns))
        args = self.partition.with_copies(args)
        wait = waiting_for(args)
        plain, profiled = (
            functools.partial(self.partition.uncounted(session, updates=True, log=_RunTimes(taken, wait)), *args)
            for session, taken in pairs
        )
        wait()
        self.twin.measure(plain, profiled, repeats, step)


@dataclass(slots=True)
class _Profiler:
    """Intercepts every run of a partition while the target is called."""

    repeats: Repeats
    folder: Path
    cost: profiles.Cost
    step: Callable[[int], None]
    thread: int = field(default_factory=threading.get_ident)
    sittings: dict[tuple[ObservedPartition, int], _Sitting] = field(default_factory=dict)
    failures: dict[ObservedPartition, Exception] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: set[ObservedPartition] = field(default_factory=set)
    left_out: set[ObservedPartition] = field(default_factory=set)

    def around(self, partition: ObservedPartition, inner: PartitionRun, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run as usual, then profile. A failure of the profiling is recorded and does not reach the caller."""
        outputs = inner(*args)
        # PyTorch may run a backward graph in a thread of its own.
        if partition in self.failures or (threading.get_ident() != self.thread and partition.graph.phase != "backward"):
            return outputs
        with self.lock:
            self.seen.add(partition)
            if self.sittings and self.repeats.budget.is_over():
                self.left_out.add(partition)
                return outputs
            try:
                sitting = self._sitting(partition, args)
                if sitting is not None:
                    sitting.measure(args, self.repeats, self.step)
            except Exception as error:  # noqa: BLE001 - observing must not break what is observed
                self.failures[partition] = error
        return outputs

    def _sitting(self, partition: ObservedPartition, args: tuple[Any, ...]) -> _Sitting | None:
        current = partition.session_for(args)
        if current is None:
            return None
        key = (partition, id(current.session))
        if key not in self.sittings:
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            ours = partition.graph.options.ort_session_options is None
            shadow = with_profiler(functools.partial(partition.twin, args), folder, ours=ours)
            if shadow is None:
                return None
            twin = ProfilerTwin(shadow.session, len(shadow.model.graph.node))
            self.sittings[key] = _Sitting(shadow=shadow, partition=partition, folder=folder, twin=twin)
        return self.sittings[key]


def profile(targets: CompiledTargets, recorder: Recorder, args: tuple[Any, ...], kwargs: Mapping[str, Any], repeats: Repeats) -> None:
    """Fill the table of kernels by calling the first target; partitions that are left when the time is over become a finding."""
    count = len(_partitions(targets))
    with tempfile.TemporaryDirectory(prefix="ortlens-profile-", ignore_cleanup_errors=True) as folder:
        with progress("profiling", count * (repeats.most + 1), "run") as step:
            profiler = _Profiler(repeats=repeats, folder=Path(folder), cost=profiles.measure_cost(), step=step)
            for _ in range(_MAX_CALLS):
                before = {partition for partition in _partitions(targets) if partition.sessions}
                with in_all(partition.around(functools.partial(profiler.around, partition)) for partition in before - profiler.seen):
                    targets.call(args, kwargs)
                if not any(partition.sessions and partition not in before for partition in _partitions(targets)):
                    break  # else it created sessions, which are not profiled yet
        present = _partitions(targets)
        for sitting in profiler.sittings.values():
            _recorded(sitting, profiler, recorder, is_present=sitting.partition in present)
        for partition, error in profiler.failures.items():
            _failed(recorder, partition.partition_id if partition in present else None, error)
        left = [partition.partition_id for partition in present if partition in profiler.left_out]
        _note_left(recorder, left, len(profiler.seen), repeats.budget)
    if not profiler.sittings and not profiler.failures:
        raise UsageError(
            "there is nothing to profile: no partition ran in ONNX Runtime during the call"
            + ("; the table fallbacks has the reasons" if recorder.count(r.Fallback) else "")
        )


def _partitions(targets: CompiledTargets) -> list[ObservedPartition]:
    return [partition for graph in targets.graphs() for partition in graph.partitions()]


def _recorded(sitting: _Sitting, profiler: _Profiler, recorder: Recorder, *, is_present: bool) -> None:
    """Record the profile of one session; a failure becomes a finding."""
    shadow, partition = sitting.shadow, sitting.partition
    if not is_present or shadow.session_id is None or partition in profiler.failures:
        shadow.session.end_profiling()
        return
    identity = partition.identity
    try:
        profiled = ProfiledSession(
            session_id=shadow.session_id,
            model_id=None if identity is None else identity.model_id,
            twin=sitting.twin,
            model=shadow.model,
            optimized=without_weights(sitting.folder / "optimized.onnx", partition.model),
            compute=[node.name for node in partition.part.nodes],
            nodes={node.node: node for node in recorder.records(r.Node) if identity and node.graph_id == identity.graph_id},
        )
        record_profile(recorder, profiled, profiler.cost)
    except Exception as error:  # noqa: BLE001 - as in `around`
        profiler.failures[partition] = error


def _note_left(recorder: Recorder, left: Sequence[str | None], count: int, budget: TimeBudget) -> None:
    """Record a finding about partitions that the time was not enough for; that of an earlier profile goes."""
    findings = []
    if left:
        findings.append(
            r.Finding(
                rule="profile_cut_short",
                subject=left[0],
                severity="info",
                title=f"{len(left)} of {counted(count, 'partition')} were not profiled: {budget.over}",
                evidence=f"without kernels: {', '.join(map(str, left))}"[:2000],
                hazard="What is said of kernels holds for the profiled partitions only.",
                mitigation="Profile again, with more time.",
            )
        )
    recorder.replace_findings(("profile_cut_short",), findings)


def _failed(recorder: Recorder, subject: str | None, error: Exception) -> None:
    recorder.add(
        r.Finding(
            rule="profile_failed",
            subject=subject,
            severity="warning",
            title=f"{subject or 'a partition'} could not be profiled; it has no kernels",
            evidence=f"{type(error).__name__}: {error}"[:2000],
            hazard="Only its total time is known. The results of the model are correct.",
            mitigation="Profile again, with a smaller repeat if the evidence mentions missing runs.",
        )
    )
