"""The ledger of a call: its wall time, part by part, with a residual.

It turns the clock readings of some calls into rows that add up to the time of a call: the median, of calls without the lens's clocks if
such were made. What the rows share out is a mean over the middle half of the clocked calls by wall time: a mean adds up exactly, and
outliers are excluded. Rejected: the median of each part on its own, since medians of parts do not add up to the median of the whole, and
the difference would look like a residual.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

from ortlens.analysis.index import grouped, once, summed
from ortlens.analysis.timing import call_time, entries_by_graph, graph_times
from ortlens.trace.records import LedgerPart, LedgerPartName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ortlens.trace.records import Capture

PARTS: tuple[LedgerPartName, ...] = ("guards", "bind", "run", "output", "foreign", "eager", "residual", "wait")
"""The parts in the order in which a call goes through them; `foreign` and `wait` are there only where they took time."""

_Timed = TypeVar("_Timed", "CallTrace", "SteppedCall")
_Book: TypeAlias = "defaultdict[tuple[str, LedgerPartName], float]"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphVisit:
    """One visit to a graph."""

    graph_id: str  # the graph
    entered_ns: int  # clock reading at its entry
    left_ns: int  # clock reading when it was left


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTime:
    """What the sessions of one graph took in one call, in ns."""

    bind_ns: int = 0  # binding
    run_ns: int = 0  # inside ONNX Runtime
    output_ns: int = 0  # returning outputs
    foreign_ns: int = 0  # the whole graph under another backend, which has no session

    @property
    def total_ns(self) -> int:
        """All of it."""
        return self.bind_ns + self.run_ns + self.output_ns + self.foreign_ns


class StepReading(NamedTuple):
    """One call of a model, or of its tokenizer, inside `generate`."""

    apart: Literal["tokenizer", "encode"] | None  # where it is no call of the model, but of its tokenizer or encoder
    started_ns: int  # clock reading before it
    ended_ns: int  # clock reading after it
    rows: int  # rows of the batch, beams included
    positions: int  # positions of the sequence that it computes
    waited_ns: int = 0  # of its time, what was spent at its end to wait for the device


class SteppedCall(NamedTuple):
    """One call of `generate`."""

    wall_ns: int  # its wall time
    readings: tuple[StepReading, ...]  # the calls of the model, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrace:
    """The clock readings of one call of the model."""

    started_ns: int  # before the call
    ended_ns: int  # after it, and after waiting for the device
    visits: tuple[GraphVisit, ...]  # visits to graphs, in order; they do not overlap
    sessions: Mapping[str, SessionTime] = field(default_factory=dict)  # time of the sessions by graph id
    eager_ns: Mapping[str, int] = field(default_factory=dict)  # time of the nodes that PyTorch ran by graph id
    # what Dynamo did, in order: whether it looked for compiled code or ran it, with the readings at both ends; only for calls in which
    # Dynamo was traced, which are slower than the others
    heard: tuple[tuple[bool, int, int], ...] = ()
    steps: tuple[StepReading, ...] = ()  # the calls of the model, where the call is one of its `generate`
    waited_ns: int = 0  # of its time, what was spent after it had returned to wait for the device

    @property
    def wall_ns(self) -> int:
        """Its wall time."""
        return self.ended_ns - self.started_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known about the time outside the graphs."""

    # Dynamo's time before a visit, guards included, by graph id; see `lookups_ahead`
    lookup_ns: Mapping[str, float] = field(default_factory=dict)
    last_lookup_ns: float = 0.0  # Dynamo's look-ups after the last graph of a call
    # the break before a graph, by graph id; a graph at the start of a frame has none
    break_ahead: Mapping[str, str] = field(default_factory=dict)
    last_break: str | None = None  # the break after which no graph follows, when there is exactly one
    has_python_before: bool = False  # whether user code runs before the first graph, as that of `generate` does
    # whether the graphs are all that a model does inside `generate`: what is left of its calls is entering them
    is_whole_model: bool = False
    has_python_after: bool = False  # whether user code runs after the last graph, as it does after such a break
    # graphs with nodes that PyTorch runs without a clock of their own; the time that their sessions leave counts as theirs
    unclocked: Collection[str] = ()
    # how many partitions a visit runs, by graph id; a graph without any is absent
    partitions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where the wall time of a call went."""

    parts: tuple[LedgerPart, ...]  # one row per graph that was entered and part, residual included; empty when no graph was
    between_ns: Mapping[str, int]  # time per call of the program's own code between the graphs that a break parts, by break id
    calls: int  # calls that were averaged
    scale: float = 1.0  # time of a call by the mean of these: what the clocks cost, and what of the middle half is above the median
    # besides, what is Dynamo's there, by break id: looking up compiled code, guards, gathering inputs
    overhead_ns: Mapping[str, int] = field(default_factory=dict)
    entering_ns: Mapping[str, int] = field(default_factory=dict)  # besides, what entering the graphs behind each break takes, by break id


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotals:
    """The ledger of a whole model: sums over its graphs."""

    ns: Mapping[LedgerPartName, int]  # time per call by part; parts that were not measured are absent
    share: Mapping[LedgerPartName, float]  # the same as shares of the sum
    total_ns: int  # the sum; the wall time of a call when measured
    is_measured: bool  # true for measured calls; False when only the logs of sessions and nodes are known, without what lies around them
    graph_ids: tuple[str, ...] = ()  # the graphs


def ledger_from_calls(calls: Sequence[CallTrace], around: Surroundings, call_ns: float | None = None) -> Ledger:
    """Split the time of a call, by default the mean of the middle half, into parts; calls that entered no graph are left out."""
    middle = middle_half([call for call in calls if call.visits])
    book: _Book = defaultdict(float)
    between: defaultdict[str, float] = defaultdict(float)
    overhead: defaultdict[str, float] = defaultdict(float)
    entering: defaultdict[str, float] = defaultdict(float)
    for call in middle:
        _book_gaps(call, around, book, between, overhead)
        _book_insides(call, around, book)
        _book_entering(call, around, entering)
    wall = sum(call.wall_ns for call in middle)
    scale = 1.0 if call_ns is None or not wall else call_ns * len(middle) / wall
    count = max(len(middle), 1) / scale
    graph_ids = dict.fromkeys(visit.graph_id for call in middle for visit in call.visits)
    parts = [part for part in PARTS if part not in {"foreign", "wait"} or any(book[graph_id, part] for graph_id in graph_ids)]
    rows = {(graph_id, part): round(book[graph_id, part] / count) for graph_id in graph_ids for part in parts}
    betweens, overheads, entries = (
        {break_id: round(ns / count) for break_id, ns in sums.items()} for sums in (between, overhead, entering)
    )
    return Ledger(parts=_parts(rows), between_ns=betweens, calls=len(middle), scale=scale, overhead_ns=overheads, entering_ns=entries)


def entries_of(calls: Sequence[CallTrace]) -> dict[str, float]:
    """Compute how often a call enters each graph: the median by graph id; calls that entered no graph are left out."""
    counts = [Counter(visit.graph_id for visit in call.visits) for call in calls if call.visits]
    return {graph_id: float(median(count[graph_id] for count in counts)) for graph_id in dict.fromkeys(chain.from_iterable(counts))}


def middle_half(calls: Sequence[_Timed]) -> list[_Timed]:
    """Return the calls whose wall time is neither in the lowest quarter nor in the highest."""
    ranked = sorted(calls, key=lambda call: call.wall_ns)
    quarter = len(ranked) // 4
    return ranked[quarter : len(ranked) - quarter]


def _book_gaps(
    call: CallTrace, around: Surroundings, book: _Book, between: defaultdict[str, float], overhead: defaultdict[str, float]
) -> None:
    """Book the time outside the graphs: ahead of each, and after the last."""
    left = call.started_ns
    for number, visit in enumerate(call.visits):
        gap, graph_id = visit.entered_ns - left, visit.graph_id
        broken = around.break_ahead.get(graph_id)
        # No user code runs before the first graph of a function, unless a break precedes it.
        only_guards = number == 0 and broken is None and not around.has_python_before
        guards = gap if only_guards else _entering_ns(call, around, left, visit.entered_ns, around.lookup_ns.get(graph_id, 0.0))
        if waited := _waited_ns(call, around, left, visit.entered_ns):  # for the graph before
            book[call.visits[number - 1].graph_id if number else graph_id, "wait"] += waited
            gap, guards = gap - waited, max(guards - waited, 0)
        book[graph_id, "guards"] += guards
        book[graph_id, "eager"] += gap - guards
        if broken is not None:  # before the first graph, guards run with or without the break
            between[broken] += gap - guards
            overhead[broken] += guards if number else 0
        left = visit.left_ns
    last, returned = call.visits[-1].graph_id, call.ended_ns - call.waited_ns
    waited = _waited_ns(call, around, left, returned)
    tail = returned - left - waited
    guards = max(_entering_ns(call, around, left, returned, around.last_lookup_ns) - waited, 0) if around.has_python_after else tail
    book[last, "wait"] += waited + call.waited_ns
    book[last, "guards"] += guards
    book[last, "eager"] += tail - guards
    if around.last_break is not None:
        between[around.last_break] += tail - guards
        overhead[around.last_break] += guards


def _entering_ns(call: CallTrace, around: Surroundings, start: int, end: int, lookup_ns: float) -> float:
    """Compute how much of a time outside the graphs is spent entering them: the traced steps of a whole model, or Dynamo's part."""
    if not around.is_whole_model:
        return min(lookup_ns, end - start)
    return sum(max(min(step.ended_ns, end) - max(step.started_ns, start), 0) for step in call.steps)


def _waited_ns(call: CallTrace, around: Surroundings, start: int, end: int) -> int:
    """Compute how much of a time outside the graphs of a whole model goes into waiting for the device at the end of its calls."""
    if not around.is_whole_model:
        return 0
    return sum(max(min(step.ended_ns, end) - max(step.ended_ns - step.waited_ns, start), 0) for step in call.steps)


def _book_insides(call: CallTrace, around: Surroundings, book: _Book) -> None:
    """Book the time inside the graphs: sessions, nodes that PyTorch runs, and what neither explains."""
    for graph_id, whole in _inside(call).items():
        times, eager = call.sessions.get(graph_id, SessionTime()), call.eager_ns.get(graph_id, 0)
        book[graph_id, "bind"] += times.bind_ns
        book[graph_id, "run"] += times.run_ns
        book[graph_id, "output"] += times.output_ns
        book[graph_id, "foreign"] += times.foreign_ns
        book[graph_id, "eager"] += eager
        rest = whole - times.total_ns - eager
        book[graph_id, "eager" if graph_id in around.unclocked else "residual"] += rest


def _inside(call: CallTrace) -> dict[str, int]:
    return summed((visit.graph_id, visit.left_ns - visit.entered_ns) for visit in call.visits)


def _book_entering(call: CallTrace, around: Surroundings, entering: defaultdict[str, float]) -> None:
    """Book what merging two graphs would save besides the gap: one partition less to enter, and the code around it.

    The first graph of a call has to be entered anyway. Where PyTorch's own nodes have no clock, the code around cannot be told apart.
    """
    visits, inside = Counter(visit.graph_id for visit in call.visits), _inside(call)
    for number, visit in enumerate(call.visits):
        broken, graph_id = around.break_ahead.get(visit.graph_id), visit.graph_id
        if not number or broken is None or graph_id not in around.partitions:
            continue
        times = call.sessions.get(graph_id, SessionTime())
        crossing = (times.bind_ns + times.output_ns) / around.partitions[graph_id]
        rest = inside[graph_id] - times.total_ns - call.eager_ns.get(graph_id, 0)
        entering[broken] += (crossing + (0 if graph_id in around.unclocked else max(rest, 0))) / visits[graph_id]


def _parts(rows: Mapping[tuple[str, LedgerPartName], int]) -> tuple[LedgerPart, ...]:
    total = sum(rows.values())
    return tuple(
        LedgerPart(graph_id=graph_id, part=part, ns=ns, share=ns / total if total else 0.0) for (graph_id, part), ns in rows.items()
    )


def lookups_ahead(calls: Iterable[CallTrace]) -> tuple[dict[str, float], float]:
    """Measure Dynamo's time before each graph, for looking up compiled code and gathering inputs, and after the last graph, in ns.

    These are medians: per visit by graph id, and per call for the look-ups after the last graph.
    """
    ahead: defaultdict[str, list[int]] = defaultdict(list)
    after = [0] if not (calls := tuple(calls)) else []
    for call in calls:
        left = call.started_ns
        for visit in call.visits:
            starts = [start for is_lookup, start, _ in call.heard if not is_lookup and left <= start <= visit.entered_ns]
            gathering = visit.entered_ns - starts[-1] if starts else 0
            ahead[visit.graph_id].append(_looked_up(call, left, visit.entered_ns) + gathering)
            left = visit.left_ns
        after.append(_looked_up(call, left, call.ended_ns))
    return {graph_id: median(ns) for graph_id, ns in ahead.items()}, median(after)


def _looked_up(call: CallTrace, start: int, end: int) -> int:
    return sum(ended - started for is_lookup, started, ended in call.heard if is_lookup and start <= started and ended <= end)


def ledger_from_logs(capture: Capture) -> tuple[LedgerPart, ...]:
    """Build the ledger from the logs of sessions and nodes: a usual call as in `call_times`, without guards and residual.

    It is empty when nothing ran, or when the latest calls do not show how the time of each session was split.
    """
    entries = entries_by_graph(capture)
    times = {graph_id: time for graph_id, time in graph_times(capture).items() if time.calls}
    splits = _splits(capture)
    rows: dict[tuple[str, LedgerPartName], int] = {}
    for graph_id, time in times.items():
        calls = time.calls / entries[graph_id] if entries[graph_id] else inf
        if time.ort_ns and graph_id not in splits:
            return ()
        bind, run, output = splits.get(graph_id, (0.0, 0.0, 0.0))
        rows[graph_id, "bind"] = round(time.ort_ns * bind / calls)
        rows[graph_id, "run"] = round(time.ort_ns * run / calls)
        rows[graph_id, "foreign"] = round(time.foreign_ns / calls)
        rows[graph_id, "output"] = round(time.ort_ns * output / calls)
        rows[graph_id, "eager"] = round(time.eager_ns / calls)
    return _parts({key: ns for key, ns in rows.items() if ns})


def _splits(capture: Capture) -> dict[str, tuple[float, float, float]]:
    """Compute how each graph's session time divides into bind, run and output: medians over the calls kept one by one."""
    kept = grouped(
        ((run.graph_id, run.session_id), (run.bind_ns, run.run_ns, run.output_ns))
        for run in capture.runs
        if run.session_id is not None and run.graph_id is not None
    )
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for (graph_id, _), rows in kept.items():
        for place, ns in enumerate(zip(*rows, strict=True)):
            sums[graph_id][place] += median(ns) * len(rows)
    return {
        graph_id: (bind / whole, run / whole, output / whole)
        for graph_id, (bind, run, output) in sums.items()
        if (whole := bind + run + output)
    }


def totals_of(parts: Iterable[LedgerPart]) -> LedgerTotals | None:
    """Sum the ledger over the graphs; None if it holds no time."""
    rows = tuple(parts)
    sums = summed((row.part, row.ns) for row in rows)
    total = sum(sums.values())
    if not total:
        return None
    ns = {part: sums[part] for part in PARTS if part in sums}
    share = {part: value / total for part, value in ns.items()}
    graph_ids = tuple(dict.fromkeys(row.graph_id for row in rows))
    return LedgerTotals(ns=ns, share=share, total_ns=total, is_measured=bool(ns.keys() & {"guards", "residual"}), graph_ids=graph_ids)


@once
def ledger_totals(capture: Capture) -> LedgerTotals | None:
    """Sum the ledger of a capture; None if it holds no time."""
    return totals_of(capture.ledger)


@once
def measured_call(capture: Capture) -> LedgerTotals | None:
    """Return the ledger of a measured call; None where logs of sessions and operators alone are known."""
    totals = ledger_totals(capture)
    return totals if totals is not None and totals.is_measured else None


@once
def time_base(capture: Capture) -> Literal["call", "run"]:
    """Return what times are per: a call, or, where nobody counted those, a run of the code that was compiled first."""
    return "call" if measured_call(capture) is not None or call_time(capture).is_call else "run"
