"""A running program as lines of text: what happened, once each, and its figures on one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.wording import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.analysis.live import LiveFigures
    from ortlens.trace.records import Capture

_GRAPHS = 4


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
    """Put runs, times, what was compiled and memory on one line."""
    if not figures.runs:
        return "no run yet"
    parts = [counted(figures.runs, "run"), *pace_words(figures)]
    if figures.graphs:
        shown = [f"{graph.name} ({graph.phase}) {time_from_ns(graph.call_ns)}" for graph in figures.graphs[:_GRAPHS]]
        more = [f"{len(figures.graphs) - _GRAPHS} more"] if len(figures.graphs) > _GRAPHS else []
        parts.append(f"median of the latest: {', '.join(shown + more)}")
    counts = counted(figures.recompile_count, "recompile"), counted(figures.session_count, "session")
    parts.append(", ".join([*counts, f"{counted(len(figures.fallbacks), 'operator')} in PyTorch"]))
    if figures.memory_bytes is not None:
        parts.append(f"memory {size_from_bytes(figures.memory_bytes)}")
    return "; ".join(parts)


def pace_words(figures: LiveFigures) -> list[str]:
    """Say how often there is a call, and how much of the time in between it takes; empty before the second call."""
    if not figures.period_ns or figures.busy_ns is None:
        return []
    where = "sessions" if figures.session_count else "graphs"
    share = f" ({percent(min(figures.busy_ns / figures.period_ns, 1))})"
    return [f"one call every {time_from_ns(figures.period_ns)}, {time_from_ns(figures.busy_ns)}{share} of it in {where}"]
