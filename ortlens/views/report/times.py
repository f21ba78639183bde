"""Figures about time: where that of a call goes, how long calls take, one after the other, and what compiling takes."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

from ortlens.units import counted, percent, time_from_ns
from ortlens.views.answers import graph_label
from ortlens.views.report.figures import MAX_ROWS, Bar, Bars, Course, Figure, Range, Ranges, bounded
from ortlens.views.time_sentences import average_words
from ortlens.views.wording import PART_WORDS, PHASE_WORDS, clipped, function, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.analysis.overview import GraphRow, Overview
    from ortlens.trace.records import Capture, LedgerPart, Run, Session

_POINTS = 240
"""Points of a course: about one for every two pixels."""

_MIN_CALLS = 5
"""Fewer calls have no course."""

_CLOCK = "The clock is time.perf_counter_ns."


def ledger_figure(capture: Capture, overview: Overview) -> Figure | None:
    """Show where the wall time of a call goes, and of each graph when there are several; None where no time was recorded."""
    ledger = overview.ledger
    if ledger is None:
        return None
    words = {**PART_WORDS} if overview.backend == "ortlens" else {**PART_WORDS, "run": f"graphs of {visible(overview.backend)}"}
    graphs: defaultdict[str, list[LedgerPart]] = defaultdict(list)
    for part in capture.ledger:
        graphs[part.graph_id].append(part)
    whole = Bar(label="one call", parts=tuple((part, float(ns)) for part, ns in ledger.ns.items()), text=time_from_ns(ledger.total_ns))
    rows = sorted((_graph_bar(graph_id, parts, overview.graphs) for graph_id, parts in graphs.items()), key=lambda bar: -bar.total)
    rows = [bar for bar in rows if bar.total] if len(graphs) > 1 else []
    bars = (whole, *bounded(rows, "{} other graphs", lambda ns: time_from_ns(round(ns)))[: MAX_ROWS - 1])
    measured = ledger.is_measured
    calls = capture.figures.ledger_calls
    many = f"{calls} calls, the middle half by wall time" if calls is not None else "the middle half by wall time of the measured calls"
    return Figure(
        name="ledger",
        title="Where does the time of a call go?",
        caption=f"Mean of {many}; the parts add up to the whole."
        if measured
        else f"From the logs, {average_words(overview.call)}; guards and Python between graphs are not in it.",
        method=(
            "The compiled function was called again and again, at most for half a second and 100 times, with a clock at the entry of "
            "every graph; sessions and PyTorch's operators keep their own readings of the same clock. Shown are means over the middle "
            "half of the calls by wall time, so that outliers are excluded and the parts still add up to the whole. Calls in "
            f"which Dynamo's look-ups were traced are excluded as well. {_CLOCK}"
            if measured
            else "No call was measured as a whole. The bars are medians of what sessions recorded for their own calls, and means of "
            f"PyTorch's operators, of which only sums are recorded. lens.measure(...) measures the rest. {_CLOCK}"
        ),
        drawing=Bars(bars=bars, words={part: word for part, word in words.items() if ledger.ns.get(part)}),
    )


def _graph_bar(graph_id: str, parts: Sequence[LedgerPart], rows: Sequence[GraphRow]) -> Bar:
    graph = next((row.graph for row in rows if row.graph.graph_id == graph_id), None)
    name = graph_id if graph is None else f"{graph_label(graph)}: {function(graph.name)}" if graph.name else graph_label(graph)
    total = sum(part.ns for part in parts)
    return Bar(label=name, parts=tuple((part.part, float(part.ns)) for part in parts), text=time_from_ns(total))


def sessions_figure(capture: Capture, overview: Overview) -> Figure | None:
    """Show how long calls take in the sessions that took the most time; None without calls."""
    timed = [cost.session for cost in overview.sessions if cost.session.calls and cost.session.p50_ns]
    if not timed:
        return None
    shown = timed[:MAX_ROWS]
    calls = sum(session.calls for session in capture.sessions)
    made = "The only call" if calls == 1 else f"All {calls:,} calls"
    some = f", shown for the {len(shown)} of {len(timed):,} sessions that took the most time" if len(timed) > len(shown) else ""
    return Figure(
        name="sessions",
        title="How consistent are call times?",
        caption=f"{made}{some}. Dot: median; thick bar: to 90 %; thin: to 99 %; line: to the slowest.",
        method=(
            "Every call of a session is timed from binding its inputs to returning its outputs, the first calls included. Percentiles "
            "come from a histogram whose buckets are at most 3.2 % wide; the slowest call is exact. "
            f"{_CLOCK} A far outlier is usually the first call."
        ),
        drawing=Ranges(ranges=tuple(_range(session) for session in shown)),
    )


def _range(session: Session) -> Range:
    middle = session.p50_ns or 1
    p90 = max(session.p90_ns or middle, middle)
    p99 = max(session.p99_ns or p90, p90)
    label = f"{session.session_id}  {clipped(session.input_signature, 24)}" if session.input_signature else session.session_id
    return Range(label=label, median=middle, p90=p90, p99=p99, slowest=max(session.max_ns or p99, middle))


def course_figure(capture: Capture) -> Figure | None:
    """Show how long the calls of the costliest session take, one after the other; None for too few calls.

    Of many calls, the middle, fastest and slowest of each few are shown.
    """
    by_caller: defaultdict[tuple[str | None, str | None], list[Run]] = defaultdict(list)
    for run in capture.runs:
        by_caller[run.session_id, run.graph_id].append(run)
    if not by_caller:
        return None
    total_ns = {session.session_id: session.total_ns for session in capture.sessions}  # of all calls, not only of those that are kept
    (session_id, graph_id), runs = max(
        by_caller.items(), key=lambda item: total_ns.get(item[0][0] or "", 0) or sum(run.total_ns for run in item[1])
    )
    if len(runs) < _MIN_CALLS:
        return None
    who = f"session {visible(session_id)}" if session_id else f"graph {visible(graph_id or '')}"
    groups = tuple(_groups(sorted(runs, key=lambda run: run.call)))
    size = len(groups[0])
    each = f"; each point is the median of {size:,} calls in a row, the band reaches from the fastest to the slowest" if size > 1 else ""
    return Figure(
        name="course",
        title="Do calls get faster or slower?",
        caption=f"The {len(runs):,} latest calls of {clipped(who, 40)}, which takes the most time{each}.",
        method=(
            "The latest calls of every session are kept one by one, 2,048 per thread, with their start, binding, run and output. "
            f"The figure shows those of the one with the most time in total, in call order. {_CLOCK}"
        ),
        drawing=Course(
            calls=tuple(median(run.call for run in group) for group in groups),
            median=tuple(float(median(run.total_ns for run in group)) for group in groups),
            fastest=tuple(float(min(run.total_ns for run in group)) for group in groups),
            slowest=tuple(float(max(run.total_ns for run in group)) for group in groups),
        ),
    )


def _groups(runs: Sequence[Run]) -> Iterator[Sequence[Run]]:
    size = -(-len(runs) // _POINTS)
    for first in range(0, len(runs), size):
        yield runs[first : first + size]


def compile_figure(capture: Capture, overview: Overview) -> Figure | None:
    """Show what each phase of compiling takes; None where no phase was timed."""
    phases = [phase for phase in overview.phases if phase.total_ns > 0]
    if not phases:
        return None
    whole = sum(phase.total_ns for phase in phases)
    bars = tuple(
        Bar(
            label=PHASE_WORDS[phase.phase],
            parts=(("time", float(phase.total_ns)),),
            text=f"{time_from_ns(phase.total_ns)}  ({percent(phase.total_ns / whole)})",
        )
        for phase in phases
    )
    return Figure(
        name="compile",
        title="How long does compiling take?",
        caption=f"Measured once, while compiling: sum over {counted(len(capture.graphs), 'graph')}, recompiles included.",
        method=(
            "Dynamo and AOTAutograd report their phases in torch's structured log; ortlens times its own: partitioning, converting, "
            "optimising and creating sessions. Each happens once per graph, so these are single measurements, on a machine that may "
            "have been busy. A model found in cache_dir is not converted again."
        ),
        drawing=Bars(bars=bars),
    )
