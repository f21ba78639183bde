"""A running program: its figures, as a static picture drawn anew for each look, and as lines of text; functions of the records so far."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from ortlens.analysis.index import graphs_by_id, grouped, summed
from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.markup import render
from ortlens.views.wording import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.trace.records import Capture, Run


_RECENT = 200  # latest runs of each partition, or of each graph under another backend, that count as now


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGraph:
    """One graph that was called."""

    graph_id: str
    name: str
    phase: str  # `inference`, `forward` or `backward`
    call_ns: int  # median time of the latest calls in its sessions, over all its partitions; under another backend of the whole graph


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFigures:
    """What a running program does now."""

    runs: int  # runs so far: of sessions, or of graphs under another backend
    period_ns: int | None  # median time from one call to the next of the partition, or graph, that ran last; None before its second run
    busy_ns: int | None  # mean time in sessions within such a period; under another backend in whole graphs
    graphs: tuple[LiveGraph, ...]  # graphs that were called lately, in the order of their calls
    break_count: int
    recompile_count: int
    session_count: int
    fallbacks: tuple[str, ...]  # distinct operators that PyTorch runs, the most time first
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePoint:
    """The figures at one moment, as a curve needs them."""

    at_s: float
    figures: LiveFigures


def live_figures(capture: Capture, memory_bytes: int | None = None) -> LiveFigures:
    """Take the figures from what was recorded so far."""
    runs = sorted(capture.runs, key=lambda run: run.start_ns)
    lanes = {key: lane[-_RECENT:] for key, lane in grouped(((run.graph_id or "", run.session_id or ""), run) for run in runs).items()}
    period, busy = _pace(lanes)
    # Without lanes that have not run since the last but one run of what ran last: sessions for sizes no longer called.
    since = min((run.start_ns for run in _last(lanes)[-2:]), default=0)
    in_use = ((graph_id, runs) for (graph_id, _), runs in lanes.items() if runs[-1].start_ns >= since)
    times = summed((graph_id, round(median(run.total_ns for run in runs))) for graph_id, runs in in_use)
    known = graphs_by_id(capture)
    named = {graph.compile_id: graph.name for graph in capture.graphs if graph.name}  # a backward graph has the name of its forward
    spent = summed((fallback.target, fallback.total_ns) for fallback in capture.fallbacks)
    return LiveFigures(
        runs=sum(session.calls for session in capture.sessions) or sum(runs[-1].call + 1 for runs in lanes.values()),
        period_ns=period,
        busy_ns=busy,
        graphs=tuple(
            LiveGraph(graph_id=name, name=graph.name or named.get(graph.compile_id) or name, phase=graph.phase, call_ns=times[name])
            for name, graph in known.items()
            if name in times
        ),
        break_count=len(capture.breaks),
        recompile_count=len(capture.recompiles),
        session_count=len(capture.sessions),
        fallbacks=tuple(sorted(spent, key=lambda target: -spent[target])),
        memory_bytes=memory_bytes,
    )


def thinned(points: Sequence[LivePoint], most: int) -> list[LivePoint]:
    """Keep every second point, and the last, of a curve that has more than `most` points."""
    return list(points) if len(points) <= most else [*points[:-1:2], points[-1]]


def _pace(lanes: dict[tuple[str, str], list[Run]]) -> tuple[int | None, int | None]:
    """Compute the median time from call to call of what ran last, and the mean time in all lanes within it."""
    first = max([runs[0].start_ns for runs in lanes.values() if runs[0].call], default=0)  # before it, runs of a lane are not kept
    starts = [run.start_ns for run in _last(lanes) if run.start_ns >= first]
    if len(starts) < 2:  # noqa: PLR2004 - two starts make a period
        return None, None
    busy = sum(run.total_ns for runs in lanes.values() for run in runs if starts[0] <= run.start_ns < starts[-1])
    return round(median(end - start for start, end in pairwise(starts))), round(busy / (len(starts) - 1))


def _last(lanes: dict[tuple[str, str], list[Run]]) -> list[Run]:
    return max(lanes.values(), key=lambda runs: runs[-1].start_ns, default=[])


_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 636, 18, 130  # of the curve, as in the template
_GRAPHS = 8
_LABEL_SHARE = 0.15  # width of a label on the curve


def live_html(points: Sequence[LivePoint], *, name: str = "", is_over: bool = False) -> str:
    """Draw the looks so far, at least one, without scripts; `is_over` tells that the loop ended, so that this picture stays."""
    figures = points[-1].figures
    more = len(figures.graphs) - _GRAPHS
    return render(
        "live.html",
        name=name,
        state="ended after" if is_over else "running for",
        elapsed=time_from_ns(points[-1].at_s * 1e9),
        cells=_facts(figures),
        curve=_curve(points),
        graphs=[(graph.name, graph.phase, time_from_ns(graph.call_ns)) for graph in figures.graphs[:_GRAPHS]],
        more=counted(more, "more graph") if more > 0 else "",
    )


def _facts(figures: LiveFigures) -> Iterator[tuple[str, str]]:
    where = "sessions" if figures.session_count else "compiled graphs"
    yield "run" if figures.runs == 1 else "runs", f"{figures.runs:,}"
    if figures.period_ns and figures.busy_ns is not None:
        yield "from call to call", time_from_ns(figures.period_ns)
        yield f"of it in {where}", f"{time_from_ns(figures.busy_ns)} ({percent(min(figures.busy_ns / figures.period_ns, 1))})"
    for number, noun, more in (
        (figures.break_count, "graph break", ""),
        (figures.recompile_count, "recompile", ""),
        (figures.session_count, "session", ""),
        (len(figures.fallbacks), "operator", " in PyTorch"),
    ):
        yield f"{noun}{'' if number == 1 else 's'}{more}", f"{number:,}"
    if figures.memory_bytes is not None:
        yield "memory of the process", size_from_bytes(figures.memory_bytes)


def _curve(points: Sequence[LivePoint]) -> dict[str, object] | None:
    """Lay out time from call to call as a line, the part in sessions as an area below, and what was compiled as marks."""
    timed = [(point.at_s, point.figures.period_ns, point.figures.busy_ns or 0) for point in points if point.figures.period_ns]
    if len(timed) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    most = max(max(period, busy) for _, period, busy in timed)
    last = points[-1].at_s or 1.0

    def x(at: float) -> str:
        return f"{_LEFT + (_RIGHT - _LEFT) * at / last:.1f}"

    def y(value: int) -> str:
        return f"{_BOTTOM - (_BOTTOM - _TOP) * value / most:.1f}"

    area = " ".join(f"{x(at)},{y(min(busy, period))}" for at, period, busy in timed)
    return {
        "seconds": f"{last:.0f}",
        "most": time_from_ns(most),
        "line": " ".join(f"{x(at)},{y(period)}" for at, period, _ in timed),
        "area": f"{x(timed[0][0])},{_BOTTOM} {area} {x(timed[-1][0])},{_BOTTOM}",
        "marks": [(x(at), label) for at, label in _marks(points)],
    }


def _marks(points: Sequence[LivePoint]) -> Iterator[tuple[float, str]]:
    last = float("-inf")
    for before, after in pairwise(points):
        recompiled = after.figures.recompile_count - before.figures.recompile_count
        made = after.figures.session_count - before.figures.session_count
        if (recompiled > 0 or made > 0) and after.at_s - last >= points[-1].at_s * _LABEL_SHARE:  # the next label needs its room
            last = after.at_s
            yield after.at_s, counted(recompiled, "recompile") if recompiled > 0 else counted(made, "session")


_LINE_GRAPHS = 4


def event_lines(capture: Capture) -> Iterator[str]:
    """Yield a line for each thing that happened while compiling; equal lines mean the same thing, and are to be said once."""
    for graph in capture.graphs:
        yield f"graph {graph.graph_id}  {graph.name or ''} ({graph.phase}), {counted(graph.op_count or 0, 'operator')}".replace("  (", " (")
    for item in capture.breaks:
        yield f"graph break {item.break_id}  {place(item.file, item.line)}: {item.reason}"
    for recompile in capture.recompiles:
        yield f"recompile {recompile.compile_id}  {place(recompile.file, recompile.line)}: {recompile.guard or recompile.reason}"
    for session in capture.sessions:
        yield f"session {session.session_id}  {session.input_signature}, made in {time_from_ns(session.create_ns)}"
    for fallback in capture.fallbacks:
        yield f"in PyTorch  {fallback.target}, {place(fallback.file, fallback.line)}: {fallback.reason}"
    for finding in capture.findings:
        yield f"{finding.severity}  {finding.title}"


def live_line(figures: LiveFigures) -> str:
    """Put the same figures on one line, and the times of graphs."""
    if not figures.runs:
        return "no run yet"
    parts = [f"{value} {label}" for label, value in _facts(figures)]
    if figures.graphs:
        shown = [f"{graph.name} ({graph.phase}) {time_from_ns(graph.call_ns)}" for graph in figures.graphs[:_LINE_GRAPHS]]
        more = [f"{len(figures.graphs) - _LINE_GRAPHS} more"] if len(figures.graphs) > _LINE_GRAPHS else []
        parts.append(f"median of the latest: {', '.join(shown + more)}")
    return "; ".join(parts)
