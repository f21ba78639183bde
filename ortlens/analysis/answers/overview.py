"""A capture at a glance: the answers that every view starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ortlens.analysis.computed_ahead import ComputedAhead, computed_ahead
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
from ortlens.analysis.fallbacks import FallbackGroup, fallback_groups
from ortlens.analysis.generation import Generation, generation_of
from ortlens.analysis.ledger import LedgerTotals, totals_of
from ortlens.analysis.memory import CallMemory, call_memory
from ortlens.analysis.onnx_model import OnnxFacts, onnx_facts
from ortlens.analysis.problems.advice import advised
from ortlens.analysis.problems.stream import findings_of, problems_of
from ortlens.analysis.slow_lines import SlowLine, slow_lines
from ortlens.analysis.speed import Pace, is_busy, is_crowded, others_of, pace_of_call, spread_of
from ortlens.analysis.timing import (
    CallTime,
    GraphTime,
    PhaseTime,
    SessionCost,
    call_time,
    call_times,
    compile_phases,
    compile_total_ns,
    costliest_breaks,
    graph_times,
    recompile_times,
    slowest_sessions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ortlens.analysis.problems.problem import Problem
    from ortlens.trace.records import Break, Capture, Figures, Finding, Graph, Recompile


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


def _uncounted(figures: Figures) -> UncountedCalls | None:
    compiled, created = figures.ledger_compiling or 0, figures.ledger_creating or 0
    if min(compiled, created) < 0 or not compiled + created:
        return None
    return UncountedCalls(made=max(figures.ledger_made or 0, compiled + created), compiled=compiled, created=created)


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
    is_busy: bool  # whether other work ran beside the measured calls, so that times are less certain
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
    problems: tuple[Problem, ...] = field(metadata={"plain": False})  # what can be done, the most useful first; actions in JSON
    generation: Generation | None = None  # prefill and decode, where tokens were generated; None elsewhere
    slow_lines: tuple[SlowLine, ...] = ()  # the lines of the program that take most of a measured call; empty where not known
    ahead: ComputedAhead | None = None  # what no call computes, where that is most of the work; None elsewhere
    memory: CallMemory | None = None  # what a measured call holds; None where its activations are few, or it was not measured
    onnx: OnnxFacts | None = None  # of an ONNX model or a session; None where something was compiled


def overview_of(capture: Capture) -> Overview:
    """Read the answers off any capture; counts are 0 and tuples empty where nothing was recorded."""
    capture = advised(capture)
    figures, totals = capture.figures, totals_of(capture.ledger)
    return Overview(
        name=capture.name,
        backend=capture.backend,
        graph_count=compilation_count(capture.graphs),
        break_occurrences=sum(item.occurrences for item in capture.breaks),
        breaks=costliest_breaks(capture),
        recompiles=own_recompiles(capture),
        recompile_ns=recompile_times(capture),
        coverage=coverage_of(capture),
        fallbacks=fallback_groups(capture),
        graphs=graph_rows(capture),
        sessions=slowest_sessions(capture),
        call=call_time(capture),
        calls=call_times(capture),
        spread=spread_of(figures),
        others=others_of(figures),
        is_busy=is_busy(figures),
        is_crowded=is_crowded(figures),
        uncounted=_uncounted(figures),
        explain_calls=(figures.explain_calls or 0, figures.explain_uncompiled_calls or 0),
        pace=pace_of_call(totals, figures),
        is_dry_run=is_dry_run(capture),
        planned_for=figures.planned_for,
        planned_without=figures.planned_without,
        ledger=totals,
        compile_ns=compile_total_ns(capture),
        phases=compile_phases(capture),
        findings=tuple(item.record() for item in findings_of(capture)),
        problems=problems_of(capture),
        generation=generation_of(capture),
        slow_lines=slow_lines(capture),
        ahead=computed_ahead(capture),
        memory=call_memory(capture),
        onnx=onnx_facts(capture),
    )
