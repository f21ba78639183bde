"""The key figures of a capture as plain numbers, for loggers such as TensorBoard, MLflow and Weights & Biases."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ortlens.analysis.overview import overview_of

if TYPE_CHECKING:
    from ortlens.trace.records import Capture


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
        figures |= {"call_ns": ledger.total_ns, "ort_ns": ledger.ns.get("run", 0), "uncompiled_ns": overview.uncompiled_ns}
        figures["speedup"] = overview.uncompiled_ns and overview.uncompiled_ns / ledger.total_ns
    if capture.numerics:
        figures["values_that_differ"] = sum(row.ok is False for row in capture.numerics)
        figures["max_abs"] = max((row.max_abs for row in capture.numerics if row.max_abs is not None), default=None)
    return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
