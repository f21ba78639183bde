"""The key figures of a capture: as plain numbers, for loggers, and as the row of a case of a survey."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortlens.analysis.answers.overview import compilation_count
from ortlens.analysis.coverage import coverage_of, own_recompiles
from ortlens.analysis.fallbacks import fallback_groups
from ortlens.analysis.ledger import ledger_totals
from ortlens.analysis.problems.stream import findings_of
from ortlens.analysis.speed import call_pace
from ortlens.analysis.timing import compile_total_ns
from ortlens.trace.records import ProcessStatus, column, optional

if TYPE_CHECKING:
    from ortlens.trace.records import Capture


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
    node_count: int | None = optional("Compute nodes of the current graphs.")
    partitions: int | None = optional("Partitions of the current graphs: ONNX models.", brief=5)
    coverage: float | None = optional("Share of the compute nodes that ONNX Runtime runs, 0 to 1.", brief=4)
    fallbacks: tuple[str, ...] = column("Operators that stay in PyTorch with their counts, slowest first, as `aten.sort (2)`.", default=())
    call_ns: int | None = optional("Wall time of a call as compiled; empty where no call was measured.", unit="ns", brief=8)
    eager_ns: int | None = optional("Time of a call without torch.compile, in turns with those.", unit="ns")
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
    coverage, ledger, pace = coverage_of(capture), ledger_totals(capture), call_pace(capture)
    first = next(iter(findings_of(capture)), None)
    checked = [row for row in capture.numerics if row.ok is not None]
    return {
        "graphs": len(capture.graphs),
        "breaks": len(capture.breaks),
        "recompiles": len(own_recompiles(capture)),
        "node_count": coverage.node_count,
        "partitions": coverage.partition_count,
        "coverage": coverage.share,
        "fallbacks": tuple(f"{group.target} ({group.node_count})" for group in fallback_groups(capture)[:_MOST_FALLBACKS]),
        "call_ns": ledger.total_ns if ledger is not None and ledger.is_measured else None,
        "eager_ns": None if pace is None else pace.eager_ns,
        "ratio": None if pace is None else pace.ratio,
        "compile_ns": compile_total_ns(capture),
        "max_abs": max((row.max_abs for row in checked if row.max_abs is not None), default=None),
        "wrong": sum(not row.ok for row in checked) if checked else None,
        "findings": len(findings_of(capture)),
        "finding": None if first is None else first.title,
        "severity": None if first is None else first.severity,
    }


def key_figures(capture: Capture) -> dict[str, float]:
    """Collect the key figures of a capture by name.

    Counts are always there; what was not measured has no entry, and nothing is infinite. Times are in nanoseconds.
    """
    coverage, ledger, pace = coverage_of(capture), ledger_totals(capture), call_pace(capture)
    severities = [finding.severity for finding in findings_of(capture)]
    figures: dict[str, float | None] = {
        "graphs": compilation_count(capture.graphs),
        "breaks": len(capture.breaks),
        "recompiles": len(own_recompiles(capture)),
        "partitions": coverage.partition_count,
        "sessions": len(capture.sessions),
        "nodes": coverage.node_count,
        "nodes_in_ort": coverage.ort_node_count,
        "coverage": coverage.share,
        "compile_ns": compile_total_ns(capture),
        "errors": severities.count("error"),
        "warnings": severities.count("warning"),
    }
    if ledger is not None and ledger.is_measured:
        figures |= {"call_ns": ledger.total_ns, "ort_ns": ledger.ns.get("run", 0)}
    if pace is not None and pace.ratio:
        figures |= {"uncompiled_ns": pace.eager_ns, "speedup": 1 / pace.ratio}
    if capture.numerics:
        figures["values_that_differ"] = sum(row.ok is False for row in capture.numerics)
        figures["max_abs"] = max((row.max_abs for row in capture.numerics if row.max_abs is not None), default=None)
    return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
