"""What the figures of a report show, as plain data: bars, which need no script and can be printed; `drawing` draws what bars cannot show.

Every figure says how it was measured and over how many calls. One of which nothing was recorded is absent: an empty picture would look like
a finding.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.index import graph_by_partition, graphs_by_id, summed
from ortlens.analysis.memory import memory
from ortlens.analysis.timing import fallback_ns
from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.tables import graph_label
from ortlens.views.time_sentences import average_words
from ortlens.views.wording import PART_WORDS, PHASE_WORDS, clipped, function, place, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ortlens.analysis.overview import Overview
    from ortlens.trace.records import Capture, Kernel, Session

MAX_BARS = 12  # bars of a figure; the rest becomes one bar of its own, so that the whole stays the whole
_LABEL = 40
CLOCK = "The clock is time.perf_counter_ns."
PROFILED = (
    "A profile creates a second session with ONNX Runtime's profiler on and runs the two alternately on the same inputs. The "
    "time of the runs without the profiler is divided among the kernels; the profiler's own cost per kernel is measured and "
    "subtracted. The profiler reports kernels below a microsecond as 0 or 1, so the shortest bars are the least certain."
)
_HOLDERS = (
    ("weights in PyTorch's memory", "weight_bytes"),
    ("weights copied as constants", "copied_bytes"),
    ("heap used by creating sessions", "held_bytes"),
    ("activations in ONNX Runtime's arena", "arena_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row of a figure: its label, the lengths of its parts by kind, all of one unit, and the text behind it."""

    label: str
    parts: Mapping[str, float]
    text: str

    @property
    def total(self) -> float:
        """Its whole length."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a report."""

    title: str  # the question that it answers
    caption: str  # how it was measured and over how many calls, in one line
    method: str  # the same in full: what was done, by which clock, and what the figure does not show
    bars: tuple[Bar, ...] = ()  # from top to bottom
    # what the kinds of parts mean, in the order of the legend; one kind needs no legend
    words: Mapping[str, str] = field(default_factory=dict)
    svg: str = ""  # an `svg` element in place of bars

    @property
    def longest(self) -> float:
        """The length of the longest bar; 1 where all are empty."""
        return max((bar.total for bar in self.bars), default=0) or 1.0


def figures_of(capture: Capture, overview: Overview) -> tuple[Figure, ...]:
    """Make every figure with bars for which something was recorded."""
    found = (
        _ledger(capture, overview),
        _lines(capture),
        operators_figure(capture),
        _fallbacks(capture, overview),
        _sessions(capture, overview),
        _compiling(capture, overview),
        _memory(capture),
    )
    return tuple(figure for figure in found if figure is not None and any(bar.total for bar in figure.bars))


def current_kernels(capture: Capture) -> tuple[Kernel, ...]:
    """List the kernels of graphs that no recompile replaced; empty where nothing was profiled."""
    current = {graph.graph_id for graph in current_graphs(capture.graphs)}
    known = {graph.graph_id for graph in capture.graphs}
    graph_of = graph_by_partition(capture)
    replaced = {session.session_id for session in capture.sessions if graph_of.get(session.partition_id, "") in known - current}
    return tuple(kernel for kernel in capture.kernels if kernel.session_id not in replaced)


def _bounded(bars: Iterable[Bar], rest: str) -> tuple[Bar, ...]:
    """Keep the longest bars, which come first, and add the others up as one, called by their number and `rest`."""
    rows = tuple(bars)
    if len(rows) <= MAX_BARS:
        return rows
    shown, others = rows[: MAX_BARS - 1], rows[MAX_BARS - 1 :]
    parts = summed(part for bar in others for part in bar.parts.items())
    return (*shown, Bar(label=f"{len(others):,} {rest}", parts=parts, text=time_from_ns(sum(parts.values()))))


def _ledger(capture: Capture, overview: Overview) -> Figure | None:
    """Show where the wall time of a call goes, and of each graph when there are several."""
    ledger = overview.ledger
    if ledger is None:
        return None
    words = {**PART_WORDS} if overview.backend == "ortlens" else {**PART_WORDS, "run": f"graphs of {visible(overview.backend)}"}
    graphs: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for item in capture.ledger:
        graphs[item.graph_id][item.part] = float(item.ns)
    rows = []
    for graph_id, parts in graphs.items():
        graph = graphs_by_id(capture).get(graph_id)
        label = graph_id if graph is None else f"{graph_label(graph)}: {function(graph.name)}" if graph.name else graph_label(graph)
        rows.append(Bar(label=label, parts=parts, text=time_from_ns(sum(parts.values()))))
    rows = sorted((bar for bar in rows if bar.total), key=lambda bar: -bar.total) if len(graphs) > 1 else []
    whole = Bar(label="one call", parts={part: float(ns) for part, ns in ledger.ns.items()}, text=time_from_ns(ledger.total_ns))
    calls = capture.figures.ledger_calls
    many = f"{calls} calls, the middle half by wall time" if calls is not None else "the middle half by wall time of the clocked calls"
    return Figure(
        title="Where does the time of a call go?",
        caption=f"Parts of {many}; they add up to the time of a call."
        if ledger.is_measured
        else f"From the logs, {average_words(overview.call)}; guards and Python between graphs are not in it.",
        method=(
            "The compiled function was called again and again with a clock at the entry of every graph; sessions and PyTorch's operators "
            "keep their own readings of the same clock. The parts are means over the middle half of these calls by wall time, so that "
            "outliers are excluded, without calls in which Dynamo's look-ups were traced. They share out the median time of a call, "
            f"where calls were made in turns with PyTorch of calls without these clocks. {CLOCK}"
            if ledger.is_measured
            else "No call was measured as a whole. The bars are medians of what sessions recorded for their own calls, and means of "
            f"PyTorch's operators, of which only sums are recorded. The rest is known where a call was measured. {CLOCK}"
        ),
        bars=(whole, *_bounded(rows, "other graphs")[: MAX_BARS - 1]),
        words={part: f"{word} {percent(ledger.ns[part] / ledger.total_ns)}" for part, word in words.items() if ledger.ns.get(part)},
    )


def _lines(capture: Capture) -> Figure | None:
    """Show which lines of the program take the time; None where no kernel was led back to a line."""
    kernels = [kernel for kernel in current_kernels(capture) if kernel.file]
    if not kernels:
        return None
    times: defaultdict[tuple[str, int | None], dict[str, float]] = defaultdict(lambda: {"run": 0.0, "eager": 0.0})
    for kernel in kernels:
        times[kernel.file or "", kernel.line]["run"] += kernel.mean_ns or 0
    prices = fallback_ns(capture)
    for row in capture.fallbacks:
        if row.file:
            times[row.file, row.line]["eager"] += prices.get((row.graph_id, row.node), 0.0)
    sources = {(node.file, node.line): node.source.strip() for node in capture.nodes if node.source}
    ranked = sorted(times.items(), key=lambda item: (-sum(item[1].values()), item[0][0], item[0][1] or 0))
    bars = []
    for (file, line), parts in ranked:
        source = clipped(sources.get((file, line), ""), _LABEL)
        bars.append(Bar(label=place(file, line), parts=parts, text=f"{time_from_ns(sum(parts.values()))}  {source}".strip()))
    placeless = len(current_kernels(capture)) - len(kernels)
    apart = f"; {counted(placeless, 'kernel')} without a known line left out" if placeless else ""
    return Figure(
        title="Which source lines take the most time?",
        caption=f"One call of each kernel, by the faster half of {_runs(kernels)}; operators in PyTorch by their own clock{apart}.",
        method=(
            f"{PROFILED} Kernels are traced back to lines through the values of the optimised model; a fused kernel counts for the line "
            "that computes its output. Operators in PyTorch are timed by a clock around each: the mean of the calls that "
            "share out the time of a call, or else of all calls. On a GPU that is only the launch."
        ),
        bars=_bounded((bar for bar in bars if bar.total), "other lines"),
        words={"run": "in ONNX Runtime", "eager": "in PyTorch"} if any(parts["eager"] for parts in times.values()) else {},
    )


def operators_figure(capture: Capture) -> Figure | None:
    """Show which operators take the time inside ONNX Runtime; None where nothing was profiled."""
    kernels = current_kernels(capture)
    times: defaultdict[str, list[int]] = defaultdict(list)
    for kernel in kernels:
        times[kernel.op_type].append(kernel.mean_ns or 0)
    if not any(map(sum, times.values())):
        return None
    ranked = sorted(times.items(), key=lambda item: (-sum(item[1]), item[0]))
    bars = (
        Bar(label=clipped(name, _LABEL), parts={"run": float(sum(ns))}, text=f"{time_from_ns(sum(ns))}  ({counted(len(ns), 'kernel')})")
        for name, ns in ranked
    )
    return Figure(
        title="Which operators take the most time in ONNX Runtime?",
        caption=f"{counted(len(kernels), 'kernel')}, one call of each, by the faster half of {_runs(kernels)}, without its own cost.",
        method=PROFILED,
        bars=_bounded(bars, "other types"),
    )


def _fallbacks(capture: Capture, overview: Overview) -> Figure:
    measured = any(row.call_ns is not None for row in capture.fallbacks)
    how = "Median of the measured calls" if measured else f"Mean of {counted(overview.call.calls, 'call')}, the first ones included"
    bars = (
        Bar(
            label=clipped(group.target, _LABEL),
            parts={"eager": float(group.ns_per_call)},
            text=f"{time_from_ns(group.ns_per_call)}  ({counted(group.node_count, 'node')})",
        )
        for group in overview.fallbacks
        if group.ns_per_call
    )
    return Figure(
        title="How long do the operators in PyTorch take?",
        caption=f"{how}; per call of the model, clock read around each operator.",
        method=(
            "The generated code times each node that PyTorch runs. Where the ledger measured calls, this is the median of "
            "those, else the mean of all. The cost of entering and leaving ONNX Runtime around them is not included: see `bind` and "
            "`output` of the ledger. On a GPU it is only the launch."
        ),
        bars=_bounded(bars, "other operators"),
    )


def _sessions(capture: Capture, overview: Overview) -> Figure:
    timed = [cost.session for cost in overview.sessions if cost.session.calls and cost.session.p50_ns]
    shown = timed[:MAX_BARS]
    calls = sum(session.calls for session in capture.sessions)
    some = f", shown for the {len(shown)} of {len(timed):,} sessions that took the most time" if len(timed) > len(shown) else ""
    return Figure(
        title="How consistent are call times?",
        caption=f"{'The only call' if calls == 1 else f'All {calls:,} calls'}{some}.",
        method=(
            "Every call of a session is timed from binding its inputs to returning its outputs, the first calls included. Percentiles "
            "come from a histogram whose buckets are at most 3.2 % wide; the slowest call is exact. "
            f"{CLOCK} A far outlier is usually the first call."
        ),
        bars=tuple(map(_session, shown)),
        words={"median": "median", "p90": "to 90 %", "p99": "to 99 %"},
    )


def _session(session: Session) -> Bar:
    middle = session.p50_ns or 0
    p90 = max(session.p90_ns or middle, middle)
    p99 = max(session.p99_ns or p90, p90)
    return Bar(
        label=f"{session.session_id}  {clipped(session.input_signature, 24)}".strip(),
        parts={"median": float(middle), "p90": float(p90 - middle), "p99": float(p99 - p90)},
        text=f"{time_from_ns(middle)}, slowest {time_from_ns(max(session.max_ns or p99, middle))}",
    )


def _compiling(capture: Capture, overview: Overview) -> Figure:
    phases = [phase for phase in overview.phases if phase.total_ns > 0]
    whole = sum(phase.total_ns for phase in phases)
    bars = (
        Bar(
            label=PHASE_WORDS[phase.phase],
            parts={"run": float(phase.total_ns)},
            text=f"{time_from_ns(phase.total_ns)}  ({percent(phase.total_ns / whole)})",
        )
        for phase in phases
    )
    return Figure(
        title="How long does compiling take?",
        caption=f"Measured once, while compiling: sum over {counted(len(capture.graphs), 'graph')}, recompiles included.",
        method=(
            "Dynamo and AOTAutograd report their phases in torch's structured log; ortlens times its own: partitioning, converting, "
            "optimising and creating sessions. Each happens once per graph, so these are single measurements, on a machine that may "
            "have been busy. A model found in cache_dir is not converted again."
        ),
        bars=tuple(bars),
    )


def _memory(capture: Capture) -> Figure | None:
    """Show who holds how much memory; None where no session recorded its memory."""
    rows = [row for row in memory(capture) if row.session_id is not None]
    if all(row.held_bytes is None for row in rows):
        return None
    sums = {column: sum(getattr(row, column) or 0 for row in rows) for _, column in _HOLDERS}
    # Sessions of one partition read the same weights.
    sums["weight_bytes"] = sum({row.partition_id: row.weight_bytes or 0 for row in rows}.values())
    return Figure(
        title="Where does the memory go?",
        caption=f"Read once, when each session was created: sum over {counted(len(rows), 'session')}.",
        method=(
            "Weights are the tensors that the partitions read; ONNX Runtime reads frozen ones from PyTorch's memory. The heap used by "
            "creating a session is the growth of the C library's heap meanwhile: packed copies of weights, and ONNX Runtime's own "
            "structures. The arena is the peak that ONNX Runtime's allocator reported during a profile; "
            "`memory()` has the same figures per session. Weights that several partitions read are counted once for each."
        ),
        bars=tuple(
            Bar(label=name, parts={"run": float(sums[column])}, text=size_from_bytes(sums[column]))
            for name, column in _HOLDERS
            if sums[column] > 0
        ),
    )


def _runs(kernels: Iterable[Kernel]) -> str:
    counts = sorted({kernel.calls for kernel in kernels})
    if not counts:
        return "no run"
    return counted(counts[0], "profiled run") if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,} profiled runs"
