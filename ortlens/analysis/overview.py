"""A capture at a glance: the answers that every view starts from."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from ortlens.analysis.advice import Adviser, advice_for_fallback, advised, cause_of
from ortlens.analysis.coverage import (
    Coverage,
    code_key,
    coverage_of,
    current_graphs,
    is_dry_run,
    ort_node_count,
    own_graphs,
    own_recompiles,
    partitioned_nodes,
)
from ortlens.analysis.findings.computed_ahead import ComputedAhead, computed_ahead
from ortlens.analysis.findings.facts import splitting_costs
from ortlens.analysis.findings.registry import findings_of
from ortlens.analysis.generation import Generation, generation_of
from ortlens.analysis.index import grouped
from ortlens.analysis.ledger import LedgerTotals, totals_of
from ortlens.analysis.memory import CallMemory, call_memory
from ortlens.analysis.onnx_model import OnnxFacts, onnx_facts
from ortlens.analysis.slow_lines import SlowLine, slow_lines
from ortlens.analysis.speed import Pace, pace_of_call
from ortlens.analysis.timing import (
    CallTime,
    GraphTime,
    PhaseTime,
    SessionCost,
    call_time,
    call_times,
    compile_phases,
    compile_total_ns,
    fallback_ns,
    graph_times,
    price_of,
    recompile_times,
    slowest_sessions,
)
from ortlens.trace.records import same

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ortlens.analysis.catalogue import Advice
    from ortlens.trace.records import Break, Capture, Fallback, FallbackCause, Figures, Finding, Graph, Node, ReasonCode, Recompile

_BUSY = 1.5  # times the shortest call; on an idle machine half of the calls stay below 1.2
_CROWDED = 0.25  # cores: others had this many, and fewer were idle


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackGroup:
    """Nodes with one operator and one reason that stay in PyTorch."""

    target: str  # operator, as `aten.median.dim`
    reason_code: ReasonCode  # why, as a code
    reason: str  # why, in words, of the first node
    exception: str | None  # what was raised, with its class, of the first node that has one
    node_count: int  # nodes of the current graphs
    file: str | None  # file of the first user line known
    line: int | None  # its number
    source: str | None  # its text
    module: str | None  # path and class of the nn.Module of that node, or of the first that has one, as `layers.0 (GELU)`
    calls: int  # how often PyTorch ran them, earlier versions of the graphs included
    total_ns: int  # time it spent in them, likewise
    ns_per_call: int | None  # time in them per call of the model, see `timing.fallback_ns`; None without calls
    splitting_ns: int  # besides, about what entering ONNX Runtime again behind them costs per call; 0 where they split nothing
    cause: FallbackCause | None  # what else is known of why, of the first node
    graph_ids: tuple[str, ...]  # the current graphs that they are in
    dtype: str | None  # data type of the first node
    advice: Advice  # what to do


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRow:
    """One graph with what was found out about it."""

    graph: Graph  # the record
    ort_node_count: int | None  # compute nodes that ONNX Runtime runs; None under another backend
    is_current: bool  # false when a recompile replaced it
    time: GraphTime  # its calls and time


@dataclass(frozen=True, slots=True, kw_only=True)
class UncountedCalls:
    """Calls of which none could be timed."""

    made: int  # the calls, the first included where `explain` made them
    compiled: int  # those that compiled code
    created: int  # those that compiled nothing, but created a session


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The answers to the questions everyone asks first."""

    name: str  # name of the capture, may be empty
    backend: str  # backend that was observed
    graph_count: int  # compilations, that is distinct compile ids, recompiles included; a forward and its backward are one
    break_occurrences: int  # graph boundaries that the breaks make together
    breaks: tuple[Break, ...]  # distinct breaks, the most expensive or most frequent first
    recompiles: tuple[Recompile, ...]  # every recompile of the program, in order
    recompile_ns: Mapping[str, int]  # time of each, the backend's work included, by compile id
    coverage: Coverage  # how much runs in ONNX Runtime
    fallbacks: tuple[FallbackGroup, ...]  # what stays in PyTorch, the slowest or most frequent first
    graphs: tuple[GraphRow, ...]  # every graph, in order
    sessions: tuple[SessionCost, ...]  # every session, slowest first
    call: CallTime  # what one call of the function compiled first costs, by the logs of all calls
    calls: tuple[CallTime, ...]  # the same for every function that was called
    spread: float | None  # median of the measured calls over the shortest; from 1.5 on the machine was busy. None where it is not known
    # cores that other processes had during the measured calls, where they left none idle; None else, or where it is not known
    others: float | None
    is_crowded: bool  # whether threads of PyTorch or ONNX Runtime waited for these: then either may seem a hundred times as fast
    uncounted: UncountedCalls | None  # calls to be measured that all compiled code or created sessions, so that no time is known; None else
    explain_calls: tuple[int, int]  # how often `explain` called the function, as compiled and as it is; 0 where it did not
    pace: Pace | None  # a call as compiled against one without torch.compile; None where not both were measured
    is_dry_run: bool  # whether nothing was run, so that everything is a plan
    planned_for: tuple[str, ...]  # execution providers beside the CPU's that a dry run is planned for
    planned_without: tuple[str, ...]  # what it could not plan without a GPU: `gradients`, `attention`
    ledger: LedgerTotals | None  # where the wall time of a call went, all graphs together; None when nothing ran
    compile_ns: int  # time of all compilations together
    phases: tuple[PhaseTime, ...]  # the same by phase
    findings: tuple[Finding, ...]  # what was recorded and what the rules find, errors first, then the most expensive
    break_advice: tuple[Advice | None, ...]  # what to change about each of the breaks
    recompile_advice: tuple[Advice | None, ...]  # the same of the recompiles
    generation: Generation | None = None  # prefill and decode, where tokens were generated; None elsewhere
    slow_lines: tuple[SlowLine, ...] = ()  # the lines of the program that take most of a measured call; empty where not known
    ahead: ComputedAhead | None = None  # what no call computes, where that is most of the work; None elsewhere
    memory: CallMemory | None = None  # what a measured call holds; None where its activations are few, or it was not measured
    onnx: OnnxFacts | None = None  # of an ONNX model or a session; None where something was compiled

    @property
    def is_busy(self) -> bool:
        """Whether other work ran beside the measured calls, so that times are less certain."""
        return self.others is not None or (self.spread is not None and self.spread >= _BUSY)


def _spread(figures: Figures) -> float | None:
    return figures.ledger_spread if 1 <= (figures.ledger_spread or 0) < inf else None  # a damaged capture may hold any number


def _others(figures: Figures) -> float | None:
    others, idle = figures.ledger_others, figures.ledger_idle
    return others if others is not None and idle is not None and inf > others >= _CROWDED > idle else None


def _uncounted(figures: Figures) -> UncountedCalls | None:
    compiled, created = figures.ledger_compiling or 0, figures.ledger_creating or 0
    if min(compiled, created) < 0 or not compiled + created:
        return None
    return UncountedCalls(made=max(figures.ledger_made or 0, compiled + created), compiled=compiled, created=created)


def overview_of(capture: Capture) -> Overview:
    """Read the answers off any capture; counts are 0 and tuples empty where nothing was recorded."""
    capture = advised(capture)
    figures, totals = capture.figures, totals_of(capture.ledger)
    others, adviser, recompiles = _others(figures), Adviser(capture), own_recompiles(capture)
    breaks = tuple(sorted(capture.breaks, key=lambda item: (-(price_of(item) or 0), -item.occurrences)))
    return Overview(
        name=capture.name,
        backend=capture.backend,
        graph_count=compilation_count(capture.graphs),
        break_occurrences=sum(item.occurrences for item in capture.breaks),
        breaks=breaks,
        recompiles=recompiles,
        recompile_ns=recompile_times(capture),
        coverage=coverage_of(capture),
        fallbacks=fallback_groups(capture),
        graphs=graph_rows(capture),
        sessions=slowest_sessions(capture),
        call=call_time(capture),
        calls=call_times(capture),
        spread=_spread(figures),
        others=others,
        is_crowded=others is not None and figures.torch_threads not in (None, 1),
        uncounted=_uncounted(figures),
        explain_calls=(figures.explain_calls or 0, figures.explain_uncompiled_calls or 0),
        pace=pace_of_call(totals, figures),
        is_dry_run=is_dry_run(capture),
        planned_for=figures.planned_for,
        planned_without=figures.planned_without,
        ledger=totals,
        compile_ns=compile_total_ns(capture),
        phases=compile_phases(capture),
        findings=findings_of(capture),
        break_advice=tuple(map(adviser, breaks)),
        recompile_advice=tuple(map(adviser, recompiles)),
        generation=generation_of(capture),
        slow_lines=slow_lines(capture),
        ahead=computed_ahead(capture),
        memory=call_memory(capture),
        onnx=onnx_facts(capture),
    )


def compilation_count(graphs: Iterable[Graph]) -> int:
    """Count the compilations that graphs come from, without those of `verify`; a forward and its backward are one.

    Equal ids of different functions are two: numbers restart on a reset.
    """
    graphs = own_graphs(graphs)
    ahead = {(graph.compile_id or graph.graph_id, *code_key(graph)[1:]) for graph in graphs if graph.phase != "backward"}
    seen = {compiled[0] for compiled in ahead}
    return len(ahead) + len({graph.compile_id or graph.graph_id for graph in graphs} - seen)


def graph_rows(capture: Capture) -> tuple[GraphRow, ...]:
    """List every graph with its counts and times."""
    current = {graph.graph_id for graph in current_graphs(capture.graphs)}
    partitioned = partitioned_nodes(capture)
    times = graph_times(capture)
    return tuple(
        GraphRow(
            graph=graph,
            ort_node_count=ort_node_count(graph, partitioned),
            is_current=graph.graph_id in current,
            time=times[graph.graph_id],
        )
        for graph in capture.graphs
    )


def fallback_groups(capture: Capture) -> tuple[FallbackGroup, ...]:
    """Group what stays in PyTorch by operator and reason, slowest first, then most frequent.

    Nodes are counted in the current graphs, so that the counts agree with the coverage; times are summed over every version, since that
    time was really spent.
    """
    replaced = {graph.graph_id for graph in capture.graphs} - {graph.graph_id for graph in current_graphs(capture.graphs)}
    prices, splitting = fallback_ns(capture), splitting_costs(capture)
    members = grouped(((row.target, row.reason_code), row) for row in capture.fallbacks)
    dtypes = {(node.graph_id, node.node): node.dtype for node in capture.nodes}
    modules = {(node.graph_id, node.node): _module(node) for node in capture.nodes if node.module}
    counts = {cause: sum(row.graph_id not in replaced for row in rows) for cause, rows in members.items()}

    def group(rows: list[Fallback], node_count: int) -> FallbackGroup:
        placed = min(rows, key=lambda row: (not row.file, (row.graph_id, row.node) not in modules))  # the first of the best
        priced = [prices[row.graph_id, row.node] for row in rows if row.calls and prices]
        return FallbackGroup(
            exception=next((row.exception for row in (placed, *rows) if row.exception), None),
            node_count=node_count,
            module=modules.get((placed.graph_id, placed.node)),
            calls=sum(row.calls for row in rows),
            total_ns=sum(row.total_ns for row in rows),
            ns_per_call=round(sum(priced)) if priced else None,
            splitting_ns=round(sum(splitting.get((row.graph_id, row.node), 0.0) for row in rows)),
            cause=cause_of(placed),
            graph_ids=tuple(dict.fromkeys(row.graph_id for row in rows if row.graph_id not in replaced)),
            dtype=dtypes.get((placed.graph_id, placed.node)),
            advice=advice_for_fallback(placed, has_instructions=capture.figures.cpu_bfloat16),
            **same(placed, "target", "reason_code", "reason", "file", "line", "source"),
        )

    kept = [group(rows, counts[cause]) for cause, rows in members.items() if counts[cause]]
    return tuple(sorted(kept, key=lambda group: (-(group.ns_per_call or 0), -group.total_ns, -group.node_count, group.target)))


def _module(node: Node) -> str:
    return f"{node.module} ({node.module_type})" if node.module_type else f"{node.module}"
