"""A capture at a glance: the answers that everyone asks for first, by name, and its key figures, for loggers and a row of a survey."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ortlens.analysis.answers.verdict import numbers_of
from ortlens.analysis.costs import FallbackGroup, SlowLine, fallback_groups, slow_lines
from ortlens.analysis.coverage import (
    ComputedAhead,
    Coverage,
    code_key,
    computed_ahead,
    coverage_of,
    current_ids,
    given_up,
    is_dry_run,
    ort_node_count,
    own_graphs,
    own_recompiles,
    partitioned_nodes,
)
from ortlens.analysis.generation import Generation, generation_of
from ortlens.analysis.index import once
from ortlens.analysis.ledger import LedgerTotals, ledger_totals, measured_call
from ortlens.analysis.memory import CallMemory, call_memory
from ortlens.analysis.onnx_model import OnnxFacts, onnx_facts
from ortlens.analysis.problems.advice import advised
from ortlens.analysis.problems.stream import finding_records, findings_of
from ortlens.analysis.speed import Pace, call_pace, is_busy, is_crowded, others_of, spread_of
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
from ortlens.trace.records import Break, Capture, Finding, Graph, ProcessStatus, PythonFrame, Recompile, column, optional


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


def compilation_count(capture: Capture) -> int:
    """Count the compilations that its graphs come from, without those of `verify`; a forward and its backward are one.

    Equal ids of different functions are two: numbers restart on a reset.
    """
    graphs = own_graphs(capture)
    ahead = {(graph.compile_id or graph.graph_id, *code_key(graph)[1:]) for graph in graphs if graph.phase != "backward"}
    seen = {compiled[0] for compiled in ahead}
    return len(ahead) + len({graph.compile_id or graph.graph_id for graph in graphs} - seen)


@once
def graph_rows(capture: Capture) -> tuple[GraphRow, ...]:
    """List every graph with its counts and times."""
    partitioned = partitioned_nodes(capture)
    times = graph_times(capture)
    return tuple(
        GraphRow(
            graph=graph,
            ort_node_count=ort_node_count(graph, partitioned),
            is_current=graph.graph_id in current_ids(capture),
            time=times[graph.graph_id],
        )
        for graph in capture.graphs
    )


def uncounted_calls(capture: Capture) -> UncountedCalls | None:
    """Return the calls to be measured that all compiled code or created sessions, so that no time is known; else None."""
    figures = capture.figures
    compiled, created = figures.ledger_compiling or 0, figures.ledger_creating or 0
    if min(compiled, created) < 0 or not compiled + created:
        return None
    return UncountedCalls(made=max(figures.ledger_made or 0, compiled + created), compiled=compiled, created=created)


def explain_calls(capture: Capture) -> tuple[int, int]:
    """Return how often `explain` called the function, as compiled and as it is; 0 where it did not."""
    return capture.figures.explain_calls or 0, capture.figures.explain_uncompiled_calls or 0


def break_occurrences(capture: Capture) -> int:
    """Count the graph boundaries that the breaks make together."""
    return sum(item.occurrences for item in capture.breaks)


class Fact(NamedTuple):
    """An answer: its type, what it means, and how it is found."""

    type: Any
    meaning: str
    of: Callable[[Capture], Any]


FACTS: Mapping[str, Fact] = {
    "name": Fact(str, "Name of the capture, may be empty.", lambda capture: capture.name),
    "backend": Fact(str, "Backend that was observed.", lambda capture: capture.backend),
    "graph_count": Fact(
        int, "Compilations, that is distinct compile ids, recompiles included; a forward and its backward are one.", compilation_count
    ),
    "break_occurrences": Fact(int, "Graph boundaries that the breaks make together.", break_occurrences),
    "breaks": Fact(tuple[Break, ...], "Distinct breaks, the most expensive or most frequent first.", costliest_breaks),
    "recompiles": Fact(tuple[Recompile, ...], "Every recompile of the program, in order.", own_recompiles),
    "given_up": Fact(tuple[PythonFrame, ...], "Functions that run operators without being compiled, those with the most first.", given_up),
    "recompile_ns": Fact(Mapping[str, int], "Time of each, the backend's work included, by compile id.", recompile_times),
    "coverage": Fact(Coverage, "How much runs in ONNX Runtime.", coverage_of),
    "fallbacks": Fact(tuple[FallbackGroup, ...], "What stays in PyTorch, the slowest or most frequent first.", fallback_groups),
    "graphs": Fact(tuple[GraphRow, ...], "Every graph, in order.", graph_rows),
    "sessions": Fact(tuple[SessionCost, ...], "Every session, slowest first.", slowest_sessions),
    "call": Fact(CallTime, "What one call of the function compiled first costs, by the logs of all calls.", call_time),
    "calls": Fact(tuple[CallTime, ...], "The same for every function that was called.", call_times),
    "spread": Fact(
        float | None,
        "Median of the measured calls over the shortest; from 1.5 on the machine was busy. None where it is not known.",
        spread_of,
    ),
    "others": Fact(
        float | None, "Cores that other processes had during the measured calls, where they left none idle; else None.", others_of
    ),
    "is_busy": Fact(bool, "Whether other work ran beside the measured calls, so that times are less certain.", is_busy),
    "is_crowded": Fact(
        bool, "Whether threads of PyTorch or ONNX Runtime waited for these: then either may seem a hundred times as fast.", is_crowded
    ),
    "uncounted": Fact(
        UncountedCalls | None,
        "Calls to be measured that all compiled code or created sessions, so that no time is known; else None.",
        uncounted_calls,
    ),
    "explain_calls": Fact(
        tuple[int, int], "How often `explain` called the function, as compiled and as it is; 0 where it did not.", explain_calls
    ),
    "pace": Fact(Pace | None, "A call as compiled against one in eager PyTorch; None where not both were measured.", call_pace),
    "is_dry_run": Fact(bool, "Whether nothing was run, so that everything is a plan.", is_dry_run),
    "planned_for": Fact(
        tuple[str, ...], "Execution providers beside the CPU's that a dry run is planned for.", lambda capture: capture.figures.planned_for
    ),
    "planned_without": Fact(
        tuple[str, ...], "What it could not plan without a GPU: `gradients`, `attention`.", lambda capture: capture.figures.planned_without
    ),
    "ledger": Fact(LedgerTotals | None, "Where the wall time of a call went, all graphs together; None when nothing ran.", ledger_totals),
    "compile_ns": Fact(int, "Time of all compilations together.", compile_total_ns),
    "phases": Fact(tuple[PhaseTime, ...], "The same by phase.", compile_phases),
    "findings": Fact(
        tuple[Finding, ...], "What was recorded and what the rules find, errors first, then the most expensive.", finding_records
    ),
    "generation": Fact(Generation | None, "Prefill and decode, where tokens were generated; None elsewhere.", generation_of),
    "slow_lines": Fact(
        tuple[SlowLine, ...], "The lines of the program that take most of a measured call; empty where not known.", slow_lines
    ),
    "ahead": Fact(ComputedAhead | None, "What no call computes, where that is most of the work; None elsewhere.", computed_ahead),
    "memory": Fact(
        CallMemory | None, "What a measured call holds; None where its activations are few, or it was not measured.", call_memory
    ),
    "onnx": Fact(OnnxFacts | None, "Of an ONNX model or a session; None where something was compiled.", onnx_facts),
}
"""All of them, as `--json` prints them."""


def overview_of(capture: Capture) -> dict[str, Any]:
    """Compute every answer of any capture; counts are 0 and lists empty where nothing was recorded."""
    capture = advised(capture)
    return {name: fact.of(capture) for name, fact in FACTS.items()}


_MOST_FALLBACKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyRow:
    """One case: a model under one set of options, in a process of its own."""

    case: str = column("Name of the case.", brief=1)
    options: str = column("Options of the backend that differ from their defaults, as `min_partition_nodes=2`.", default="", brief=2)
    backend: str = column("The backend.", default="ortlens", brief=14)
    status: ProcessStatus = column(
        "`ok`; `failed`: it raised; `crashed`: its process ended by a signal or without an answer; `timeout` and `memory`: it went beyond "
        "a limit and was ended; `lost`: no worker brought an answer.",
        brief=3,
    )
    reason: str = column("Why there is no result, in one line; empty where there is one.", default="", brief=12)
    graphs: int | None = optional("Graphs compiled, recompiles included.")
    breaks: int | None = optional("Distinct graph breaks.", brief=6)
    recompiles: int | None = optional("Recompiles.", brief=7)
    skipped: int | None = optional("Functions that run operators without being compiled, such as those that PyTorch gave up.", brief=15)
    node_count: int | None = optional("Compute nodes of the current graphs.")
    partitions: int | None = optional("Partitions of the current graphs: ONNX models.", brief=5)
    coverage: float | None = optional("Share of the operators of a call that ONNX Runtime runs, 0 to 1.", brief=4)
    fallbacks: tuple[str, ...] = column("Operators that stay in PyTorch with their counts, slowest first, as `aten.sort (2)`.", default=())
    call_ns: int | None = optional("Wall time of a call as compiled; empty where no call was measured.", unit="ns", brief=8)
    eager_ns: int | None = optional("Time of a call in eager PyTorch, in turns with those.", unit="ns")
    ratio: float | None = optional("`call_ns` over `eager_ns`: below 1 is faster than PyTorch.", brief=9)
    compile_ns: int | None = optional("All compilations together.", unit="ns", brief=10)
    max_abs: float | None = optional("Largest absolute difference from PyTorch; empty without `verify`.", brief=11)
    wrong: int | None = optional("Compared values that are out of tolerance; empty without `verify`.")
    findings: int | None = optional("Findings.")
    finding: str | None = optional("Title of the first of them.", brief=13)
    severity: str | None = optional("Its severity.")
    case_ns: int = column("The whole process, from its start to its end.", unit="ns", default=0)
    peak_bytes: int | None = optional(
        "The most memory that its processes were seen to hold together, files that are only mapped apart; Linux only.", unit="bytes"
    )
    capture: str | None = optional("File of the capture.")
    report: str | None = optional("File of the report.")
    log: str = column("Last lines that it printed.", default="")
    host: str = column("Machine that it ran on.", default="")
    kept: bool = column("Whether it was taken from an earlier run of the survey.", default=False)
    key: str = column("Digest of the case, its options and the versions, by which a result is found again.", default="")


def figures_of(capture: Capture) -> dict[str, Any]:
    """Compute the fields of `SurveyRow` that are key figures of a capture; None where the capture does not tell."""
    coverage, call, pace, numbers = coverage_of(capture), measured_call(capture), call_pace(capture), numbers_of(capture)
    first = next(iter(findings_of(capture)), None)
    return {
        "graphs": len(capture.graphs),
        "breaks": len(capture.breaks),
        "recompiles": len(own_recompiles(capture)),
        "skipped": len(given_up(capture)),
        "node_count": coverage.node_count,
        "partitions": coverage.partition_count,
        "coverage": coverage.share,
        "fallbacks": tuple(f"{group.target} ({group.node_count})" for group in fallback_groups(capture)[:_MOST_FALLBACKS]),
        "call_ns": None if call is None else call.total_ns,
        "eager_ns": None if pace is None else pace.eager_ns,
        "ratio": None if pace is None else pace.ratio,
        "compile_ns": compile_total_ns(capture),
        "max_abs": None if numbers is None else numbers.max_abs,
        "wrong": numbers.wrong_in_all if numbers is not None and numbers.right_in_all + numbers.wrong_in_all else None,
        "findings": len(findings_of(capture)),
        "finding": None if first is None else first.title,
        "severity": None if first is None else first.severity,
    }


def key_figures(capture: Capture) -> dict[str, float]:
    """Collect the key figures of a capture by name.

    Counts are always there; what was not measured has no entry, and nothing is infinite. Times are in nanoseconds.
    """
    coverage, call, pace = coverage_of(capture), measured_call(capture), call_pace(capture)
    severities = [finding.severity for finding in findings_of(capture)]
    known = figures_of(capture)
    figures: dict[str, float | None] = {
        "graphs": compilation_count(capture),
        **{name: known[name] for name in ("breaks", "recompiles", "skipped", "partitions")},
        "sessions": len(capture.sessions),
        "nodes": coverage.node_count,
        "nodes_in_ort": coverage.ort_node_count,
        **{name: known[name] for name in ("coverage", "compile_ns")},
        "errors": severities.count("error"),
        "warnings": severities.count("warning"),
    }
    if call is not None:
        figures |= {"call_ns": call.total_ns, "ort_ns": call.ns.get("run", 0)}
    if pace is not None and pace.ratio:
        figures |= {"uncompiled_ns": pace.eager_ns, "speedup": 1 / pace.ratio}
    if (numbers := numbers_of(capture)) is not None:
        figures |= {"values_that_differ": numbers.wrong_in_all, "max_abs": numbers.max_abs}
    return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
