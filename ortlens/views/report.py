"""A capture as one self-contained page: the explorer on top, and below it everything that matters as text and tables.

Nothing is loaded, and the page's own rules forbid it to load anything; its scripts are named by their hashes, so that no other
runs. Without JavaScript, and in print, the explorer is absent and the rest is unfolded.
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from ortlens.analysis.coverage import current_ids
from ortlens.analysis.index import graph_by_session, sessions_by_id
from ortlens.analysis.memory import memory
from ortlens.analysis.onnx_model import optimised
from ortlens.trace.schema import facts_of
from ortlens.units import counted, percent, time_from_ns
from ortlens.views.markup import asset, page_html, static
from ortlens.views.payload import packed_payload, payload_from_screen
from ortlens.views.redaction import redacted_capture
from ortlens.views.screen import answer_tables, capture_screen
from ortlens.views.table import ShownTable
from ortlens.views.wording import SAVED, clipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ortlens.analysis.onnx_model import Change, Optimised
    from ortlens.trace.records import Capture, Kernel, Numeric
    from ortlens.views.wording import Hints

BUDGET_BYTES = 1_500_000
"""What a page may weigh: more does not go through every mail gate. ONNX models that do not fit are left out, with a sentence."""

_ENDS = re.compile(r"<(/script|!--)", re.IGNORECASE)
_STARTED = "document.documentElement.classList.add('js')"
_FOLD = "document.currentScript.parentNode.open=false"
_MAX_ENTRIES = 100
_WORDS = {
    "python": "Python",
    "platform": "system",
    "machine": "processor type",
    "cpu_count": "processors",
    "cpu_usable": "usable processors",
    "cpu_quota": "processors by quota",
    "torch_threads": "torch threads",
    "ledger_calls": "calls averaged in the ledger",
    "explain_calls": "calls that explain made, compiled",
    "explain_uncompiled_calls": "calls that explain made in eager",
}

_MAX_ROWS, _FOLDED, _TABLE_ROWS = 400, 4, 60
_CHANGES: Mapping[Change | Literal["shared"] | None, str] = {
    None: "",
    "fused": "fused",
    "changed": "another operator",
    "inserted": "inserted",
    "unknown": "origin not known",
    "gone": "removed or folded",
    "shared": "fused, kernel not known",
}
_LOOKS = {None: "oc-same", "fused": "oc-fused", "changed": "oc-fused", "gone": "oc-removed", "shared": "oc-fused"}

_Packed = tuple[str, str, "Mapping[str, str]"]  # data in the page: the id of its script, gzip'd and in base64, and attributes


def report_page(capture: Capture, *, title: str | None = None, redact: bool = False, models: bool = True, hints: Hints = SAVED) -> str:
    """Make the page of any capture, even a huge or hostile one; equal captures give equal text.

    `models` puts ONNX models without their weights in, as far as they fit; `redact` leaves them, source text and values out, and shortens
    paths.
    """
    import ortlens

    shown = redacted_capture(capture) if redact else capture
    screen = capture_screen(shown, hints)
    data = payload_from_screen(screen, shown, redacted=redact, hints=hints)
    notes = list(data["meta"]["left_out"])
    if redact:
        notes.append("paths are shortened; source text, values in guards and messages, and ONNX models are left out")
    environment = list(_environment(shown))[:_MAX_ENTRIES]
    about = {
        "title": title or screen.title,
        "screen": screen,
        "about": _surroundings(dict(environment)),
        "notes": notes,
        "optimised": _optimised(shown),
        "tables": report_tables(shown),
        "environment": environment,
        "version": ortlens.__version__,
    }
    packed: list[_Packed] = [("ortlens-data", _base64(packed_payload(data)), {})]
    page = _page(about, packed)
    if not models or redact or not shown.models:
        return page
    return _with_models(shown, about, packed, BUDGET_BYTES - len(page.encode()))


def _with_models(capture: Capture, about: dict[str, Any], packed: list[_Packed], room: int) -> str:
    """Make the page with the ONNX models that fit into `room`, and the viewer that draws them."""
    from ortlens.views.netron import embedding, page_policy

    found = embedding(capture, budget_bytes=max(0, room - 4_000 - 150 * len(capture.models)) * 3 // 4)
    if not found.models:
        return _page(about, packed, notes=found.notes)
    if found.frame:
        packed = [*packed, ("ortlens-frame", _base64(found.frame), {"data-ortlens-frame": ""})]
    for number, (name, model) in enumerate(found.models.items()):
        packed = [*packed, (f"ortlens-model-{number}", _base64(model), {"data-ortlens-model": clipped(name, 240)})]
    return _page(about, packed, notes=found.notes, notice=found.licence, sources=page_policy())


def _page(
    about: dict[str, Any], packed: list[_Packed], *, notes: tuple[str, ...] = (), notice: str = "", sources: Mapping[str, str] | None = None
) -> str:
    return page_html(
        "report.html",
        styles=(asset("summary.css"), asset("comparison.css"), static("explorer.css"), asset("report.css")),
        scripts=(_STARTED, _FOLD, _bundle()),
        sources=sources,
        model_notes=notes,
        packed=packed,
        licences=_quoted(static("THIRD_PARTY_LICENSES.txt") + notice),
        started=_STARTED,
        fold=_FOLD,
        bundle=_bundle(),
        **about,
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@cache
def _bundle() -> str:
    return _quoted(static("explorer.report.js"))


def _quoted(text: str) -> str:
    """Keep text from ending the script around it; inside JavaScript strings it means the same."""
    return _ENDS.sub(r"<\\\1", text)


def _surroundings(known: Mapping[str, str]) -> list[str]:
    """Say on a line where a capture was recorded."""
    facts = [] if known["captured"] == "not recorded" else [f"captured {known['captured']}"]
    facts += [f"{name} {known[name]}" for name in ("backend", "torch", "onnxruntime") if name in known]
    return [*facts, *([known["execution providers"]] if "execution providers" in known else [])]


def _environment(capture: Capture) -> Iterator[tuple[str, str]]:
    """Yield names and values: versions, machine, choices."""
    left = dict(sorted(facts_of(capture).items()))
    yield "captured", capture.created.replace("T", " ").replace("+00:00", " UTC") or "not recorded"
    yield "backend", capture.backend
    for name in [name for name in left if name.startswith("version_")]:
        yield name.removeprefix("version_"), left.pop(name)
    for name in [name for name in _WORDS if name in left]:
        yield _WORDS[name], left.pop(name)
    providers = dict.fromkeys(", ".join(session.providers) for session in capture.sessions)
    if providers:
        yield "execution providers", "; ".join(providers)
    known = [(row.threads or "chosen by ONNX Runtime", row.threads_reason) for row in capture.sessions if row.threads is not None]
    threads = [f"{many} ({reason})" if reason else str(many) for many, reason in dict.fromkeys(known)]
    if threads:
        yield "threads per session", "; ".join(threads)
    for name in [name for name in left if name.startswith("option_")]:
        yield f"option {name.removeprefix('option_')}", left.pop(name)
    yield from left.items()


def _optimised(capture: Capture) -> list[dict[str, Any]]:
    """Lay models beside what ran, for a template, per profiled session of the newest graphs; empty where ONNX Runtime changed nothing."""
    current = {kernel.session_id for kernel in current_kernels(capture)}
    sessions, room = sessions_by_id(capture), _MAX_ROWS
    found = []
    for session_id, group in groupby((row for row in optimised(capture) if row.session_id in current), key=lambda row: row.session_id):
        rows = list(group)
        if any(row.change for row in rows) and room > 0:
            found.append(_profiled_session(sessions[session_id].partition_id, rows, room))
            room -= len(rows)
    return found


def _profiled_session(partition: str, rows: Sequence[Optimised], room: int) -> dict[str, Any]:
    nodes, kernels = sum(len(row.onnx_nodes) for row in rows), sum(row.kernel is not None for row in rows)
    counts = Counter(row.change for row in rows if row.change)
    runs = []
    for is_same, group in groupby(rows[:room], key=lambda row: row.change is None):
        run = list(group)
        fold = f"{counted(len(run), 'node')} that ran as they were" if is_same and len(run) >= _FOLDED else ""
        runs.append({"fold": fold, "rows": [*map(_optimised_row, run)]})
    return {
        "title": f"Partition {clipped(partition, 60)}: {counted(nodes, 'ONNX node')}, {counted(kernels, 'kernel')}",
        "counts": ", ".join(f"{count} {_CHANGES[change]}" for change, count in counts.most_common()),
        "runs": runs,
        "left": counted(len(rows) - room, "more row") if len(rows) > room else "",
    }


def _optimised_row(row: Optimised) -> tuple[Optimised, str, str, str]:
    """Return a row with how it looks, its time and share, and what became of the nodes."""
    kernel, figures = row.kernel, []
    if kernel is not None and kernel.mean_ns is not None:
        figures.append(time_from_ns(kernel.mean_ns))
    if kernel is not None and kernel.share is not None and 0 <= kernel.share <= 1:  # NaN in a damaged file
        figures.append(percent(kernel.share))
    change = f"{len(row.onnx_nodes)} fused into 1" if row.change == "fused" else _CHANGES[row.change]
    return row, _LOOKS.get(row.change, "oc-added"), " · ".join(figures), change


def report_tables(capture: Capture) -> tuple[ShownTable, ...]:
    """Return every table that has rows."""
    kernels = current_kernels(capture)
    found: tuple[tuple[str, str, Iterable[Any]], ...] = (
        ("Time of a call", "ledger", capture.ledger),
        ("Partitions, the largest first", "partitions", sorted(capture.partitions, key=lambda item: -item.node_count)),
        ("ONNX models, the largest first", "models", sorted(capture.models, key=lambda item: -item.node_count)),
        ("Kernels of the newest graphs, the slowest first", "kernels", sorted(kernels, key=lambda item: -(item.mean_ns or 0))),
        ("Compared results, what differs first", "numerics", sorted(capture.numerics, key=_how_bad)),
        ("Memory of the sessions", "memory()", (row for row in memory(capture) if row.session_id is not None)),
    )
    extra = [
        ShownTable(title=title, source=source, records=records, limit=_TABLE_ROWS)
        for title, source, rows in found
        if (records := tuple(rows))
    ]
    return (*answer_tables(capture, limit=_TABLE_ROWS), *extra)


def current_kernels(capture: Capture) -> tuple[Kernel, ...]:
    """List the kernels of graphs that no recompile replaced; empty where nothing was profiled."""
    current = current_ids(capture)
    known = {graph.graph_id for graph in capture.graphs}
    return tuple(kernel for kernel in capture.kernels if graph_by_session(capture).get(kernel.session_id) not in known - current)


def _how_bad(item: Numeric) -> tuple[bool, bool, bool, float]:
    error = math.inf if item.max_rel is None or math.isnan(item.max_rel) else item.max_rel
    return item.ok is not False, item.ok is not None, item.scope != "call", -error
