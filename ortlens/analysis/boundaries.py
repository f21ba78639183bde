"""The cost of the boundaries between PyTorch and ONNX Runtime, fitted to the recorded calls."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ortlens.trace.records import Capture


class Cost(NamedTuple):
    """What a boundary costs, fitted to the recorded calls."""

    call_ns: float  # per session call: binding and outputs
    byte_ns: float  # per byte over the boundary
    basis: str  # how the two were obtained, in words


def boundary_cost(capture: Capture) -> Cost | None:
    """Estimate what a session call costs beside the run, and per byte over its boundary; None when no call was recorded.

    Fits a line through the sessions (bytes over the boundary, median of binding and outputs), by least squares and with no negative slope.
    """
    points = _boundary_points(capture)
    if not points:
        return None
    sizes, times = [size for size, _ in points], [ns for _, ns in points]
    calls = f"median bind_ns + output_ns of {len(points)} session{'' if len(points) == 1 else 's'}"
    if len(set(sizes)) > 1:
        slope, intercept = statistics.linear_regression(sizes, times)
        if slope > 0 and intercept >= 0:
            return Cost(intercept, slope, f"{calls}: {intercept / 1000:.1f} us per session call and {slope * 1e6:.3g} ns per MB")
    mean = statistics.fmean(times)
    return Cost(mean, 0.0, f"{calls}: {mean / 1000:.1f} us per session call, bytes not separated from calls")


def runs_by_graph(capture: Capture) -> dict[str, list[float]]:
    """Compute the median run of each graph's sessions inside ONNX Runtime, in ns, the shortest first; graphs without runs are absent."""
    times: dict[tuple[str, str], list[int]] = {}
    for run in capture.runs:
        if run.session_id is not None and run.graph_id is not None:
            times.setdefault((run.graph_id, run.session_id), []).append(run.run_ns)
    found: dict[str, list[float]] = {}
    for (graph_id, _), ns in times.items():
        found.setdefault(graph_id, []).append(statistics.median(ns))
    return {graph_id: sorted(medians) for graph_id, medians in found.items()}


def _boundary_points(capture: Capture) -> list[tuple[int, float]]:
    moved = {p.partition_id: (p.input_bytes or 0) + (p.output_bytes or 0) for p in capture.partitions}
    partition = {session.session_id: session.partition_id for session in capture.sessions}
    times: dict[str, list[int]] = {}
    for run in capture.runs:
        if run.session_id is not None and partition.get(run.session_id) in moved:
            times.setdefault(run.session_id, []).append(run.bind_ns + run.output_ns)
    return [(moved[partition[session_id]], statistics.median(ns)) for session_id, ns in times.items()]
