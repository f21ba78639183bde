"""Figures about work: which operators and which lines of the program take the time, inside ONNX Runtime and outside."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.index import graph_by_partition
from ortlens.analysis.roofline import roofs
from ortlens.analysis.timing import fallback_ns
from ortlens.units import counted, time_from_ns
from ortlens.views.report.figures import Bar, Bars, Figure, Peaks, Roofline, bounded
from ortlens.views.wording import clipped, place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ortlens.analysis.overview import Overview
    from ortlens.trace.records import Capture, Kernel

_LABEL = 40
_PROFILED = (
    "lens.profile(...) creates a second session with ONNX Runtime's profiler on and runs the two alternately on the same inputs. The "
    "time of the runs without the profiler is divided among the kernels; the profiler's own cost per kernel is measured and "
    "subtracted. The profiler reports kernels below a microsecond as 0 or 1, so the shortest bars are the least certain."
)


def current_kernels(capture: Capture) -> tuple[Kernel, ...]:
    """List the kernels of graphs that no recompile replaced; empty where nothing was profiled."""
    current = {graph.graph_id for graph in current_graphs(capture.graphs)}
    known = {graph.graph_id for graph in capture.graphs}
    graph_of = graph_by_partition(capture)
    replaced = {session.session_id for session in capture.sessions if graph_of.get(session.partition_id, "") in known - current}
    return tuple(kernel for kernel in capture.kernels if kernel.session_id not in replaced)


def operators_figure(capture: Capture) -> Figure | None:
    """Show which operators take the time inside ONNX Runtime; None where nothing was profiled."""
    kernels = current_kernels(capture)
    times: defaultdict[str, list[int]] = defaultdict(list)
    for kernel in kernels:
        times[kernel.op_type].append(kernel.mean_ns or 0)
    ranked = sorted(times.items(), key=lambda item: (-sum(item[1]), item[0]))
    bars = [
        Bar(label=clipped(name, _LABEL), parts=(("run", float(sum(ns))),), text=f"{time_from_ns(sum(ns))}  ({counted(len(ns), 'kernel')})")
        for name, ns in ranked
    ]
    if not any(bar.total for bar in bars):
        return None
    return Figure(
        name="operators",
        title="Which operators take the most time in ONNX Runtime?",
        caption=f"{counted(len(kernels), 'kernel')}, one call of each, by the faster half of {_runs(kernels)}, without its own cost.",
        method=_PROFILED,
        drawing=Bars(bars=bounded(bars, "{} other types", _time)),
    )


def roofline_figure(capture: Capture) -> Figure | None:
    """Show how fast kernels with counted operations are for this machine; None where none was held against measured peaks."""
    current = {kernel.session_id for kernel in current_kernels(capture)}
    placed = [row for row in roofs(capture) if row.session_id in current and row.intensity and row.flops_per_s]
    peaks = {
        (row.dtype, row.threads): Peaks(
            label=f"{row.dtype}, {counted(row.threads, 'thread')}", flops=row.peak_flops_per_s, bytes=row.peak_bytes_per_s
        )
        for row in placed
        if row.peak_flops_per_s and row.peak_bytes_per_s
    }
    if not peaks:
        return None
    longest = max(row.mean_ns for row in placed)
    return Figure(
        name="roofline",
        title="Are the kernels as fast as this machine can be?",
        caption=f"{counted(len(placed), 'kernel')} with counted operations: the larger, the longer it takes. Line: the machine's peaks.",
        method=(
            "Operations are those that PyTorch's counter counts for the FX nodes of a kernel, bytes those that it reads and writes by "
            "ONNX Runtime's profile, with the weights that it packed. The peaks were measured with ONNX Runtime on as many threads: a "
            "matrix product of 512 rows, and reading and writing 64 MiB. A kernel whose data stay in caches may lie above the slope. "
            f"Kernels without counted operations are absent; lens.roofline() has them. {_PROFILED}"
        ),
        drawing=Roofline(
            intensity=tuple(row.intensity or 0.0 for row in placed),
            flops=tuple(row.flops_per_s or 0.0 for row in placed),
            shares=tuple(row.mean_ns / longest for row in placed),
            peaks=tuple(peaks.values()),
        ),
    )


def lines_figure(capture: Capture) -> Figure | None:
    """Show which lines of the program take the time; None where no kernel was led back to a line."""
    kernels = [kernel for kernel in current_kernels(capture) if kernel.file]
    if not kernels:
        return None
    times: defaultdict[tuple[str, int | None], dict[str, float]] = defaultdict(lambda: {"run": 0.0, "eager": 0.0})
    for kernel in kernels:
        times[kernel.file or "", kernel.line]["run"] += kernel.mean_ns or 0
    for (file, line), ns in _eager(capture).items():
        times[file, line]["eager"] += ns
    sources = {(node.file, node.line): node.source for node in capture.nodes if node.source}
    ranked = sorted(times.items(), key=lambda item: (-sum(item[1].values()), item[0][0], item[0][1] or 0))
    bars = [_line_bar(key, parts, sources) for key, parts in ranked if sum(parts.values())]
    if not bars:
        return None
    placeless = len(current_kernels(capture)) - len(kernels)
    apart = f"; {counted(placeless, 'kernel')} without a known line left out" if placeless else ""
    return Figure(
        name="lines",
        title="Which source lines take the most time?",
        caption=f"One call of each kernel, by the faster half of {_runs(kernels)}; operators in PyTorch by their own clock{apart}.",
        method=(
            f"{_PROFILED} Kernels are traced back to lines through the values of the optimised model; a fused kernel counts for the line "
            "that computes its output. Operators in PyTorch are timed by a clock around each: the median of the measured calls where "
            "calls were measured, else the mean of all calls. On a GPU that is only the launch."
        ),
        drawing=Bars(
            bars=bounded(bars, "{} other lines", _time),
            words={"run": "in ONNX Runtime", "eager": "in PyTorch"} if any(_part(bar, "eager") for bar in bars) else {},
        ),
    )


def _part(bar: Bar, kind: str) -> float:
    return dict(bar.parts).get(kind, 0.0)


def _line_bar(key: tuple[str, int | None], parts: Mapping[str, float], sources: Mapping[tuple[str | None, int | None], str | None]) -> Bar:
    source = (sources.get(key) or "").strip()
    text = _time(sum(parts.values())) + (f"  {clipped(source, _LABEL)}" if source else "")
    return Bar(label=place(*key), parts=tuple(parts.items()), text=text)


def _eager(capture: Capture) -> dict[tuple[str, int | None], float]:
    """Sum up by line what PyTorch's operators take per call of the model."""
    prices = fallback_ns(capture)
    found: defaultdict[tuple[str, int | None], float] = defaultdict(float)
    for row in capture.fallbacks:
        if row.file:
            found[row.file, row.line] += prices.get((row.graph_id, row.node), 0.0)
    return found


def fallbacks_figure(capture: Capture, overview: Overview) -> Figure | None:
    """Show what the operators that stay in PyTorch take; None where none was timed."""
    timed = [group for group in overview.fallbacks if group.ns_per_call]
    if not timed:
        return None
    bars = [
        Bar(
            label=clipped(group.target, _LABEL),
            parts=(("eager", float(group.ns_per_call or 0)),),
            text=f"{time_from_ns(group.ns_per_call or 0)}  ({counted(group.node_count, 'node')})",
        )
        for group in timed
    ]
    measured = any(row.call_ns is not None for row in capture.fallbacks)
    how = "Median of the measured calls" if measured else f"Mean of {counted(overview.call.calls, 'call')}, the first ones included"
    return Figure(
        name="fallbacks",
        title="How long do the operators in PyTorch take?",
        caption=f"{how}; per call of the model, clock read around each operator.",
        method=(
            "The generated code times each node that PyTorch runs. Where the ledger measured calls, this is the median of "
            "those, else the mean of all. The cost of entering and leaving ONNX Runtime around them is not included: see `bind` and "
            "`output` of the ledger. On a GPU it is only the launch."
        ),
        drawing=Bars(bars=bounded(bars, "{} other operators", _time)),
    )


def _time(ns: float) -> str:
    return time_from_ns(round(ns))


def _runs(kernels: Iterable[Kernel]) -> str:
    counts = sorted({kernel.calls for kernel in kernels})
    if not counts:
        return "no run"
    return counted(counts[0], "profiled run") if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,} profiled runs"
