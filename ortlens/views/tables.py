"""The tables of the notebook's summary and the report: a row per graph, break, kernel and so on, bounded, saying what they leave out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ortlens.analysis.memory import memory
from ortlens.analysis.timing import own_code_ns, price_of
from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.sentences import reason_words
from ortlens.views.time_sentences import gain_words
from ortlens.views.wording import PART_WORDS, clipped, first_sentence, function, guard, place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.analysis.answers.overview import Overview
    from ortlens.trace.records import Capture, Graph, Kernel, Numeric

MAX_ROWS, MAX_REPORT_ROWS = 12, 60
"""Rows of a table in a notebook and in a report: as many as anyone reads. The explorer and the frames have all."""

MAX_BYTES = 7_500  # bytes of the rows of one table in a notebook; six tables and the frame stay below 60 kB
_MAX_CELL, _MAX_WORDS = 120, 240  # characters; a sentence that is cut is useless
_WORDS = frozenset({"reason", "hint", "what", "what to do"})  # columns of sentences
_SHORT = frozenset({"id", "where", "operator"})  # columns of names, which are not wrapped up to so many characters
_KEPT_WHOLE = 50
_MARKUP = 30  # bytes of the tags around a cell


class TextColumn(NamedTuple):
    """A column: its heading, the text of a cell from a record, and whether cells are numbers, set to the right, or code."""

    name: str
    text: Callable[[Any], str]
    kind: Literal["text", "number", "code"] = "text"


class Cell(NamedTuple):
    """A cell as it is shown: its text, not yet escaped, its class, and whether it is code."""

    text: str
    look: str
    is_code: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table of texts, made from records."""

    title: str  # its name
    help: str  # what it shows and what to do with it, in a line
    source: str  # frame that holds all of it
    records: Sequence[Any]  # what its rows are made from
    columns: tuple[TextColumn, ...]  # its columns
    limit: int = MAX_ROWS  # rows that are made: a huge capture must not make looking at it slow
    left: int = 0  # rows of the frame that are not among the records

    @property
    def total(self) -> int:
        """Rows that there are."""
        return len(self.records) + self.left

    @property
    def head(self) -> tuple[str, ...]:
        """The headings."""
        return tuple(column.name for column in self.columns)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The texts of the first rows."""
        return tuple(tuple(column.text(record) for column in self.columns) for record in self.records[: self.limit])

    def cells(self, max_bytes: int = MAX_BYTES) -> list[list[Cell]]:
        """Cut the cells, and leave out the rows beyond a size in HTML."""
        found: list[list[Cell]] = []
        for row in self.rows:
            cells = [_cell(column, text) for column, text in zip(self.columns, row, strict=True)]
            max_bytes -= sum(len(escape(cell.text).encode()) + _MARKUP for cell in cells)
            if max_bytes < 0:
                break
            found.append(cells)
        return found

    def more(self, shown: int) -> str:
        """Count the rows that are not shown; empty where all are."""
        return counted(self.total - shown, "more row") if self.total > shown else ""


def _cell(column: TextColumn, text: str) -> Cell:
    whole = "ol-whole" if column.name in _SHORT and len(text) <= _KEPT_WHOLE else ""
    shown = clipped(text, _MAX_WORDS if column.name in _WORDS else _MAX_CELL)
    return Cell(shown, "ol-number" if column.kind == "number" else whole, column.kind == "code" and bool(shown))


def answer_tables(overview: Overview, *, limit: int = MAX_ROWS) -> tuple[TextTable, ...]:
    """Return the tables that have rows, each of at most `limit`: graphs, breaks, recompiles, fallbacks, sessions, findings."""
    makers = (_graphs, _breaks, _recompiles, _fallbacks, _sessions, _findings)
    return tuple(replace(table, limit=limit) for make in makers if (table := make(overview)).records)


def report_tables(capture: Capture, overview: Overview, kernels: Sequence[Kernel]) -> tuple[TextTable, ...]:
    """Return every table that has rows; `kernels` are those of graphs that no recompile replaced."""
    labels = {graph.graph_id: graph_label(graph) for graph in capture.graphs}

    def label(item: Any) -> str:  # noqa: ANN401 - any record of a graph
        return labels.get(item.graph_id) or str(item.graph_id)

    extra = (_ledger(capture, label), _partitions(capture, label), _kernels(capture, kernels), _numerics(capture), _memory(capture, label))
    return (*answer_tables(overview, limit=MAX_REPORT_ROWS), *(replace(table, limit=MAX_REPORT_ROWS) for table in extra if table.records))


def graph_label(graph: Graph) -> str:
    """Name a graph by Dynamo's id, as recompiles do; a forward and its backward share it, so phase and role are appended."""
    what = graph.role or ("" if graph.phase == "inference" else graph.phase)
    return f"{graph.compile_id or graph.graph_id} {what}".strip()


def _where(item: Any) -> str:  # noqa: ANN401 - any record of a place
    return place(item.file, item.line) if item.file else ""


def _ns(ns: float | None) -> str:
    return "" if ns is None else time_from_ns(round(ns))


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _size(size: int | None) -> str:
    return "" if size is None else size_from_bytes(size)


def _graphs(overview: Overview) -> TextTable:
    return TextTable(
        title="Graphs",
        help="What PyTorch compiled, one row per graph. Ideal: few graphs, all nodes in ONNX Runtime, one partition each.",
        source="graphs",
        records=overview.graphs,
        columns=(
            TextColumn("id", lambda row: graph_label(row.graph)),
            TextColumn("function", lambda row: function(row.graph.name)),
            TextColumn("where", lambda row: place(row.graph.file, row.graph.line)),
            TextColumn(
                "nodes in ORT",
                lambda row: "" if row.ort_node_count is None else f"{row.ort_node_count:,} of {row.graph.node_count:,}",
                "number",
            ),
            TextColumn("partitions", lambda row: _count(row.graph.partition_count), "number"),
            TextColumn("calls", lambda row: _count(row.time.calls), "number"),
            TextColumn("compile time", lambda row: _ns(row.graph.compile_ns), "number"),
            TextColumn("note", lambda row: "" if row.is_current else "another version, see recompiles"),
        ),
    )


def _breaks(overview: Overview) -> TextTable:
    return TextTable(
        title="Graph breaks",
        help="Places where PyTorch had to stop tracing and start a new graph. Change the line as suggested to get one larger graph. "
        "Per call is what the break costs; between is PyTorch and Python between the graphs, which stay.",
        source="breaks",
        records=overview.breaks,
        columns=(
            TextColumn("where", lambda item: place(item.file, item.line)),
            TextColumn("line", lambda item: item.source or "", "code"),
            TextColumn("reason", lambda item: item.reason),
            TextColumn("what to do", lambda item: item.advice or first_sentence((item.hints or ("",))[0])),
            TextColumn("times", lambda item: _count(item.occurrences), "number"),
            TextColumn("per call", lambda item: _ns(price_of(item)), "number"),
            TextColumn("between", lambda item: _ns(own_code_ns(item) or None), "number"),
        ),
    )


def _recompiles(overview: Overview) -> TextTable:
    return TextTable(
        title="Recompiles",
        help="Code compiled again because a guard of the earlier version failed. Keep the guarded value the same on every call.",
        source="recompiles",
        records=overview.recompiles,
        columns=(
            TextColumn("id", lambda item: item.compile_id),
            TextColumn("replaces", lambda item: item.of_compile_id or ""),
            TextColumn("function", lambda item: function(item.function)),
            TextColumn("where", lambda item: place(item.file, item.line)),
            TextColumn("failed guard", lambda item: guard(item.guard or item.reason), "code"),
            TextColumn("seen", lambda item: ", ".join(item.values), "code"),
            TextColumn("what to do", lambda item: item.advice or ""),
        ),
    )


def _fallbacks(overview: Overview) -> TextTable:
    return TextTable(
        title="Stays in PyTorch",
        help="Operators that ONNX Runtime does not run, slowest first. Each splits the graph; the reason says what would have to change.",
        source="fallbacks",
        records=overview.fallbacks,
        columns=(
            TextColumn("operator", lambda group: group.target, "code"),
            TextColumn("nodes", lambda group: _count(group.node_count), "number"),
            TextColumn("reason", reason_words),
            TextColumn("where", lambda group: place(group.file, group.line, group.module)),
            TextColumn("line", lambda group: group.source or "", "code"),
            TextColumn("per call", lambda group: _ns(group.ns_per_call), "number"),
        ),
    )


def _sessions(overview: Overview) -> TextTable:
    names = {row.graph.graph_id: graph_label(row.graph) for row in overview.graphs}
    return TextTable(
        title="ONNX Runtime sessions",
        help="One session per partition and input signature, slowest first. Those with a large share are worth speeding up. 90 %: so many "
        "of the calls took no longer.",
        source="sessions",
        records=overview.sessions,
        columns=(
            TextColumn("id", lambda cost: cost.session.session_id),
            TextColumn("graph", lambda cost: names.get(cost.graph_id or "", "")),
            TextColumn("inputs", lambda cost: cost.session.input_signature, "code"),
            TextColumn("runs on", lambda cost: ", ".join(name.removesuffix("ExecutionProvider") for name in cost.session.providers)),
            TextColumn("calls", lambda cost: _count(cost.session.calls), "number"),
            TextColumn("median", lambda cost: _ns(cost.session.p50_ns), "number"),
            TextColumn("90 %", lambda cost: _ns(cost.session.p90_ns), "number"),
            TextColumn("all calls", lambda cost: _ns(cost.session.total_ns), "number"),
            TextColumn("share", lambda cost: percent(cost.share), "number"),
        ),
    )


def _findings(overview: Overview) -> TextTable:
    return TextTable(
        title="Findings",
        help="What ortlens noticed, the most expensive first. An error means that the tables above may be incomplete.",
        source="findings",
        records=overview.findings,
        columns=(
            TextColumn("severity", lambda item: item.severity),
            TextColumn("what", lambda item: item.title),
            TextColumn("where", _where),
            TextColumn("gain per call", lambda item: gain_words(item, is_busy=overview.is_busy)),
            TextColumn("what to do", lambda item: item.mitigation),
        ),
    )


def _ledger(capture: Capture, label: Callable[[Any], str]) -> TextTable:
    return TextTable(
        title="Time of a call",
        help="Parts of the wall time of a call, per graph, in the order in which a call goes through them.",
        source="ledger",
        records=capture.ledger,
        columns=(
            TextColumn("graph", label),
            TextColumn("part", lambda item: item.part),
            TextColumn("what it is", lambda item: PART_WORDS[item.part]),
            TextColumn("per call", lambda item: _ns(item.ns), "number"),
            TextColumn("share", lambda item: percent(item.share), "number"),
        ),
    )


def _partitions(capture: Capture, label: Callable[[Any], str]) -> TextTable:
    models = {model.partition_id: model for model in capture.models}
    return TextTable(
        title="Partitions and their ONNX models",
        help="The largest first: FX nodes, ONNX nodes, weights, and bytes in and out per call.",
        source="partitions",
        records=sorted(capture.partitions, key=lambda item: -item.node_count),
        columns=(
            TextColumn("partition", lambda item: item.partition_id),
            TextColumn("graph", label),
            TextColumn("nodes", lambda item: _count(item.node_count), "number"),
            TextColumn(
                "ONNX nodes", lambda item: _count(models[item.partition_id].node_count) if item.partition_id in models else "", "number"
            ),
            TextColumn("operators", lambda item: ", ".join(models[item.partition_id].ops) if item.partition_id in models else ""),
            TextColumn("weights", lambda item: _size(item.weight_bytes), "number"),
            TextColumn("in", lambda item: _size(item.input_bytes), "number"),
            TextColumn("out", lambda item: _size(item.output_bytes), "number"),
        ),
    )


def _kernels(capture: Capture, kernels: Sequence[Kernel]) -> TextTable:
    return TextTable(
        title="Kernels",
        help="What ONNX Runtime executed, after its own fusions, slowest first; `confidence` rates the link back to the source line.",
        source="kernels",
        records=sorted(kernels, key=lambda item: -(item.mean_ns or 0)),
        left=len(capture.kernels) - len(kernels),
        columns=(
            TextColumn("session", lambda item: item.session_id),
            TextColumn("kernel", lambda item: item.kernel),
            TextColumn("operator", lambda item: item.op_type),
            TextColumn("per call", lambda item: _ns(item.mean_ns), "number"),
            TextColumn(
                "of session", lambda item: "" if item.share is None or not math.isfinite(item.share) else percent(item.share), "number"
            ),
            TextColumn("where", _where),
            TextColumn("module", lambda item: item.module or ""),
            TextColumn("confidence", lambda item: item.confidence),
        ),
    )


def _numerics(capture: Capture) -> TextTable:
    def how_bad(item: Numeric) -> tuple[bool, bool, bool, float]:
        error = math.inf if item.max_rel is None or math.isnan(item.max_rel) else item.max_rel
        return item.ok is not False, item.ok is not None, item.scope != "call", -error

    def verdict(item: Numeric) -> str:
        return {True: "ok", False: "out of tolerance, first" if item.first_divergence else "out of tolerance", None: "none"}[item.ok]

    return TextTable(
        title="Results compared with PyTorch",
        help="What differs first, then values without a verdict, then the largest differences; in each, the call as a whole first.",
        source="numerics",
        records=sorted(capture.numerics, key=how_bad),
        columns=(
            TextColumn("partition", lambda item: item.partition_id or "the whole call"),
            TextColumn("value", lambda item: item.node),
            TextColumn("compared", lambda item: item.scope),
            TextColumn("verdict", verdict),
            TextColumn("absolute", lambda item: "" if item.max_abs is None else f"{item.max_abs:.2g}", "number"),
            TextColumn("relative", lambda item: "" if item.max_rel is None else f"{item.max_rel:.2g}", "number"),
            TextColumn("where", _where),
            TextColumn("what", lambda item: item.note),
        ),
    )


def _memory(capture: Capture, label: Callable[[Any], str]) -> TextTable:
    rows = [row for row in memory(capture) if row.session_id is not None]
    return TextTable(
        title="Memory of the sessions",
        help="Weights that the partition reads, how much of them was copied, heap used by creating the session, and the peaks of a call.",
        source="memory()",
        records=sorted(rows, key=lambda row: -((row.held_bytes or 0) + (row.weight_bytes or 0))),
        columns=(
            TextColumn("session", lambda row: row.session_id or ""),
            TextColumn("graph", label),
            TextColumn("weights", lambda row: _size(row.weight_bytes), "number"),
            TextColumn("copied", lambda row: _size(row.copied_bytes), "number"),
            TextColumn("creation", lambda row: _size(row.held_bytes), "number"),
            TextColumn("peak of nodes", lambda row: _size(row.live_bytes), "number"),
            TextColumn("peak of arena", lambda row: _size(row.arena_bytes), "number"),
        ),
    )
