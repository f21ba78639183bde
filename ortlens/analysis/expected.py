"""What `profile` and `verify` will take, by what a capture has measured: runs, sessions and conversions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.call_order import current_in_call_order
from ortlens.analysis.index import partitions_by_graph
from ortlens.analysis.ledger import totals_of
from ortlens.analysis.speed import pace_of_call

if TYPE_CHECKING:
    from ortlens.trace.records import Capture

_SETTING_UP = 400  # copying and restoring what a call may change, and looking at the records, in comparisons of small values
_SINGLE_OP = 4  # converting an operator by itself and creating a session, likewise; operators that are alike share one
_MOST_CALLS = 8
_PARSED_S = 20e-6  # reading one event of a profile
_OVERHEAD_S, _PEAKS_S, _LONG_RUN_S = 0.2, 1.0, 1e-3
"""Measuring what the profiler costs, and the peaks of the machine, which long kernels are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRun:
    """What is known about a partition that a call of the model runs."""

    run_s: float  # one run of its session
    session_s: float  # creating a session of it
    convert_s: float  # converting it to ONNX and optimising the model
    node_count: int  # its operators
    value_bytes: int  # size of the values that they compute
    weight_bytes: int  # size of the weights that its session holds as constants
    entries: float  # how often a call of the model runs it


def expected_runs(capture: Capture) -> tuple[ExpectedRun, ...]:
    """List the partitions, among those whose session has run, that the next call will run as far as is known, in order."""
    sessions = {session.partition_id: session for session in capture.sessions if session.p50_ns is not None}
    sizes: dict[str | None, int] = {}
    for node in capture.nodes:
        sizes[node.partition_id] = sizes.get(node.partition_id, 0) + (node.output_bytes or 0)
    found = []
    for graph in current_in_call_order(capture):
        parts = partitions_by_graph(capture).get(graph.graph_id, [])
        convert_s = ((graph.convert_ns or 0) + (graph.optimize_ns or 0)) / 1e9
        nodes = sum(part.node_count for part in parts)
        found += [
            ExpectedRun(
                run_s=(session.p50_ns or 0) / 1e9,
                session_s=session.create_ns / 1e9,
                convert_s=convert_s * part.node_count / max(nodes, 1),
                node_count=part.node_count,
                value_bytes=sizes.get(part.partition_id, 0),
                weight_bytes=session.frozen_bytes or 0,
                entries=max(graph.entries_per_call or 1.0, 1.0),
            )
            for part in parts
            if (session := sessions.get(part.partition_id)) is not None
        ]
    return tuple(found)


def eager_s(capture: Capture) -> float:
    """Return the seconds that a call takes in PyTorch; where that was not measured, twice the time in ONNX Runtime."""
    pace = pace_of_call(totals_of(capture.ledger), capture.figures)
    return (pace.eager_ns or 0) / 1e9 if pace is not None else 2 * sum(run.run_s * run.entries for run in expected_runs(capture))


def verify_s(capture: Capture, value_s: float, byte_s: float, *, per_op: bool) -> float:
    """Estimate the seconds that `verify` will take if nothing differs; the factors are those of the models in docs/numerics.md.

    Comparing takes `value_s` for a small value, and `byte_s` for each byte of a large one.
    """
    runs = expected_runs(capture)
    whole = _SETTING_UP * value_s + 3 * eager_s(capture) + sum(0.3 * byte_s * run.weight_bytes for run in runs)
    return whole + sum(_check_s(run, value_s, byte_s, per_op=per_op) for run in runs)


def _check_s(run: ExpectedRun, value_s: float, byte_s: float, *, per_op: bool) -> float:
    """Estimate one partition's check: its model without rewrites, or one of each operator; then calls in both precisions, and comparing."""
    made = run.session_s + (_SINGLE_OP * value_s * run.node_count if per_op else 0.4 * run.convert_s)
    compared = byte_s * run.value_bytes + 2 * value_s * run.node_count
    return made + min(run.entries, _MOST_CALLS) * (8 * run.run_s + compared)


def profile_s(capture: Capture, most: int, fewest: int, stable_s: float) -> float:
    """Estimate the seconds that `profile` will take; after `stable_s` seconds, `fewest` repeats of a run are enough."""
    runs = expected_runs(capture)
    taken = 0.0
    for run in runs:
        taken += 0.5 * run.session_s
        for _ in range(round(run.entries)):
            pairs = most if run.run_s <= 0 else min(most, max(fewest, math.ceil((stable_s - taken) / (2 * run.run_s))))
            taken += 2 * (pairs + 1) * run.run_s + _PARSED_S * run.node_count * pairs
    peaks = any(run.run_s >= _LONG_RUN_S for run in runs) and not capture.figures.peaks
    return taken + _OVERHEAD_S + (_PEAKS_S if peaks else 0.0) if runs else 0.0
