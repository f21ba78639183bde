"""The ledger pass: call the target several times, with a clock around every graph, then in turns with the target as it is.

The turns say what a call takes, and are the lens's only comparison with PyTorch: both sides get the same untimed calls, the same number of
timed ones and the median, and nothing of the lens runs in them. The clocked calls say which parts that time has.

The compiled code does not change: `watching.around_calls` reads the clock around a graph, and the logs of sessions and nodes hold
readings of the same clock for what happens inside. A device works while the host goes on: these readings are the host's, and the time from
the return of a call until the device is done is a part of its own. Graphs of another backend log whole calls and need no wrapping.
Rejected: `sys.setprofile` and torch's profiler around the whole call, which cost more than they would measure. The profiler is used for
the cache lookups of Dynamo only, in calls of their own.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens._process import CoreWatch
from ortlens.analysis.coverage import is_backward_of
from ortlens.analysis.generation import first_token_ns, steps_of
from ortlens.analysis.index import summed
from ortlens.analysis.ledger import (
    CallTrace,
    GraphVisit,
    SessionTime,
    SteppedCall,
    StepReading,
    Surroundings,
    entries_of,
    ledger_from_calls,
    lookups_ahead,
    middle_half,
)
from ortlens.analysis.speed import MIN_CALLS, AbTiming
from ortlens.backend.basis.ab_timing import clocked, no_wait, shortest_of_few, take_turns, waiting_for
from ortlens.backend.observed import in_all, unlogged
from ortlens.trace import records as r
from ortlens.trace.guard import lens_guard
from ortlens.trace.runlog import CAPACITY

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.backend.observed import ObservedGraph
    from ortlens.lens.observing.listener import DynamoWatch
    from ortlens.trace.recorder import Recorder

MEASURE_NS = 500_000_000  # time limit of `Lens.measure`
MAX_CALLS = 60
_CLOCKED_SHARE = 0.4  # of the time, for the calls with clocks; the others are for the turns
_TURNS, _FEWEST_TURNS = 10, 2  # a half is one turn at least
_MORE = 2  # calls beyond the time limit, where each so far created sessions: weights are frozen again at most twice, then become inputs
_ENOUGH = 8  # calls whose spread says something
_EVERY, _FIRST = 8, 3  # calls that time Dynamo's lookups, spread among the others so that all run under the same load
_TURN_GENERATING = 2  # a compiled `generate`, an uncompiled one, a compiled one: each has many steps, of which few find cold caches


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What was done so far that later calls need not do again: equal before and after a call whose time says something."""

    compiled: int  # Dynamo compiles functions without a graph too, an exported program has only graphs
    created: int  # sessions, by their ids
    attempts: int  # to create a session: one that ONNX Runtime refuses has no id


@dataclass(slots=True)
class LedgerPass:
    """Measures calls of one target; records the ledger and the cost of each break."""

    recorder: Recorder
    watch: DynamoWatch
    graphs: Callable[[], tuple[ObservedGraph, ...]]
    steps: list[StepReading] | None = None  # takes the calls of a model inside `generate`, if the target is such a method
    wait: Callable[[], None] = field(default_factory=waiting_for)  # waits for the devices of the target
    compiling: int = 0  # calls that compiled something, which are not comparable
    creating: int = 0  # calls that compiled nothing, but created a session: another size came, or a frozen weight changed
    found_none: bool = False  # whether each call to be timed was one of these
    _thread: int = field(default_factory=threading.get_ident)
    _stays: list[tuple[str, int, int]] = field(default_factory=list)  # graph, entered, left; in the present call
    _calls: list[_TimedCall] = field(default_factory=list)
    # those that created sessions: their times say nothing, but they enter the same graphs
    _preparing: list[_TimedCall] = field(default_factory=list)
    _uncompiled_steps: list[SteppedCall] = field(default_factory=list)

    def work(self) -> Work:
        """Read what was compiled and created so far; nothing is counted in a call itself, except where a session is created."""
        return Work(
            compiled=len(self.watch.started) + self.recorder.count(r.Graph),
            created=self.recorder.ids_given("s"),
            attempts=sum(partition.attempts for graph in self.graphs() for partition in graph.partitions()),
        )

    def measure(
        self,
        call: Callable[[], Any],
        *,
        max_calls: int = MAX_CALLS,
        budget_ns: int | None = MEASURE_NS,
        uncompiled: Callable[[], Any] | None = None,
    ) -> Any:
        """Call the compiled target several times, in turns with `uncompiled`; record where the time went, and return the last result."""
        started, in_turns = time.perf_counter_ns(), uncompiled is not None and self.steps is None
        deadline = None if budget_ns is None else started + round(budget_ns * (_CLOCKED_SHARE if in_turns else 1))
        cores = CoreWatch()
        result = self._make_calls(call, max_calls, deadline, None if in_turns else uncompiled)
        self.found_none = not self._calls
        turns = None
        if uncompiled is not None and in_turns and self._calls:
            turns = self._take_turns(call, uncompiled, None if budget_ns is None else started + budget_ns)
        shares = cores.shares()
        with lens_guard(self.recorder, "measuring a call"):
            self._read_logs()
            self._write(shares, turns)
        return result

    def _take_turns(self, call: Callable[[], Any], uncompiled: Callable[[], Any], deadline: int | None) -> AbTiming | None:
        """Time the target as it is and as compiled, in turns that compile and create nothing; None where time is short."""
        clock, usual = time.perf_counter_ns, min(made.ended - made.started for made in self._calls)
        if deadline is not None and clock() + _FEWEST_TURNS * usual > deadline:
            return None
        plain, fast = (shortest_of_few(run, self.wait, usual_ns=usual) for run in (uncompiled, call))

        def eager() -> int:
            with _torch.uncompiled():  # what the target itself compiled is PyTorch here
                return plain()

        def compiled() -> int | None:
            known, shortest = self.work(), fast()
            return shortest if self.work() == known else None

        with unlogged(self.graphs()):
            turns = take_turns(
                (eager, compiled), fewest=_FEWEST_TURNS, most=_TURNS, is_over=lambda: deadline is not None and clock() > deadline
            )
        steady = [(plain_ns, fast_ns) for plain_ns, fast_ns in zip(*turns, strict=True) if fast_ns is not None]
        return AbTiming(*zip(*steady, strict=True)) if len(steady) >= _FEWEST_TURNS else None

    def _make_calls(self, call: Callable[[], Any], max_calls: int, deadline: int | None, uncompiled: Callable[[], Any] | None) -> Any:
        """Make calls with a clock around each graph; when a call prepares another graph, that one is included from the next call on."""
        # Before the first graph of a function there are only guards.
        is_split = len(self.recorder.records(r.Graph)) > 1 or bool(self.recorder.records(r.Break)) or self.steps is not None
        first = _FIRST if self.steps is None else _TURN_GENERATING
        fewest = 1 if self.steps is None or uncompiled is None else first + 1  # a generation is compared, however long it takes
        result, made = None, 0
        while made < max_calls:
            known, graphs = self.work(), self.graphs()
            inputs = [node.meta.get("val") for graph in graphs for node in graph.lowered.graph.find_nodes(op="placeholder")]
            self.wait = waiting_for(inputs, result)
            timed = ((graph, graph.graph_id) for graph in graphs if graph.graph_id is not None and graph.is_prepared)
            with in_all(graph.around(self._clock(graph_id)) for graph, graph_id in timed):
                while made < max_calls and self.work() == known:
                    if uncompiled is not None and made % _TURN_GENERATING == _TURN_GENERATING - 1:
                        self._generate_uncompiled(uncompiled)
                    result = self._make_call(call, known, listen=is_split and len(self._calls) % _EVERY == first)
                    made += 1
                    if made == 1:  # graphs of another backend are not known
                        self.wait = waiting_for(inputs, result)
                    least = fewest if self._calls or self.compiling else fewest + _MORE  # that each creates sessions soon ends
                    if deadline is not None and time.perf_counter_ns() > deadline and made >= least:
                        return result
        return result

    def _generate_uncompiled(self, call: Callable[[], Any]) -> None:
        steps = self.steps if self.steps is not None else []
        steps.clear()
        with _torch.uncompiled():
            wall_ns = clocked(call, self.wait)()
        self._uncompiled_steps.append(SteppedCall(wall_ns, tuple(steps)))

    def _make_call(self, call: Callable[[], Any], known: Work, *, listen: bool) -> Any:
        clock = time.perf_counter_ns
        self._stays.clear()
        steps = self.steps if self.steps is not None else []
        steps.clear()
        before = self._eager_ns()
        heard: list[tuple[bool, int, int]] = []
        with _torch.record_lookups(heard) if listen else contextlib.nullcontext():
            self.wait()
            used, started = time.process_time_ns(), clock()
            result = call()
            returned = clock()
            self.wait()
            ended = returned if self.wait is no_wait else clock()
            used = time.process_time_ns() - used
        done = self.work()
        self.note_work(done, known)
        if done.compiled == known.compiled:
            eager = {node: ns - before.get(node, 0) for node, ns in self._eager_ns().items()}
            made = _TimedCall(
                started,
                ended,
                stays=list(self._stays),
                eager_ns=eager,
                heard=tuple(heard),
                listened=listen,
                steps=tuple(steps),
                waited_ns=ended - returned,
                cpu_ns=used,
            )
            (self._calls if done == known else self._preparing).append(made)
        return result

    def note_work(self, done: Work, before: Work) -> None:
        """Count a call that is not in the ledger, unless it compiled and created nothing."""
        if done.compiled != before.compiled:
            self.compiling += 1
        elif done != before:
            self.creating += 1

    def _clock(self, graph_id: str) -> Callable[[Callable[[list[Any]], list[Any]], list[Any]], list[Any]]:
        """Return a wrapper of the calls of a graph that reads the clock before and after."""
        clock, ident, own, note = time.perf_counter_ns, threading.get_ident, self._thread, self._stays.append

        def through(inner: Callable[[list[Any]], list[Any]], args: list[Any]) -> list[Any]:
            if ident() != own:  # the call of another thread is not measured
                return inner(args)
            entered = clock()
            outputs = inner(args)
            left = clock()
            note((graph_id, entered, left))
            return outputs

        return through

    def _eager_ns(self) -> dict[tuple[str, str], int]:
        """Return the time so far of the nodes that PyTorch runs, by graph id and node."""
        logs = self.recorder.logs()[1]
        return {(graph_id, node): ns for graph_id, log in logs.items() for node, ns in zip(log.nodes, log.total_ns, strict=True)}

    def _read_logs(self) -> None:
        """Assign the entries of the logs to the calls. Calls that a full ring buffer no longer holds are dropped."""
        starts = [call.started for call in self._calls]
        oldest = 0
        for log in self.recorder.logs()[0]:
            rows = [row for row in log.rows() if row[5] == self._thread]
            if len(rows) >= CAPACITY - 1:
                oldest = max(oldest, rows[0][1])
            for _, start, bound, ran, done, _ in rows:
                place = bisect_right(starts, start) - 1
                if place >= 0 and done <= self._calls[place].ended and log.graph_id is not None:
                    self._calls[place].add(log.graph_id, (start, bound, ran, done), foreign=log.session_id is None)
        self._calls = [call for call in self._calls if call.started >= oldest]

    def _write(self, cores: tuple[float, float] | None, turns: AbTiming | None) -> None:
        """Record the ledger and the costs of the breaks, if a call entered a graph; `cores` are those that others had, and idle ones."""
        calls = [call for call in self._calls if not call.listened]
        traces = [call.trace() for call in calls]
        for graph_id, times in entries_of(traces or [call.trace() for call in self._preparing]).items():
            self.recorder.amend(r.Graph, graph_id, entries_per_call=times)
        own = [trace.wall_ns for trace in traces if trace.visits]
        walls = own if turns is None else turns.other
        kept = walls if turns is None or len(walls) >= MIN_CALLS else (*own, *walls)  # clocks cost little of calls that are so long
        # What the steps of a generation take is a mean, on both sides.
        ledger = ledger_from_calls(traces, self._surroundings(), statistics.median(walls) if walls and self.steps is None else None)
        if not ledger.parts:
            return
        figures: dict[str, Any] = {"ledger_calls": ledger.calls, "ledger_walls": tuple(kept)}
        figures["ledger_cpu_ns"] = round(statistics.median(call.cpu_ns for call in calls or self._preparing))
        if len(walls) >= _ENOUGH:
            figures["ledger_spread"] = statistics.median(walls) / max(min(walls), 1)  # how busy the machine was
        if cores is not None:
            figures["ledger_others"], figures["ledger_idle"] = cores
        uncompiled_ns = 0
        if turns is not None:
            uncompiled_ns = turns.base_ns
            figures["turns_low"], *_, figures["turns_high"] = sorted(turns.pass_ratios)
        self.recorder.replace_all(r.LedgerPart, ledger.parts)
        if self.steps is not None:
            generations = middle_half([call for call in traces if call.visits])
            steps = steps_of(generations, self._uncompiled_steps)
            self.recorder.replace_all(r.Step, steps)
            figures["first_token_ns"] = first_token_ns(generations)
            uncompiled_ns = sum(step.uncompiled_ns or 0 for step in steps)
        self.recorder.note(**figures, **({"uncompiled_ns": uncompiled_ns} if uncompiled_ns else {}))
        readings = {call.started: call.eager_ns for call in calls}  # of the ledger's own calls: else a node may take more than its part
        booked = [readings[call.started_ns] for call in middle_half([call for call in traces if call.visits])]
        for node in self._eager_ns():
            self.recorder.amend(r.Fallback, node, call_ns=round(ledger.scale * statistics.fmean(eager.get(node, 0) for eager in booked)))
        for known in self.recorder.records(r.Break):
            between, overhead, entering = (
                costs.get(known.break_id) for costs in (ledger.between_ns, ledger.overhead_ns, ledger.entering_ns)
            )
            cost = None if overhead is None else max(overhead + (entering or 0), known.saved_ns or 0)
            self.recorder.amend(r.Break, known.break_id, cost_ns=cost, overhead_ns=overhead, entering_ns=entering, between_ns=between)

    def _surroundings(self) -> Surroundings:
        graphs = [graph for graph in self.recorder.records(r.Graph) if graph.phase != "backward"]
        lookup_ns, last_lookup_ns = lookups_ahead(call.trace() for call in self._calls if call.listened)
        ahead = {graph.graph_id: self.watch.break_ahead(graph.compile_id) for graph in graphs}
        ahead |= self._ahead_of_backward()
        last = [break_id for break_id in self.watch.last_breaks() if break_id not in ahead.values()]
        slots = {graph_id: set(log.nodes) for graph_id, log in self.recorder.logs()[1].items()}
        held = {graph.compile_id for graph in graphs}
        # A frame without a graph may run user code after the graphs of the functions that it calls.
        skipped = any(not held.issuperset(known.compile_ids) for known in self.recorder.records(r.Break))
        return Surroundings(
            lookup_ns=lookup_ns,
            last_lookup_ns=last_lookup_ns,
            break_ahead={graph_id: break_id for graph_id, break_id in ahead.items() if break_id is not None},
            last_break=last[0] if len(last) == 1 else None,
            has_python_before=self.steps is not None,
            is_whole_model=self.steps is not None and not self.recorder.records(r.Break),
            has_python_after=bool(last) or skipped or self.steps is not None,
            # PyTorch runs untimed nodes: of a partition that failed, or that is left to PyTorch as a whole.
            unclocked=frozenset(row.graph_id for row in self.recorder.records(r.Fallback) if row.node not in slots.get(row.graph_id, ())),
            partitions=Counter(part.graph_id for part in self.recorder.records(r.Partition)),
        )

    def _ahead_of_backward(self) -> dict[str, str | None]:
        """Find the break that ended a forward at `backward()`, by the graph of the backward that runs right after it."""
        graphs = {graph.graph_id: graph for graph in self.recorder.records(r.Graph)}
        ended: dict[str | None, str] = {
            compile_id: known.break_id for known in self.recorder.records(r.Break) for compile_id in known.compile_ids
        }
        found: dict[str, str | None] = {}
        for call in self._calls:
            for before, behind in pairwise(visit.graph_id for visit in call.trace().visits):
                compile_id = graphs[behind].compile_id
                if is_backward_of(graphs[behind], graphs[before]) and compile_id in ended:
                    found[behind] = ended[compile_id]
        return found


@dataclass(slots=True)
class _TimedCall:
    """Readings of one call."""

    started: int
    ended: int
    stays: list[tuple[str, int, int]]
    eager_ns: dict[tuple[str, str], int]
    heard: tuple[tuple[bool, int, int], ...]
    listened: bool
    steps: tuple[StepReading, ...] = ()
    waited_ns: int = 0
    cpu_ns: int = 0
    sessions: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0, 0]))

    def add(self, graph_id: str, readings: tuple[int, int, int, int], *, foreign: bool) -> None:
        """Add a run of a session, or a call of a whole graph of another backend."""
        start, bound, ran, done = readings
        for place, ns in enumerate((0, 0, 0, done - start) if foreign else (bound - start, ran - bound, done - ran)):
            self.sessions[graph_id][place] += ns
        if foreign:
            self.stays.append((graph_id, start, done))

    def trace(self) -> CallTrace:
        """Put the readings into the form that `analysis.ledger` takes."""
        stays = sorted(self.stays, key=lambda stay: stay[1])
        return CallTrace(
            started_ns=self.started,
            ended_ns=self.ended,
            visits=tuple(GraphVisit(graph_id=graph_id, entered_ns=entered, left_ns=left) for graph_id, entered, left in stays),
            sessions={
                graph_id: SessionTime(bind_ns=bind, run_ns=run, output_ns=output, foreign_ns=foreign)
                for graph_id, (bind, run, output, foreign) in self.sessions.items()
            },
            eager_ns=summed((graph_id, ns) for (graph_id, _), ns in self.eager_ns.items()),
            heard=self.heard,
            steps=self.steps,
            waited_ns=self.waited_ns,
        )
