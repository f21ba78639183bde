"""The figures of a program while it runs: a pure function of the records so far, the same for a lens and for a journal."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from ortlens.analysis.index import graphs_by_id, grouped, summed

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    times = summed((graph_id, round(median(run.total_ns for run in runs))) for (graph_id, _), runs in _in_use(lanes))
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


def _in_use(lanes: dict[tuple[str, str], list[Run]]) -> list[tuple[tuple[str, str], list[Run]]]:
    """Drop lanes that have not run since the last but one run of what ran last: sessions for sizes no longer called."""
    if not lanes:
        return []
    last = _last(lanes)
    since = last[-min(len(last), 2)].start_ns
    return [(key, runs) for key, runs in lanes.items() if runs[-1].start_ns >= since]


def _pace(lanes: dict[tuple[str, str], list[Run]]) -> tuple[int | None, int | None]:
    """Compute the median time from call to call of what ran last, and the mean time in all lanes within it."""
    if not lanes:
        return None, None
    last = _last(lanes)
    first = max([runs[0].start_ns for runs in lanes.values() if runs[0].call], default=0)  # before it, runs of a lane are not kept
    starts = [run.start_ns for run in last if run.start_ns >= first]
    if len(starts) < 2:  # noqa: PLR2004 - two starts make a period
        return None, None
    busy = sum(run.total_ns for runs in lanes.values() for run in runs if starts[0] <= run.start_ns < starts[-1])
    return round(median(end - start for start, end in pairwise(starts))), round(busy / (len(starts) - 1))


def _last(lanes: dict[tuple[str, str], list[Run]]) -> list[Run]:
    return max(lanes.values(), key=lambda runs: runs[-1].start_ns)
