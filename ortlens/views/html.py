"""The summary of a capture as one static piece of HTML for notebooks.

No script, no remote load, no ids: the piece may stand in a page many times. Colours come from JupyterLab's `--jp-*`
variables and fall back to the system's `Canvas` and `CanvasText`, so it follows light and dark everywhere. A viewer that
drops style sheets, as GitHub does, still shows headings and tables in reading order.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from ortlens.analysis.first_look import looks_of
from ortlens.analysis.overview import overview_of
from ortlens.views.sentences import (
    coverage_sentence,
    exception_words,
    gain_words,
    ledger_sentence,
    look_sentence,
    pieces_sentence,
    reason_words,
    title,
)
from ortlens.views.style import CSS
from ortlens.views.wording import PHASE_WORDS, clipped, counted, first_sentence, function, guard, percent, place, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ortlens.analysis.overview import Overview
    from ortlens.trace.records import Capture, Graph

_MAX_ROWS = 12
_MAX_TABLE = 7_500  # bytes of the rows of one table; six tables and the frame stay below 60 kB
_MAX_CELL = 120
_MAX_WORDS = 240  # cells of words, where a cut sentence helps nobody
_KEPT_WHOLE = 50  # shorter places and operators stay on one line
_MAX_TEXT = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """One table of the page.

    Attributes:
        title: Its name.
        help: What it shows and what to do with it, in a line.
        source: Frame that holds all of it.
        total: Rows that there are.
        head: Names of the columns.
        rows: Text of the cells, of the first rows only: a huge capture must not make looking at it slow.
        numbers: Columns set to the right.
        code: Columns set as code.
        words: Columns of sentences.
        whole: Columns of short names that are not to be wrapped.
    """

    title: str
    help: str
    source: str
    total: int
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()
    code: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset({"reason", "hint", "what", "what to do"})
    whole: frozenset[str] = frozenset({"id", "where", "operator"})


def summary_html(capture: Capture, *, overview: Overview | None = None) -> str:
    """Tell how a model went through ONNX Runtime, as a piece of HTML.

    Args:
        capture: Any capture, also an empty one, a huge one, or one that holds hostile names.
        overview: Of this capture, when it is at hand.

    Returns:
        A self-contained fragment of less than 60 kB: a coverage bar, what to look at first, and tables of graphs, breaks,
        recompiles, fallbacks, sessions and what the lens reported; tables without rows are left out.
    """
    overview = overview or overview_of(capture)
    tables = (_graphs(overview), _breaks(overview), _recompiles(overview), _fallbacks(overview), _sessions(overview), _findings(overview))
    parts = [_heading(overview), _coverage(overview), _facts(overview), _looks(overview), *(_html(table) for table in tables if table.rows)]
    return f'<div class="ortlens-summary"><style>{CSS}</style>{"".join(parts)}</div>'


def _safe(text: str, width: int = _MAX_TEXT) -> str:
    return escape(clipped(text, width), quote=True)


def _heading(overview: Overview) -> str:
    return f'<p class="ol-title">{_safe(title(overview))}</p>'


def _coverage(overview: Overview) -> str:
    share = overview.coverage.share
    sentence = f"<strong>In ONNX Runtime:</strong> {_safe(coverage_sentence(overview))}"
    if share is None:
        return f"<p>{sentence}</p>"
    filled = int(share * 1000) / 10  # rounds down: a full bar means all of it
    label = _safe(f"{percent(share)} of the compute nodes run in ONNX Runtime")
    return f'<p>{sentence}</p><div class="ol-bar" role="img" aria-label="{label}"><span style="width:{filled:.1f}%"></span></div>'


def _facts(overview: Overview) -> str:
    if overview.coverage.verdict == "empty":
        return ""
    facts = [
        ("Pieces", pieces_sentence(overview)),
        ("Per call", ledger_sentence(overview) or _call(overview)),
        ("To compile", _compile(overview)),
    ]
    return "".join(f"<p><strong>{name}:</strong> {_safe(text, 400)}</p>" for name, text in facts if text)


def _call(overview: Overview) -> str:
    call = overview.call
    if not call.calls:
        return ""
    parts = (
        ("in ONNX Runtime", call.ort_ns),
        ("in PyTorch operators", call.eager_ns),
        (f"in graphs of {overview.backend}", call.foreign_ns),
    )
    split = ", ".join(f"{time_from_ns(ns)} {name}" for name, ns in parts if ns)
    return f"{split or '0 ns'}; mean of {counted(call.calls, 'call')} without the Python in between"


def _compile(overview: Overview) -> str:
    if not overview.compile_ns:
        return ""
    parts = ", ".join(f"{PHASE_WORDS[phase.phase]} {time_from_ns(phase.total_ns)}" for phase in overview.phases if phase.total_ns)
    return f"{time_from_ns(overview.compile_ns)}: {parts}"


def _looks(overview: Overview) -> str:
    looks = looks_of(overview)
    if not looks:
        empty = overview.coverage.verdict == "empty"
        return (
            "<p>Call the compiled function while the lens watches; one without tensor operations compiles to nothing.</p>"
            if empty
            else "<p>Nothing stands out.</p>"
        )
    items = "".join(f"<li>{_safe(look_sentence(look))}</li>" for look in looks)
    return f'<p><strong>Look first at</strong></p><ol class="ol-looks">{items}</ol>'


def _graph_id(graph: Graph) -> str:
    """Dynamo's id, the one that recompiles name too; a forward and its backward share it."""
    return (graph.compile_id or graph.graph_id) + ("" if graph.phase == "inference" else f" {graph.phase}")


def _graphs(overview: Overview) -> _Table:
    rows = []
    for row in overview.graphs[:_MAX_ROWS]:
        graph = row.graph
        replaced = "" if row.is_current else "earlier version, see recompiles"
        in_ort = "" if row.ort_node_count is None else f"{row.ort_node_count:,} of {graph.node_count:,}"
        models = "" if graph.partition_count is None else f"{graph.partition_count:,}"
        compiled = "" if graph.compile_ns is None else time_from_ns(graph.compile_ns)
        rows.append(
            (
                _graph_id(graph),
                function(graph.name),
                place(graph.file, graph.line),
                in_ort,
                models,
                f"{row.time.calls:,}",
                compiled,
                replaced,
            )
        )
    return _Table(
        title="Graphs",
        help="What PyTorch compiled, one row per graph. Few rows with all nodes in ONNX Runtime and one model each are what you want.",
        source="graphs",
        total=len(overview.graphs),
        head=("id", "function", "where", "nodes in ORT", "ONNX models", "calls", "to compile", "note"),
        rows=tuple(rows),
        numbers=frozenset({"nodes in ORT", "ONNX models", "calls", "to compile"}),
    )


def _breaks(overview: Overview) -> _Table:
    return _Table(
        title="Graph breaks",
        help="Places where PyTorch had to stop tracing and start a new graph. Change the line as is said to get one larger graph.",
        source="breaks",
        total=len(overview.breaks),
        head=("where", "line", "reason", "what to do", "times", "per call"),
        rows=tuple(
            (
                place(item.file, item.line),
                item.source or "",
                item.reason,
                item.advice or first_sentence((item.hints or ("",))[0]),
                f"{item.occurrences:,}",
                "" if item.cost_ns is None else time_from_ns(item.cost_ns),
            )
            for item in overview.breaks[:_MAX_ROWS]
        ),
        numbers=frozenset({"times", "per call"}),
        code=frozenset({"line"}),
    )


def _recompiles(overview: Overview) -> _Table:
    return _Table(
        title="Recompiles",
        help="Code compiled again because a condition that the first version relied on no longer held. Keep it the same from call to call.",
        source="recompiles",
        total=len(overview.recompiles),
        head=("id", "replaces", "function", "where", "no longer true", "seen", "what to do"),
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
            for item in overview.recompiles[:_MAX_ROWS]
        ),
        code=frozenset({"no longer true", "seen"}),
    )


def _fallbacks(overview: Overview) -> _Table:
    return _Table(
        title="Stays in PyTorch",
        help="Operators that ONNX Runtime does not run, slowest first. Each one cuts the graph; the reason says what would have to change.",
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
            for group in overview.fallbacks[:_MAX_ROWS]
        ),
        numbers=frozenset({"nodes", "per call"}),
        code=frozenset({"operator", "line"}),
    )


def _sessions(overview: Overview) -> _Table:
    names = {row.graph.graph_id: _graph_id(row.graph) for row in overview.graphs}
    return _Table(
        title="ONNX Runtime sessions",
        help="One session per ONNX model and kind of input, slowest first. Speed up the ones with a large share; the rest matter little.",
        source="sessions",
        total=len(overview.sessions),
        head=("id", "graph", "inputs", "runs on", "calls", "median", "all calls", "share"),
        rows=tuple(
            (
                cost.session.session_id,
                names.get(cost.graph_id or "", ""),
                cost.session.input_signature,
                ", ".join(name.removesuffix("ExecutionProvider") for name in cost.session.providers),
                f"{cost.session.calls:,}",
                "" if cost.session.p50_ns is None else time_from_ns(cost.session.p50_ns),
                time_from_ns(cost.session.total_ns),
                percent(cost.share),
            )
            for cost in overview.sessions[:_MAX_ROWS]
        ),
        numbers=frozenset({"calls", "median", "all calls", "share"}),
        code=frozenset({"inputs"}),
    )


def _findings(overview: Overview) -> _Table:
    return _Table(
        title="Findings",
        help="What ortlens noticed, the most expensive first; errors mean that the tables above may be incomplete.",
        source="findings",
        total=len(overview.findings),
        head=("severity", "what", "where", "gain per call", "what to do"),
        rows=tuple(
            (item.severity, item.title, place(item.file, item.line) if item.file else "", gain_words(item), item.mitigation)
            for item in overview.findings[:_MAX_ROWS]
        ),
    )


def _html(table: _Table) -> str:
    body: list[str] = []
    size = 0
    for row in table.rows:
        html = _row(table, row)
        size += len(html.encode())
        if size > _MAX_TABLE:
            break
        body.append(html)
    head = "".join(f'<th scope="col"{_style(table, name)}>{_safe(name)}</th>' for name in table.head)
    caption = f"<caption><strong>{_safe(table.title)}</strong> {_safe(table.help)}{_more(table, len(body))}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _row(table: _Table, row: tuple[str, ...]) -> str:
    return f"<tr>{''.join(_cell(table, name, text) for name, text in zip(table.head, row, strict=True))}</tr>"


def _cell(table: _Table, name: str, text: str) -> str:
    safe = _safe(text, _MAX_WORDS if name in table.words else _MAX_CELL)
    code = f"<code>{safe}</code>" if name in table.code and safe else safe
    whole = ' class="ol-whole"' if name in table.whole and len(text) <= _KEPT_WHOLE else ""
    return f"<td{_style(table, name) or whole}>{code}</td>"


def _style(table: _Table, name: str) -> str:
    return ' class="ol-number"' if name in table.numbers else ""


def _more(table: _Table, shown: int) -> str:
    left = table.total - shown
    return f" {counted(left, 'more row')} in <code>.{table.source}</code>." if left else ""


def failure_html(texts: Iterable[str]) -> str:
    """Say in a notebook that drawing failed.

    Args:
        texts: Paragraphs.

    Returns:
        A fragment that holds nothing but the escaped paragraphs.
    """
    return "<div>" + "".join(f"<p>{_safe(text)}</p>" for text in texts) + "</div>"
