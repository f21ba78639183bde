"""The key figures of a capture: as plain numbers, for loggers, and as the row of a case of a survey."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ortlens.analysis.answers.overview import overview_of
from ortlens.trace.records import column, optional

if TYPE_CHECKING:
    from ortlens.trace.records import Capture


SurveyStatus: TypeAlias = Literal["ok", "failed", "crashed", "timeout", "memory", "lost"]

_MOST_FALLBACKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyRow:
    """One case: a model under one set of options, in a process of its own."""

    case: str = column("Name of the case.")
    options: str = column("Options of the backend that differ from their defaults, as `min_partition_nodes=2`.", default="")
    backend: str = column("The backend.", default="ortlens")
    status: SurveyStatus = column(
        "`ok`; `failed`: it raised; `crashed`: its process ended by a signal or without an answer; `timeout` and `memory`: it went beyond "
        "a limit and was ended; `lost`: no worker brought an answer."
    )
    reason: str = column("Why there is no result, in one line; empty where there is one.", default="")
    graphs: int | None = optional("Graphs compiled, recompiles included.")
    breaks: int | None = optional("Distinct graph breaks.")
    recompiles: int | None = optional("Recompiles.")
    node_count: int | None = optional("Compute nodes of the current graphs.")
    partitions: int | None = optional("Partitions of the current graphs: ONNX models.")
    coverage: float | None = optional("Share of the compute nodes that ONNX Runtime runs, 0 to 1.")
    fallbacks: tuple[str, ...] = column("Operators that stay in PyTorch with their counts, slowest first, as `aten.sort (2)`.", default=())
    call_ns: int | None = optional("Wall time of a call as compiled; empty where no call was measured.", unit="ns")
    eager_ns: int | None = optional("Time of a call without torch.compile, in turns with those.", unit="ns")
    ratio: float | None = optional("`call_ns` over `eager_ns`: below 1 is faster than PyTorch.")
    compile_ns: int | None = optional("All compilations together.", unit="ns")
    max_abs: float | None = optional("Largest absolute difference from PyTorch; empty without `verify`.")
    wrong: int | None = optional("Compared values that are out of tolerance; empty without `verify`.")
    findings: int | None = optional("Findings.")
    finding: str | None = optional("Title of the first of them.")
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
    overview = overview_of(capture)
    first = overview.findings[0] if overview.findings else None
    call_ns = overview.ledger.total_ns if overview.ledger is not None and overview.ledger.is_measured else None
    eager_ns = overview.pace.eager_ns if overview.pace is not None else None
    checked = [row for row in capture.numerics if row.ok is not None]
    return {
        "graphs": len(capture.graphs),
        "breaks": len(capture.breaks),
        "recompiles": len(overview.recompiles),
        "node_count": overview.coverage.node_count,
        "partitions": overview.coverage.partition_count,
        "coverage": overview.coverage.share,
        "fallbacks": tuple(f"{group.target} ({group.node_count})" for group in overview.fallbacks[:_MOST_FALLBACKS]),
        "call_ns": call_ns,
        "eager_ns": eager_ns,
        "ratio": overview.pace.ratio if overview.pace is not None else None,
        "compile_ns": overview.compile_ns,
        "max_abs": max((row.max_abs for row in checked if row.max_abs is not None), default=None),
        "wrong": sum(not row.ok for row in checked) if checked else None,
        "findings": len(overview.findings),
        "finding": None if first is None else first.title,
        "severity": None if first is None else first.severity,
    }


def key_figures(capture: Capture) -> dict[str, float]:
    """Collect the key figures of a capture by name.

    Counts are always there; what was not measured has no entry, and nothing is infinite. Times are in nanoseconds.
    """
    overview = overview_of(capture)
    coverage, ledger = overview.coverage, overview.ledger
    figures: dict[str, float | None] = {
        "graphs": overview.graph_count,
        "breaks": len(overview.breaks),
        "recompiles": len(overview.recompiles),
        "partitions": coverage.partition_count,
        "sessions": len(overview.sessions),
        "nodes": coverage.node_count,
        "nodes_in_ort": coverage.ort_node_count,
        "coverage": coverage.share,
        "compile_ns": overview.compile_ns,
        "errors": sum(finding.severity == "error" for finding in overview.findings),
        "warnings": sum(finding.severity == "warning" for finding in overview.findings),
    }
    if ledger is not None and ledger.is_measured:
        figures |= {"call_ns": ledger.total_ns, "ort_ns": ledger.ns.get("run", 0)}
    if overview.pace is not None and overview.pace.ratio:
        figures |= {"uncompiled_ns": overview.pace.eager_ns, "speedup": 1 / overview.pace.ratio}
    if capture.numerics:
        figures["values_that_differ"] = sum(row.ok is False for row in capture.numerics)
        figures["max_abs"] = max((row.max_abs for row in capture.numerics if row.max_abs is not None), default=None)
    return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
