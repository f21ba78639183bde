"""Times of two captures side by side: the whole call, graphs and partitions, each with its band and a verdict."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from itertools import pairwise
from os.path import commonprefix
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ortlens.analysis.index import graph_by_session, grouped, sessions_by_id
from ortlens.analysis.ledger import measured_call
from ortlens.analysis.speed import MIN_CALLS, WORTH_ALONE, WORTH_APART, SpeedVerdict
from ortlens.analysis.timing import call_times
from ortlens.trace.records import column, optional

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ortlens.analysis.compare.pairing import Pairing
    from ortlens.trace.records import Capture, Run


Scope: TypeAlias = Literal["call", "run", "graph", "partition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a unit takes in two captures, and whether that differs outside the noise."""

    scope: Scope = column(
        "`call` a whole call where both captures measured it, else from its first session to its last's end; `run` that of the compiled "
        "code, where nobody counted calls; `graph` that of one graph, or a whole one of another backend; `partition` one run of a session."
    )
    subject: str = column("The compiled function, or the id of the graph or partition in the first capture.")
    module: str | None = optional("Module path that the operators of the partition share.")
    verdict: SpeedVerdict = column(
        "`slower` or `faster` only outside the noise and beyond what the machine explains, else `same`; `unmeasured` below 9 calls, and "
        "for calls above 4 ms of a busy machine."
    )
    ratio: float | None = optional("Second over first: 1.2 is a fifth slower.")
    before_ns: int | None = optional("The tenth of the calls that was disturbed least, in the first capture.", unit="ns")
    before_low_ns: int | None = optional("The same in a fast stretch of calls.", unit="ns")
    before_high_ns: int | None = optional("The same in a slow stretch.", unit="ns")
    after_ns: int | None = optional("As `before_ns`, in the second capture.", unit="ns")
    after_low_ns: int | None = optional("As `before_low_ns`.", unit="ns")
    after_high_ns: int | None = optional("As `before_high_ns`.", unit="ns")
    before_cpu_ns: int | None = optional("CPU time of a call, in all threads of the process; of whole calls alone.", unit="ns")
    after_cpu_ns: int | None = optional("Likewise in the second capture.", unit="ns")
    before_calls: int = column("Calls in the first capture that are known one by one.", default=0)
    after_calls: int = column("Likewise in the second.", default=0)
    before_id: str | None = optional("Session or graph in the first capture.")
    after_id: str | None = optional("Likewise in the second.")

    @property
    def is_whole(self) -> bool:
        """Whether it is about all that was compiled for a function."""
        return self.scope in {"call", "run"}


def timings_of(before: Capture, after: Capture, pairing: Pairing, *, with_calls: bool) -> tuple[Timing, ...]:
    """Compare the times of what both captures have and at least one called: calls first, then graphs, then partitions.

    Leaves out what does other work, whose times would blame an edit for it: graphs and partitions that got operators from another one, or
    lost them to one or to PyTorch. `with_calls` must be False where `ends_moved`.
    """
    left, right = _TimedRuns(before), _TimedRuns(after)
    machine = _machine(left, right, pairing.sessions)
    remade = _remade(pairing)
    calls = _calls(before, after, left, right, machine) if with_calls else ()
    rows = [*calls, *_graphs(left, right, pairing, machine, remade)]
    modules = _modules(before)
    sessions = sessions_by_id(before)
    for first, second in pairing.sessions.items():
        partition = sessions[first].partition_id
        if partition not in remade:
            times = [left.totals(first), right.totals(second)]
            rows.append(_timing("partition", partition, times, machine, before_id=first, after_id=second, module=modules.get(partition)))
    return tuple(row for row in rows if row.before_calls or row.after_calls)


def ends_moved(before: Capture, after: Capture, pairing: Pairing) -> bool:
    """Tell whether operators moved into or out of the span that a call's time covers: from its first session to the end of its last.

    If so, one capture runs an operator in PyTorch outside that span, and the other in ONNX Runtime. Calls that both measured are whole.
    """
    if _whole_calls(before, after):
        return False
    moved = [pair for pair in pairing.operators if pair.before.supported != pair.after.supported]
    first, second = _at_ends(before), _at_ends(after)
    at_end = any((pair.before.graph_id, pair.before.node) in first or (pair.after.graph_id, pair.after.node) in second for pair in moved)
    return bool(pairing.entered or pairing.left or at_end)


def _at_ends(capture: Capture) -> set[tuple[str, str]]:
    """Find the operators before the first session or after the last of what was compiled together, by graph and node."""
    targets = {graph.graph_id: graph.target for graph in capture.graphs}
    found: set[tuple[str, str]] = set()
    for rows in grouped((targets.get(node.graph_id), node) for node in capture.nodes).values():
        inside = [index for index, node in enumerate(rows) if node.partition_id is not None] or [len(rows)]
        found |= {(node.graph_id, node.node) for index, node in enumerate(rows) if not inside[0] <= index <= inside[-1]}
    return found


class _TimedRuns:
    """The runs of a capture by what ran, in the order of time."""

    def __init__(self, capture: Capture) -> None:
        self.by_key: dict[str, list[Run]] = defaultdict(list)
        self.graph_of = dict(graph_by_session(capture))
        for run in sorted(capture.runs, key=lambda run: run.start_ns):
            key = run.session_id or run.graph_id
            if key is not None:
                self.by_key[key].append(run)
                self.graph_of.setdefault(key, key)

    def totals(self, key: str) -> list[int]:
        return [run.total_ns for run in self.by_key[key]]

    def around(self, key: str) -> list[int]:
        return [run.bind_ns + run.output_ns for run in self.by_key[key]]

    def spans(self, graph_ids: Iterable[str], entries: Mapping[str, float]) -> tuple[int, list[int]]:
        """Count the units that a pass through these graphs runs, and time each pass from its first start to its last end.

        A pass enters graphs as often as `entries` has it; once where it does not.
        """
        wanted = set(graph_ids)
        keys = [key for key in self.by_key if self.graph_of.get(key) in wanted]
        runs = sorted(((run, key) for key in keys for run in self.by_key[key]), key=lambda item: item[0].start_ns)
        by_thread = grouped((item[0].thread, item) for item in runs)
        passes = [single for own in by_thread.values() for single in _passes(own, entries, self.graph_of)]
        if not passes:
            return 0, []
        usual, _ = Counter(tuple(key for _, key in single) for single in passes).most_common(1)[0]
        kept = [single for single in passes if tuple(key for _, key in single) == usual]
        return len(usual), list(map(_span, kept))


_SinglePass: TypeAlias = "Sequence[tuple[Run, str]]"


def _span(single: _SinglePass) -> int:
    return max(run.start_ns + run.total_ns for run, _ in single) - single[0][0].start_ns


def _passes(runs: _SinglePass, entries: Mapping[str, float], graph_of: Mapping[str, str]) -> list[_SinglePass]:
    """Cut the runs of a thread where the unit that ran first, in its later half, runs again: the first calls may have been other graphs.

    Of a unit that runs several times per pass, that cut is the right one with which passes are shortest: between them is the most time.
    """
    first = runs[0][1] if runs[0][1] in {key for _, key in runs[len(runs) // 2 :]} else runs[len(runs) // 2][1]
    starts = [at for at, (_, key) in enumerate(runs) if key == first]
    often = max(round(entries.get(graph_of.get(first, ""), 1.0)), 1)
    cuts = [[runs[at:end] for at, end in pairwise([*starts[shift::often], len(runs)])] for shift in range(min(often, len(starts)))]
    return min(cuts, key=lambda passes: median(map(_span, passes)))


def _machine(left: _TimedRuns, right: _TimedRuns, sessions: Mapping[str, str]) -> Machine | None:
    """Sum up what binding and outputs of the paired sessions take; None where no session made enough calls."""
    bands = [(band_of(left.around(first)), band_of(right.around(second))) for first, second in sessions.items()]
    known = [(first.ns, second.ns) for first, second in bands if first is not None and second is not None]
    before, after = sum(first for first, _ in known), sum(second for _, second in known)
    return Machine(before_ns=before, after_ns=after) if before and after else None


def _calls(before: Capture, after: Capture, left: _TimedRuns, right: _TimedRuns, machine: Machine | None) -> Iterator[Timing]:
    others = {time.function: time for time in call_times(after)}
    ours, theirs, whole = call_times(before), call_times(after), set[str | None]()
    if (walls := _whole_calls(before, after)) and (measured := measured_call(before)):
        whole = {time.function for time in ours if not set(measured.graph_ids).isdisjoint(time.graph_ids)}
        used = {f"{side}_cpu_ns": each.figures.ledger_cpu_ns for side, each in (("before", before), ("after", after))}
        yield _timing("call", next((time.function for time in ours if time.function in whole), None) or "the call", walls, machine, **used)
    for time in ours:
        other = others.get(time.function) or (theirs[0] if len(ours) == len(theirs) == 1 else None)
        if other is None or time.is_call != other.is_call or time.function in whole:
            continue
        times = [left.spans(time.graph_ids, time.entries)[1], right.spans(other.graph_ids, other.entries)[1]]
        yield _timing("call" if time.is_call else "run", time.function or "the call", times, machine)


def _whole_calls(before: Capture, after: Capture) -> list[list[int]]:
    """Return the times of the calls that were measured as a whole, of both captures; empty where either has too few."""
    walls = [list(capture.figures.ledger_walls) for capture in (before, after)]
    return walls if all(len(own) >= MIN_CALLS for own in walls) else []


def _graphs(left: _TimedRuns, right: _TimedRuns, pairing: Pairing, machine: Machine | None, remade: AbstractSet[str]) -> Iterator[Timing]:
    """Yield the times of graphs that are neither a single session nor all that a call runs."""
    if len(pairing.graphs) < 2:  # noqa: PLR2004 - the call says it
        return
    for first, second in pairing.graphs.items():
        (count, ours), (_, theirs) = left.spans([first], {}), right.spans([second], {})
        if (count > 1 or first in left.by_key) and first not in remade:
            yield _timing("graph", first, [ours, theirs], machine, before_id=first, after_id=second)


def _remade(pairing: Pairing) -> set[str]:
    """Find graphs and partitions of the first that share an operator with another one than their partner, or with PyTorch."""
    remade: set[str] = set()
    for partners, ids in (
        (pairing.graphs, ((pair.before.graph_id, pair.after.graph_id) for pair in pairing.operators)),
        (pairing.partitions, ((pair.before.partition_id, pair.after.partition_id) for pair in pairing.operators)),
    ):
        back = {second: first for first, second in partners.items()}
        for first, second in ids:
            if first != (None if second is None else back.get(second, "")):
                remade |= {first or "", back.get(second or "", "")}
        remade |= {name for node in pairing.entered for name in (back.get(node.graph_id, ""), back.get(node.partition_id or "", ""))}
    remade |= {name for node in pairing.left for name in (node.graph_id, node.partition_id or "")}
    return remade


def _timing(scope: Scope, subject: str, times: Sequence[list[int]], machine: Machine | None, **known: Any) -> Timing:  # noqa: ANN401 - columns
    """Compare the ns per call of a unit, in the order of the calls, of both captures; `known` are other columns."""
    before, after = map(band_of, times)
    return Timing(
        scope=scope,
        subject=subject,
        verdict=verdict_of(before, after, machine),
        ratio=after.ns / before.ns if before is not None and after is not None and before.ns else None,
        **_columns("before", before),
        **_columns("after", after),
        before_calls=len(times[0]),
        after_calls=len(times[1]),
        **known,
    )


def _columns(side: str, band: Band | None) -> dict[str, Any]:
    return {} if band is None else {f"{side}_{field.name}": getattr(band, field.name) for field in fields(Band)}


def _modules(capture: Capture) -> dict[str, str]:
    """Find the module path that the operators of each partition share."""
    named = ((node.partition_id, node.module.split(".")) for node in capture.nodes if node.partition_id is not None and node.module)
    return {partition: ".".join(shared) for partition, paths in grouped(named).items() if (shared := commonprefix(paths))}  # noqa: RUF071 - of lists, item by item


_LONG_NS = 4_000_000  # about a time slice of Linux's scheduler
_CALM = 1.25  # slowest over fastest stretch of long calls, at most; on a calm machine about 1.1, with other work 1.5 to 2.4
_FEWEST, _STRETCHES = 8, 12
_ELASTICITY = 1 / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """How long a unit takes in one capture."""

    ns: int  # the least disturbed tenth of the calls: the median over the stretches
    low_ns: int  # the same in a fast stretch
    high_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the code around the sessions took, per call, in two captures."""

    before_ns: int
    after_ns: int


def band_of(times: Sequence[int]) -> Band | None:
    """Summarise the ns per call of a unit without the first call, which warms up; None below `MIN_CALLS`."""
    if len(times) < MIN_CALLS:
        return None
    warm = times[1:]
    count = min(_STRETCHES, max(_FEWEST, len(warm) // 2))
    edges = [len(warm) * number // count for number in range(count + 1)]
    fast = sorted(_lower_tenth(warm[start:stop]) for start, stop in pairwise(edges))
    kept = fast[1:-1] if count == _STRETCHES else fast
    return Band(ns=round(median(fast)), low_ns=round(kept[0]), high_ns=round(kept[-1]))


def _lower_tenth(times: Sequence[int]) -> float:
    """Interpolate the quantile at one tenth, so that it means the same for stretches of different length."""
    return quantiles(times, n=10, method="inclusive")[0] if len(times) > 1 else times[0]


def allowance(before_ns: int, machine: Machine | None) -> tuple[float, float]:
    """Compute the least and the largest ratio that the machine alone explains for a unit; (1, 1) on an equally busy machine."""
    if machine is None or machine.before_ns <= 0 or machine.after_ns <= 0:
        return 1.0, 1.0
    bent = (machine.after_ns / machine.before_ns) ** _ELASTICITY
    shifted = 1 + (machine.after_ns - machine.before_ns) / max(before_ns, 1)
    back = 1 / (1 + (machine.before_ns - machine.after_ns) / max(before_ns, 1)) if machine.after_ns < machine.before_ns else 1.0
    return min(1.0, bent, back), max(1.0, bent, shifted)


def verdict_of(before: Band | None, after: Band | None, machine: Machine | None) -> SpeedVerdict:
    """Compare a unit of two captures: `slower` or `faster` only outside the noise and beyond what the machine explains.

    Else `same`; `unmeasured` without calls, or where long ones were disturbed.
    """
    if before is None or after is None or before.ns <= 0:
        return "unmeasured"
    if min(before.ns, after.ns) > _LONG_NS and not (_is_calm(before) and _is_calm(after)):
        return "unmeasured"
    least, most = allowance(before.ns, machine)
    worth = WORTH_APART if machine is not None else WORTH_ALONE
    ratio = after.ns / before.ns
    if after.low_ns > before.high_ns and ratio >= most * worth:
        return "slower"
    if after.high_ns < before.low_ns and ratio <= least / worth:
        return "faster"
    return "same"


def _is_calm(band: Band) -> bool:
    return band.high_ns <= _CALM * band.low_ns
