"""The answers of the overview as tables, one row per graph, break, recompile, operator, session and finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.analysis.timing import own_code_ns, price_of
from ortlens.units import percent, time_from_ns
from ortlens.views.sentences import exception_words, reason_words
from ortlens.views.static_table import MAX_ROWS, StaticTable
from ortlens.views.time_sentences import gain_words
from ortlens.views.wording import first_sentence, function, guard, place

if TYPE_CHECKING:
    from ortlens.analysis.overview import Overview
    from ortlens.trace.records import Graph


def answer_tables(overview: Overview, *, limit: int = MAX_ROWS) -> tuple[StaticTable, ...]:
    """Return the tables that have rows, each of at most `limit`: graphs, breaks, recompiles, fallbacks, sessions, findings."""
    builders = (_graphs, _breaks, _recompiles, _fallbacks, _sessions, _findings)
    return tuple(table for build in builders if (table := build(overview, limit)).rows)


def graph_label(graph: Graph) -> str:
    """Name a graph by Dynamo's id, as recompiles do; a forward and its backward share it, so phase and role are appended."""
    what = graph.role or ("" if graph.phase == "inference" else graph.phase)
    return f"{graph.compile_id or graph.graph_id} {what}".strip()


def _graphs(overview: Overview, limit: int) -> StaticTable:
    rows = []
    for row in overview.graphs[:limit]:
        graph = row.graph
        replaced = "" if row.is_current else "another version, see recompiles"
        in_ort = "" if row.ort_node_count is None else f"{row.ort_node_count:,} of {graph.node_count:,}"
        models = "" if graph.partition_count is None else f"{graph.partition_count:,}"
        compiled = "" if graph.compile_ns is None else time_from_ns(graph.compile_ns)
        rows.append(
            (
                graph_label(graph),
                function(graph.name),
                place(graph.file, graph.line),
                in_ort,
                models,
                f"{row.time.calls:,}",
                compiled,
                replaced,
            )
        )
    return StaticTable(
        title="Graphs",
        help="What PyTorch compiled, one row per graph. Ideal: few graphs, all nodes in ONNX Runtime, one partition each.",
        source="graphs",
        total=len(overview.graphs),
        head=("id", "function", "where", "nodes in ORT", "partitions", "calls", "compile time", "note"),
        rows=tuple(rows),
        numbers=frozenset({"nodes in ORT", "partitions", "calls", "compile time"}),
    )


def _breaks(overview: Overview, limit: int) -> StaticTable:
    return StaticTable(
        title="Graph breaks",
        help="Places where PyTorch had to stop tracing and start a new graph. Change the line as suggested to get one larger graph. "
        "Per call is what the break costs; between is PyTorch and Python between the graphs, which stay.",
        source="breaks",
        total=len(overview.breaks),
        head=("where", "line", "reason", "what to do", "times", "per call", "between"),
        rows=tuple(
            (
                place(item.file, item.line),
                item.source or "",
                item.reason,
                item.advice or first_sentence((item.hints or ("",))[0]),
                f"{item.occurrences:,}",
                "" if price_of(item) is None else time_from_ns(price_of(item) or 0),
                time_from_ns(own_code_ns(item)) if own_code_ns(item) else "",
            )
            for item in overview.breaks[:limit]
        ),
        numbers=frozenset({"times", "per call", "between"}),
        code=frozenset({"line"}),
    )


def _recompiles(overview: Overview, limit: int) -> StaticTable:
    return StaticTable(
        title="Recompiles",
        help="Code compiled again because a guard of the earlier version failed. Keep the guarded value the same on every call.",
        source="recompiles",
        total=len(overview.recompiles),
        head=("id", "replaces", "function", "where", "failed guard", "seen", "what to do"),
        rows=tuple(
            (
                item.compile_id,
                item.of_compile_id or "",
                function(item.function),
                place(item.file, item.line),
                guard(item.guard or item.reason),
                ", ".join(item.values),
                item.advice or "",
            )
            for item in overview.recompiles[:limit]
        ),
        code=frozenset({"failed guard", "seen"}),
    )


def _fallbacks(overview: Overview, limit: int) -> StaticTable:
    return StaticTable(
        title="Stays in PyTorch",
        help="Operators that ONNX Runtime does not run, slowest first. Each splits the graph; the reason says what would have to change.",
        source="fallbacks",
        total=len(overview.fallbacks),
        head=("operator", "nodes", "reason", "where", "line", "per call"),
        rows=tuple(
            (
                group.target,
                f"{group.node_count:,}",
                ": ".join(filter(None, (reason_words(group), exception_words(group)))),
                place(group.file, group.line, group.module),
                group.source or "",
                "" if group.ns_per_call is None else time_from_ns(group.ns_per_call),
            )
            for group in overview.fallbacks[:limit]
        ),
        numbers=frozenset({"nodes", "per call"}),
        code=frozenset({"operator", "line"}),
    )


def _sessions(overview: Overview, limit: int) -> StaticTable:
    names = {row.graph.graph_id: graph_label(row.graph) for row in overview.graphs}
    return StaticTable(
        title="ONNX Runtime sessions",
        help="One session per partition and input signature, slowest first. Those with a large share are worth speeding up. 90 %: so many "
        "of the calls took no longer.",
        source="sessions",
        total=len(overview.sessions),
        head=("id", "graph", "inputs", "runs on", "calls", "median", "90 %", "all calls", "share"),
        rows=tuple(
            (
                cost.session.session_id,
                names.get(cost.graph_id or "", ""),
                cost.session.input_signature,
                ", ".join(name.removesuffix("ExecutionProvider") for name in cost.session.providers),
                f"{cost.session.calls:,}",
                "" if cost.session.p50_ns is None else time_from_ns(cost.session.p50_ns),
                "" if cost.session.p90_ns is None else time_from_ns(cost.session.p90_ns),
                time_from_ns(cost.session.total_ns),
                percent(cost.share),
            )
            for cost in overview.sessions[:limit]
        ),
        numbers=frozenset({"calls", "median", "90 %", "all calls", "share"}),
        code=frozenset({"inputs"}),
    )


def _findings(overview: Overview, limit: int) -> StaticTable:
    return StaticTable(
        title="Findings",
        help="What ortlens noticed, the most expensive first. An error means that the tables above may be incomplete.",
        source="findings",
        total=len(overview.findings),
        head=("severity", "what", "where", "gain per call", "what to do"),
        rows=tuple(
            (
                item.severity,
                item.title,
                place(item.file, item.line) if item.file else "",
                gain_words(item, is_busy=overview.is_busy),
                item.mitigation,
            )
            for item in overview.findings[:limit]
        ),
    )
