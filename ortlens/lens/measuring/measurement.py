"""Everything that is measured about a call: its ledger, and what it would take in other ways.

Each partition, and each graph as a whole, is timed against PyTorch on the inputs of one observed call. A partition is compared with its
own ATen nodes, which PyTorch would run if the partition were left to it. A graph is compared with the operations that Dynamo recorded,
which are those of the program: PyTorch has faster ways for some of them than the ATen nodes show, and writes in place where the compiled
graph returns a new value that is copied back. Both sides run beside the compiled code and count nowhere. Inputs that the program writes to
are copies.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._process import heap_bytes, usable_cores
from ortlens.analysis.memory import peak_of
from ortlens.analysis.problems.calls import is_costly_to_enter
from ortlens.analysis.problems.movement import LARGE_OUTPUTS
from ortlens.analysis.problems.stream import findings_of
from ortlens.backend.basis.ab_timing import clocked, compare_briefly, waiting_for
from ortlens.backend.observed import CUDA, FIRST_RUNS, WeightChanged, in_all, uncounted_eager
from ortlens.lens.measuring import probes
from ortlens.lens.measuring.ledger_pass import MAX_CALLS, MEASURE_NS, LedgerPass
from ortlens.lens.measuring.operators import count_operators
from ortlens.lens.measuring.probes import as_entered, instead, observe, timed
from ortlens.trace import records as r
from ortlens.trace.guard import lens_failed, lens_guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import CodeType

    from ortlens.analysis.ledger import StepReading
    from ortlens.analysis.speed import AbTiming
    from ortlens.backend.observed import ObservedGraph, ObservedPartition, PartitionRun
    from ortlens.lens.measuring.probes import Ran
    from ortlens.lens.observing.listener import DynamoWatch
    from ortlens.trace.recorder import Recorder


class Calls:
    """Calls a target, and remembers how often, what it returned and raised, to tell its failures from those of a measurement."""

    def __init__(self, call: Callable[[], Any]) -> None:
        """Begin without a call."""
        self._call = call
        self.made = 0
        self.result: Any = None
        self.raised: BaseException | None = None

    def __call__(self) -> Any:
        """Call the target."""
        self.made += 1
        try:
            self.result = self._call()
        except BaseException as error:
            self.raised = error
            raise
        return self.result


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Measures calls for a lens."""

    recorder: Recorder
    watch: DynamoWatch
    graphs: Callable[[], tuple[ObservedGraph, ...]]  # those that are compiled now
    originals: Mapping[str | None, torch.fx.GraphModule] | None  # Dynamo's, by compile id; None where the backend is not ours
    steps: list[StepReading] | None  # calls of the model inside the `generate` that is measured
    captured: Callable[[], r.Capture]  # the capture so far
    try_freezing: Callable[..., None]  # notes whether the target can be frozen, unless calls are `counted`
    time_guards: Callable[[Callable[[], Any]], None]  # notes the guards of the target

    def run(self, call: Callable[[], Any], *, made: int = 0, **limits: Any) -> Any:
        """Measure a call, and return its last result; `made` calls prepared it, and limits are those of `LedgerPass.measure`."""
        calls = Calls(call)
        try:
            return self._measured(calls, made, **limits)
        except Exception as error:
            if error is calls.raised:
                raise
            lens_failed(self.recorder, "measuring calls", error)
            return calls.result if calls.made else call()

    def _measured(self, call: Calls, made: int, **limits: Any) -> Any:
        ledger = LedgerPass(self.recorder, self.watch, self.graphs, self.steps)
        most = limits.pop("max_calls", MAX_CALLS)
        if self.originals is not None and most > 1:  # the call that is observed counts as one of them
            before = ledger.work()
            time_against_torch(self.recorder, self.graphs(), self.originals, call)
            ledger.note_work(ledger.work(), before)
            most -= 1
        result = ledger.measure(call, max_calls=most, **limits)
        if ledger.found_none:
            by_dynamo = bool(self.watch.started)  # the calls before compiled the target; an exported program was compiled without them
            self.recorder.note(
                ledger_made=call.made + made,
                ledger_compiling=ledger.compiling + (made if by_dynamo else 0),
                ledger_creating=ledger.creating + (0 if by_dynamo else made),
            )
        counted, uncompiled = limits.get("budget_ns", MEASURE_NS) is None, limits.get("uncompiled")
        if uncompiled is not None and (dropped := _torch.dropped_functions()):
            note_dropped(self.recorder, call, uncompiled, dropped)
        with lens_guard(self.recorder, "trying to freeze"):
            if not ledger.found_none and is_costly_to_enter(self.captured()):
                self.try_freezing(call, counted=counted)
        if not counted and uncompiled is not None:
            with lens_guard(self.recorder, "counting operators"):
                count_operators(self.recorder, call, uncompiled)
        if not counted and not ledger.found_none:  # else they vary
            if any((session.kept_bytes or 0) >= MUCH_MEMORY for session in self.recorder.records(r.Session)):
                note_allocations(self.recorder, call, uncompiled)
            with lens_guard(self.recorder, "timing fresh memory"):
                note_fresh_memory(self.recorder)
            with lens_guard(self.recorder, "timing guards"):
                parts = self.recorder.records(r.LedgerPart)
                entering = sum(part.ns for part in parts if part.part == "guards")
                is_whole = not self.recorder.records(r.Break)  # else breaks are what the guards come from
                if is_whole and entering >= max(_GUARDS_NS, _GUARDS_SHARE * sum(part.ns for part in parts)):
                    self.time_guards(call)
            self._try_without_guards(call, ledger.wait)
            if max((session.threads or 0 for session in self.recorder.records(r.Session)), default=0) > usable_cores():
                known = next((item.record() for item in findings_of(self.captured()) if item.rule == "too_many_threads"), None)
                probes.try_fewer_threads(self.recorder, self.graphs(), call, known, MEASURE_NS)
        return result

    def _try_without_guards(self, call: Callable[[], Any], wait: Callable[[], None]) -> None:
        """Measure how much of a call is guards, where entering graphs takes much of it."""
        by_dynamo = {graph.graph_id for graph in self.recorder.records(r.Graph) if graph.compile_id}  # an exported program has no guards
        parts = self.recorder.records(r.LedgerPart)
        entering = [part.ns for part in parts if part.part == "guards" and part.graph_id in by_dynamo]
        entered = probes.GuardedCalls(
            several=len(entering) > 1,
            breaks=bool(self.recorder.records(r.Break)),
            generates=self.steps is not None,
            freeze_call=self.captured().figures.freeze_call,
        )
        if sum(entering) >= max(probes.GUARDS_NS, entered.worth_share * sum(part.ns for part in parts)):
            probes.try_without_guards(self.recorder, call, wait, MEASURE_NS, entered)


_GUARDS_NS, _GUARDS_SHARE = 20_000, 0.1  # of a call, from which its guards are timed one container after the other
EACH_NS = 200_000_000  # time for one partition or graph
ALL_NS = 2_000_000_000  # time for all of them; the most expensive are timed first
_KNOWN_OPERATORS = ("aten", "prims", "prim", "_operator", "math")
"""Operators without effects of their own. Others, of the user's, are not called beyond the calls of the target."""


def time_against_torch(
    recorder: Recorder,
    graphs: Iterable[ObservedGraph],
    originals: Mapping[str | None, torch.fx.GraphModule],
    call: Callable[[], Any],
) -> Any:
    """Call the target once and return its result; record the times of what it ran, in both ways. `originals` are Dynamo's graphs."""
    entered, ran, result = observe(graphs, call)
    trials: list[tuple[type[r.Graph | r.Partition], str, Callable[[int], AbTiming | None]]] = [
        *((r.Graph, str(item.subject.graph_id), partial(_whole, item, originals)) for item in entered),
        *((r.Partition, str(item.subject.partition_id), partial(_alone, item)) for item in ran),
    ]
    with (
        lens_guard(recorder, "timing a partition against PyTorch"),
        uncounted_eager(recorder),
        torch.no_grad(),
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
    ):
        deadline = time.perf_counter_ns() + ALL_NS
        for kind, key, compare in trials:
            left = deadline - time.perf_counter_ns()
            with contextlib.suppress(WeightChanged):  # layers that share their code: the session now holds the weights of another one
                compared = compare(min(EACH_NS, left)) if left > 0 else None
                if compared is not None:
                    ort_ns, torch_ns = compared.least_ns
                    recorder.amend(kind, key, ort_ns=ort_ns, torch_ns=torch_ns, is_slower=compared.is_faster)
        deadline = time.perf_counter_ns() + ALL_NS
        for item in ran:
            if time.perf_counter_ns() < deadline:
                _note_kept(recorder, item)
    return result


MUCH_MEMORY = 32 << 20
"""Bytes of activations from which memory is measured: of less, the rest of the process is the larger part."""
_MOST_COPIED = 1 << 30  # bytes of weights that a second session may pack once more


def _note_kept(recorder: Recorder, ran: Ran[ObservedPartition]) -> None:
    """Measure what a session keeps for activations, on a second one like it: nothing reports that of the one in use."""
    partition, info = ran.subject, ran.subject.latest
    nodes = [row for row in recorder.records(r.Node) if row.partition_id == partition.partition_id]
    is_dear = max(info.create_ns, ran.ns // ran.count) > ALL_NS // 2 or (info.held_bytes or 0) > _MOST_COPIED
    if is_dear or peak_of(nodes, ()).bytes < MUCH_MEMORY or info.providers[:1] != ("CPUExecutionProvider",):
        return
    values = partition.with_copies(ran.values)
    twin = partition.twin(values)
    if twin is None or (before := heap_bytes()) is None:
        return
    run = partition.uncounted(twin.session)
    for _ in range(FIRST_RUNS):
        run(*values)
    recorder.amend(r.Session, twin.session_id, kept_bytes=max((heap_bytes() or 0) - before, 0))


def note_allocations(recorder: Recorder, call: Callable[[], Any], uncompiled: Callable[[], Any] | None) -> None:
    """Count what PyTorch allocates in one call, as compiled and as it is."""

    def allocated(way: Callable[[], Any]) -> tuple[int, int]:
        sizes: list[int] = []
        with _torch.record_allocations(sizes):
            way()
        return max(accumulate(sizes, initial=0)), sum(size > 0 for size in sizes)

    peak, count = allocated(call)
    recorder.note(peak_bytes=peak, allocations=count)
    if uncompiled is not None:
        with _torch.uncompiled():
            peak, count = allocated(uncompiled)
        recorder.note(uncompiled_peak_bytes=peak, uncompiled_allocations=count)


def note_dropped(recorder: Recorder, call: Callable[[], Any], uncompiled: Callable[[], Any], dropped: Mapping[CodeType, str]) -> None:
    """Note which functions a call in PyTorch runs, and a compiled one does not, of those that may be left out: `dropped`, by code."""
    with _torch.uncompiled():
        ran = _codes_run(uncompiled)
    left = (ran - _codes_run(call)) & dropped.keys()  # a function that PyTorch gave up runs them as it is
    recorder.note(dropped=tuple(sorted(dropped[code] for code in left)))


def _codes_run(call: Callable[[], Any]) -> set[CodeType]:
    ran, before = set[Any](), sys.getprofile()
    sys.setprofile(lambda frame, *_: ran.add(frame.f_code))
    try:
        call()
    finally:
        sys.setprofile(before)
    return ran


def note_fresh_memory(recorder: Recorder) -> None:
    """Measure what fresh memory costs in the sizes of the largest result, where results are large and in the host's memory."""
    elsewhere = {session.partition_id for session in recorder.records(r.Session) if CUDA in session.providers}
    made = (row for row in recorder.records(r.Node) if row.is_output and row.partition_id not in (None, *elsewhere))
    size = max((row.output_bytes or 0 for row in made), default=0)
    if not LARGE_OUTPUTS <= size <= _MOST_COPIED:
        return
    kept = torch.empty(size, dtype=torch.uint8, device="cpu")

    def fresh() -> None:  # and give it back, as a call does whose result is dropped
        torch.empty(size, dtype=torch.uint8, device="cpu").fill_(1)

    fresh_ns, again_ns = compare_briefly(clocked(fresh), clocked(lambda: kept.fill_(1)), EACH_NS).least_ns
    recorder.note(fresh_mib_ns=max(fresh_ns - again_ns, 0) / (size >> 20))


def _alone(ran: Ran[ObservedPartition], budget_ns: int) -> AbTiming | None:
    """Time a partition in its session against its nodes in PyTorch; None where PyTorch's kernels refuse what ONNX Runtime takes."""
    partition, values = ran.subject, ran.subject.with_copies(ran.values)
    nodes = timed(partition.part.module, values)
    try:
        nodes()
    except RuntimeError:
        return None
    return compare_briefly(timed(_updating(partition), values), nodes, budget_ns)


def _updating(partition: ObservedPartition) -> PartitionRun:
    """Return a function that runs a partition as usual, with updates in place, but uncounted."""
    return partition.uncounted(partition.latest.session, updates=True)


def _whole(item: Ran[ObservedGraph], originals: Mapping[str | None, torch.fx.GraphModule], budget_ns: int) -> AbTiming | None:
    """Time a compiled graph against Dynamo's graph. Both work on copies of the inputs that they write to."""
    original, graph, mutated = _original(item, originals), item.subject, item.subject.mutated
    if original is None:
        return None
    args = list(item.values)
    for place in mutated:
        args[place] = args[place].clone()
    entered = as_entered(args)
    advancing = [place for place in mutated if entered[place] is not args[place]]
    aliases = [value.detach() if isinstance(value, torch.Tensor) else value for value in args]  # the original may change sizes in place

    run = graph.unlogged()

    def compiled() -> list[Any]:
        outputs = run(list(args))
        for place, value in zip(mutated, outputs, strict=False):
            args[place].copy_(value)
        return outputs

    wait = waiting_for(args)
    single = (partition for partition in graph.partitions() if partition.is_single)  # PyTorch runs the others
    with in_all(partition.around(instead(_updating(partition))) for partition in single):
        ways = (clocked(compiled, wait), clocked(lambda: original(*aliases), wait))
        ours, theirs = (_from(way, args, entered, advancing) for way in ways)
        return compare_briefly(ours, theirs, budget_ns)


def _original(item: Ran[ObservedGraph], originals: Mapping[str | None, torch.fx.GraphModule]) -> torch.fx.GraphModule | None:
    """Find Dynamo's graph, if it can be run on the same inputs and has no effects but the known ones."""
    graph, found, partitions = item.subject, originals.get(item.subject.compile_id), item.subject.partitions()
    sure = all(len(partition.sessions) <= 1 for partition in partitions)  # of one per size, it is not known which one runs
    if found is None or graph.phase != "inference" or not partitions or not sure or _torch.holds_transforms(found):
        return None
    wanted = [_torch.example_of(node) for node in found.graph.find_nodes(op="placeholder")]
    same = len(wanted) == len(item.values) and all(map(_fits, wanted, item.values))
    return found if same and all(map(_is_known, graph.nodes_in_torch())) else None


def _from(way: Callable[[], int], args: list[Any], entered: tuple[Any, ...], places: list[int]) -> Callable[[], int]:
    """Begin each run with what small inputs held at first, such as a position that a run advances. Both ways share their memory."""
    if not places:
        return way

    def anew() -> int:
        for place in places:
            args[place].copy_(entered[place])
        return way()

    return anew


def _fits(wanted: Any, given: Any) -> bool:
    kinds = [(value.dtype, value.dim(), value.device) if isinstance(value, torch.Tensor) else None for value in (wanted, given)]
    return kinds[0] == kinds[1]


def _is_known(node: torch.fx.Node) -> bool:
    target: Any = node.target
    name = target.namespace if hasattr(target, "namespace") else getattr(target, "__module__", "")
    return name in _KNOWN_OPERATORS
