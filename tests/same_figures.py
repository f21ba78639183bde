"""The figures of a capture, read where people and programs read them: text, HTML, JSON and frames, by name."""

import html
import json
import re
from collections.abc import Iterator
from typing import Any

from ortlens.analysis.answers.check import limits_from, verdicts_of
from ortlens.analysis.coverage import current_ids
from ortlens.cli.commands import answer, facts_of, json_text
from ortlens.units import percent, time_from_ns
from ortlens.views.capture_view import CaptureView
from ortlens.views.report import report_page

_TIME = r"(?:<?[\d.,]+ (?:ns|µs|ms|s|min|h))"
_FORMS = {
    "graph breaks": r"(no|[\d,]+) graph breaks?\b",
    "recompiles": r"(?<!\()\b(no|[\d,]+) recompiles?\b(?! of decode)",  # in brackets, those of one problem
    "partitions": r"(no|[\d,]+) partitions?,? no|Partitions:? (none|[\d,]+), in",
    "graphs": r"Partitions:? (?:none|[\d,]+), in ([\d,]+) graphs?\b",
    "coverage": r"(?:([\d,]+ of [\d,]+)|all ([\d,]+)) operators \(",
    "time of a call": rf"Time per call ({_TIME}):|({_TIME}), eager {_TIME}; in turns",
    "time in ONNX Runtime": r"(<?[\d.]+ %) of a call(?:'s time is in ONNX Runtime|;|\b(?! lost| \(eager))|(<?[\d.]+ %) ONNX Runtime,",
    "values compared": r"([\d,]+) values? compared",
    "largest difference": r"(?:differs?, by up to|the largest differences? (?:are|is)) (\d[\d.e+-]*)",
    "cost of the first problem": rf"Look first at .*?the break costs ({_TIME}) per call",
}
_MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^>]+>", re.DOTALL)


def contradicting_figures(view: CaptureView) -> list[str]:
    """List the figures that are not the same in all places that have them."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, place, value in _figures(view):
        found.setdefault(name, {}).setdefault(place, set()).add(value)
    return [f"{name}: {places}" for name, places in found.items() if len(set().union(*places.values())) > 1 and "frame" in places]


def _figures(view: CaptureView) -> Iterator[tuple[str, str, str]]:
    """Yield name, place and value of each."""
    capture = view.captured()
    pages = {"report": report_page(capture, models=False), "notebook": view._repr_html_()}
    texts = {place: html.unescape(_MARKUP.sub(" ", page)) for place, page in pages.items()}
    for place, text in {**texts, "summary": view.summary()}.items():
        for name, form in _FORMS.items():
            for groups in re.findall(form, " ".join(text.split())):
                said = groups if isinstance(groups, str) else next(filter(None, groups))
                whole = f"{said} of {said}" if name == "coverage" and " of " not in said else said
                yield name, place, "0" if said in {"no", "none"} else whole.replace(",", "")
    facts, figures = json.loads(json_text(answer("show", facts_of(capture)))), view.figures()
    yield from (("graph breaks", "JSON", str(len(facts["breaks"]))), ("recompiles", "JSON", str(len(facts["recompiles"]))))
    names = {"max_breaks": "graph breaks", "max_recompiles": "recompiles", "max_skipped": "given up"}
    for row in verdicts_of(capture, limits_from(max_breaks=10**9, max_recompiles=10**9, max_skipped=10**9)):
        yield from [(names[row.limit], "check", f"{row.value:.0f}")] if row.value is not None else []
    yield "given up", "JSON", str(len(facts["given_up"]))
    yield "given up", "frame", str(int(figures["skipped"]))
    for name, frame in (("graph breaks", view.breaks), ("recompiles", view.recompiles), ("sessions", view.sessions)):
        yield name, "frame", str(len(frame))
        yield name, "figures", str(figures[name.removeprefix("graph ")])
    yield from _of_a_call(view, facts, figures)
    yield from _of_results(view, figures)


def _of_a_call(view: CaptureView, facts: dict[str, Any], figures: dict[str, float]) -> Iterator[tuple[str, str, str]]:
    covered = facts["coverage"]
    if covered["verdict"] not in {"empty", "foreign"}:
        counts = ("ort_operator_count", "operator_count") if covered["operator_count"] is not None else ("ort_node_count", "node_count")
        in_ort, whole = (covered[name] for name in counts)
        yield "coverage", "JSON", f"{in_ort} of {whole}"
        yield "coverage", "frame", f"{in_ort} of {view.call_lines.operators.sum() or whole}"
        graphs = view.graphs[view.graphs.graph_id.isin(current_ids(view.captured()))].dropna(subset="node_count")
        yield from (("graphs", "JSON", str(covered["graph_count"])), ("graphs", "frame", str(len(graphs))))
        yield from (("partitions", "JSON", str(covered["partition_count"])), ("partitions", "frame", str(graphs.partition_count.sum())))
    if facts["ledger"] is not None and facts["ledger"]["is_measured"]:
        ledger = view.ledger
        yield "time of a call", "frame", time_from_ns(ledger.ns.sum())
        yield "time of a call", "JSON", time_from_ns(facts["ledger"]["total_ns"])
        yield "time of a call", "figures", time_from_ns(int(figures["call_ns"]))
        if "run" in set(ledger.part):
            yield "time in ONNX Runtime", "frame", percent(ledger[ledger.part == "run"].share.sum())
            yield "time in ONNX Runtime", "figures", percent(figures["ort_ns"] / figures["call_ns"])
    first = view.actions.head(1).dropna(subset="cost_ns").query("kind == 'break' and cost_ns > 0 and gain_ns.isna()", engine="python")
    yield from (("cost of the first problem", "frame", time_from_ns(int(ns))) for ns in first.cost_ns)


def _of_results(view: CaptureView, figures: dict[str, float]) -> Iterator[tuple[str, str, str]]:
    rows = view.numerics.dropna(subset="ok")
    if len(rows):
        yield "values compared", "frame", str(rows.groupby(["partition_id", "node"], dropna=False).ngroups)
        yield "largest difference", "frame", f"{rows.max_abs.max():.1e}"
        yield "largest difference", "figures", f"{figures['max_abs']:.1e}"
