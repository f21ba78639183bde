"""Each profiled ONNX model before and after ONNX Runtime's optimisation, side by side: its nodes, and the kernels that ran."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from ortlens.analysis.fusions import optimised
from ortlens.units import counted, percent, time_from_ns
from ortlens.views.comparison_style import CSS
from ortlens.views.report.work import current_kernels
from ortlens.views.static_table import safe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.analysis.fusions import Change, Optimised
    from ortlens.trace.records import Capture, Kernel

_MAX_ROWS, _FOLD, _MAX_NODES = 400, 4, 12
_WORDS: Mapping[Change | Literal["shared"] | None, str] = {
    None: "",
    "fused": "fused",
    "changed": "another operator",
    "inserted": "inserted",
    "unknown": "origin not known",
    "gone": "removed or folded",
    "shared": "fused, kernel not known",
}


def optimised_html(capture: Capture) -> str:
    """Lay models beside what ran, per profiled session of the newest graphs; empty where ONNX Runtime changed nothing."""
    current = {kernel.session_id for kernel in current_kernels(capture)}
    partitions = {session.session_id: session.partition_id for session in capture.sessions}
    rows = [row for row in optimised(capture) if row.session_id in current]
    room = _MAX_ROWS
    parts: list[str] = []
    for session_id, group in groupby(rows, key=lambda row: row.session_id):
        listed = list(group)
        if any(row.change for row in listed) and room > 0:
            parts.append(_session(partitions[session_id], listed, room))
            room -= len(listed)
    if not parts:
        return ""
    return f'<div class="ortlens-summary ortlens-compare oc-inside"><style>{CSS}</style>{"".join(parts)}</div>'


def _session(partition: str, rows: Sequence[Optimised], room: int) -> str:
    nodes, kernels = sum(len(row.onnx_nodes) for row in rows), sum(row.kernel is not None for row in rows)
    counts = Counter(row.change for row in rows if row.change)
    said = ", ".join(f"{count} {_WORDS[change]}" for change, count in counts.most_common())
    runs = (list(run) for _, run in groupby(rows[:room], key=lambda row: row.change is None))
    body = "".join(_fold(run) if run[0].change is None and len(run) >= _FOLD else _table(run) for run in runs)
    left = len(rows) - room
    more = f"<p>and {counted(left, 'more row')}: see <code>.fusions()</code></p>" if left > 0 else ""
    return (
        f'<section class="oc-panes"><h3>Partition {safe(partition, 60)}: {counted(nodes, "ONNX node")}, {counted(kernels, "kernel")}</h3>'
        f'<p class="oc-help">{safe(said)}</p><div class="oc-heads" aria-hidden="true"><span>ONNX model</span><span>What ran</span></div>'
        f"{body}{more}</section>"
    )


def _fold(rows: Sequence[Optimised]) -> str:
    said = f"{counted(len(rows), 'node')} that ran as they were"
    return f'<details><summary class="oc-fold">{said}</summary>{_table(rows)}</details>'


def _table(rows: Sequence[Optimised]) -> str:
    head = '<tr><th scope="col">ONNX model</th><th scope="col">what ran</th><th scope="col">change</th></tr>'
    return f'<table class="oc-rows"><thead>{head}</thead><tbody>{"".join(map(_row, rows))}</tbody></table>'


def _row(row: Optimised) -> str:
    shown = row.onnx_nodes[:_MAX_NODES]
    lines = [f"<strong>{safe(op, 60)}</strong> <small>{safe(name, 100)}</small>" for name, op in shown]
    lines += [f"and {len(row.onnx_nodes) - len(shown)} more"] if len(row.onnx_nodes) > len(shown) else []
    group = ' class="oc-joined"' if len(row.onnx_nodes) > 1 else ' class="oc-none"' if not lines else ""
    look = {None: "oc-same", "fused": "oc-fused", "changed": "oc-fused", "gone": "oc-removed", "shared": "oc-fused"}.get(
        row.change, "oc-added"
    )
    return f'<tr class="{look}"><td{group}>{"<br>".join(lines)}</td>{_kernel(row.kernel)}<td class="oc-difference">{_said(row)}</td></tr>'


def _said(row: Optimised) -> str:
    return f"{len(row.onnx_nodes)} fused into 1" if row.change == "fused" else _WORDS[row.change]


def _kernel(kernel: Kernel | None) -> str:
    if kernel is None:
        return '<td class="oc-none"></td>'
    share = kernel.share if kernel.share is not None and 0 <= kernel.share <= 1 else None  # NaN in a damaged file
    figures = [time_from_ns(kernel.mean_ns)] if kernel.mean_ns is not None else []
    figures += [percent(share)] if share is not None else []
    module = f" <small>{safe(kernel.module, 80)}</small>" if kernel.module else ""
    time = f'<span class="oc-time">{" · ".join(figures)}</span>' if figures else ""
    return f"<td><strong>{safe(kernel.op_type, 60)}</strong>{module}{time}</td>"
