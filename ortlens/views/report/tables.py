"""The tables of a report: those of the summary with more rows, and those that only a page of its own has room for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ortlens.analysis.memory import memory
from ortlens.units import percent, size_from_bytes, time_from_ns
from ortlens.views.answers import answer_tables, graph_label
from ortlens.views.report.work import current_kernels
from ortlens.views.static_table import StaticTable
from ortlens.views.wording import PART_WORDS, place

if TYPE_CHECKING:
    from ortlens.analysis.overview import Overview
    from ortlens.trace.records import Capture, Kernel, Numeric

ROWS = 60
"""Rows of one table: as many as anyone reads. The explorer and the frames have all."""


def report_tables(capture: Capture, overview: Overview) -> tuple[StaticTable, ...]:
    """Return every table that has rows, with at most `ROWS` of them."""
    extra = (_ledger(capture), _partitions(capture), _kernels(capture), _numerics(capture), _memory(capture))
    return (*answer_tables(overview, limit=ROWS), *(table for table in extra if table.rows))


def _graph_labels(capture: Capture) -> dict[str, str]:
    return {graph.graph_id: graph_label(graph) for graph in capture.graphs}


def _ledger(capture: Capture) -> StaticTable:
    labels = _graph_labels(capture)
    return StaticTable(
        title="Time of a call",
        help="Parts of the wall time of a call, per graph, in the order in which a call goes through them.",
        source="ledger",
        total=len(capture.ledger),
        head=("graph", "part", "what it is", "per call", "share"),
        rows=tuple(
            (labels.get(item.graph_id, item.graph_id), item.part, PART_WORDS[item.part], time_from_ns(item.ns), percent(item.share))
            for item in capture.ledger[:ROWS]
        ),
        numbers=frozenset({"per call", "share"}),
    )


def _partitions(capture: Capture) -> StaticTable:
    labels = _graph_labels(capture)
    models = {model.partition_id: model for model in capture.models}
    return StaticTable(
        title="Partitions and their ONNX models",
        help="The largest first: FX nodes, ONNX nodes, weights, and bytes in and out per call.",
        source="partitions",
        total=len(capture.partitions),
        head=("partition", "graph", "nodes", "ONNX nodes", "operators", "weights", "in", "out"),
        rows=tuple(
            (
                item.partition_id,
                labels.get(item.graph_id, item.graph_id),
                f"{item.node_count:,}",
                f"{models[item.partition_id].node_count:,}" if item.partition_id in models else "",
                ", ".join(models[item.partition_id].ops) if item.partition_id in models else "",
                _size(item.weight_bytes),
                _size(item.input_bytes),
                _size(item.output_bytes),
            )
            for item in sorted(capture.partitions, key=lambda item: -item.node_count)[:ROWS]
        ),
        numbers=frozenset({"nodes", "ONNX nodes", "weights", "in", "out"}),
    )


def _kernels(capture: Capture) -> StaticTable:
    kernels = sorted(current_kernels(capture), key=lambda item: -(item.mean_ns or 0))
    return StaticTable(
        title="Kernels",
        help="What ONNX Runtime executed, after its own fusions, slowest first; `confidence` rates the link back to the source line.",
        source="kernels",
        total=len(capture.kernels),
        head=("session", "kernel", "operator", "per call", "of session", "where", "module", "confidence"),
        rows=tuple(map(_kernel, kernels[:ROWS])),
        numbers=frozenset({"per call", "of session"}),
    )


def _kernel(item: Kernel) -> tuple[str, ...]:
    return (
        item.session_id,
        item.kernel,
        item.op_type,
        "" if item.mean_ns is None else time_from_ns(item.mean_ns),
        "" if item.share is None or not math.isfinite(item.share) else percent(item.share),
        place(item.file, item.line) if item.file else "",
        item.module or "",
        item.confidence,
    )


def _numerics(capture: Capture) -> StaticTable:
    def how_bad(item: Numeric) -> tuple[bool, bool, bool, float]:
        error = item.max_rel
        return (
            item.ok is not False,
            item.ok is not None,
            item.scope != "call",
            -(math.inf if error is None or math.isnan(error) else error),
        )

    return StaticTable(
        title="Results compared with PyTorch",
        help="What differs first, then values without a verdict, then the largest differences; in each, the call as a whole first.",
        source="numerics",
        total=len(capture.numerics),
        head=("partition", "value", "compared", "verdict", "absolute", "relative", "where", "what"),
        rows=tuple(_numeric(item) for item in sorted(capture.numerics, key=how_bad)[:ROWS]),
        numbers=frozenset({"absolute", "relative"}),
    )


def _numeric(item: Numeric) -> tuple[str, ...]:
    verdict = {True: "ok", False: "out of tolerance, first" if item.first_divergence else "out of tolerance", None: "none"}[item.ok]
    return (
        item.partition_id or "the whole call",
        item.node,
        item.scope,
        verdict,
        "" if item.max_abs is None else f"{item.max_abs:.2g}",
        "" if item.max_rel is None else f"{item.max_rel:.2g}",
        place(item.file, item.line) if item.file else "",
        item.note,
    )


def _memory(capture: Capture) -> StaticTable:
    rows = [row for row in memory(capture) if row.session_id is not None]
    labels = _graph_labels(capture)
    ranked = sorted(rows, key=lambda row: -((row.held_bytes or 0) + (row.weight_bytes or 0)))
    return StaticTable(
        title="Memory of the sessions",
        help="Weights that the partition reads, how much of them was copied, heap used by creating the session, and the peaks of a call.",
        source="memory()",
        total=len(rows),
        head=("session", "graph", "weights", "copied", "creation", "peak of nodes", "peak of arena"),
        rows=tuple(
            (
                row.session_id or "",
                labels.get(row.graph_id, row.graph_id),
                *map(_size, (row.weight_bytes, row.copied_bytes, row.held_bytes, row.live_bytes, row.arena_bytes)),
            )
            for row in ranked[:ROWS]
        ),
        numbers=frozenset({"weights", "copied", "creation", "peak of nodes", "peak of arena"}),
    )


def _size(size: int | None) -> str:
    return "" if size is None else size_from_bytes(size)
