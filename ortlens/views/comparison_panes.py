"""The two panes of a comparison: a row per operator, so that both sides stay beside each other without a script."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from ortlens.trace.records import Break
from ortlens.units import counted, time_from_ns
from ortlens.views.comparison_text import short, signed
from ortlens.views.static_table import safe
from ortlens.views.wording import place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ortlens.analysis.compare.comparison import Compared
    from ortlens.analysis.compare.panes import Difference, PaneRow, PaneSide
    from ortlens.trace.records import Node

_Run: TypeAlias = "list[tuple[int, PaneRow]]"

_FOLD = 4
"""So many equal rows or more are folded."""
_WORDS: dict[Difference, str] = {
    "same": "",
    "added": "new",
    "removed": "gone",
    "slower": "slower",
    "faster": "faster",
    "fused": "now fused",
    "split": "no longer fused",
}
_SIGNS = {"worse": "✗ ", "better": "✓ ", "neutral": ""}


class Anchors:
    """Ids of rows, for links to them; none in a notebook, which may hold the same comparison twice."""

    def __init__(self, *, is_page: bool) -> None:
        """Start without rows; `is_page` tells whether the fragment is alone on its page."""
        self._is_page = is_page
        self._numbers: dict[tuple[str, str], int] = {}

    def place(self, rows: Iterable[PaneRow]) -> None:
        """Number all rows of the panes."""
        for number, row in enumerate(rows if self._is_page else ()):
            for name, side in (("before", row.before), ("after", row.after)):
                if side is not None and side.ns is not None:
                    self._numbers[name, side.name] = number

    def link(self, before: Iterable[str], after: Iterable[str], markup: str) -> str:
        """Link to the first row that holds one of some operators; the text alone where there is no such row."""
        wanted = [*(("before", name) for name in before), *(("after", name) for name in after)]
        number = next((self._numbers[key] for key in wanted if key in self._numbers), None)
        return markup if number is None else f'<a href="#row{number}">{markup}</a>'

    def attribute(self, number: int) -> str:
        """Return the id of a row as an attribute with a blank before it; empty unless the fragment is alone on its page."""
        return f' id="row{number}"' if self._is_page else ""


def panes_html(compared: Compared, rows: Sequence[PaneRow], anchors: Anchors, *, max_rows: int) -> str:
    """Write both panes, of at most `max_rows` rows: those that differ go first, with the few equal ones between them.

    Long runs of equal rows are folded, or only counted where there is no room; what was left out is counted.
    """
    heading = "<h2>Side by side</h2>"
    if not rows:
        return f'<section class="oc-panes">{heading}<p>These backends do not record operators.</p></section>'
    runs = list(_runs(rows))
    open_rows = sum(len(run) for run in runs if not _is_folded(run))
    room, folded_room = max_rows, max_rows - open_rows
    parts: list[str] = []
    for run in runs:
        if _is_folded(run):
            is_short = len(run) <= folded_room
            folded_room -= len(run) if is_short else 0
            parts.append(_fold(run, anchors) if is_short else f'<p class="oc-fold">{_fold_words(run)}</p>')
        elif room > 0:
            parts.append(_table(run[:room], anchors))
            room -= len(run)
        if room < 0:
            break
    left = max(open_rows - max_rows, 0)
    more = f"<p>and {counted(left, 'more row')}: see <code>.operators</code></p>" if left else ""
    names = (safe(capture.name or "", 60) for capture in (compared.before, compared.after))
    heads = "".join(f"<span>{side}: {name}</span>" for side, name in zip(("Before", "After"), names, strict=True))
    different = sum(not _is_same(row) for row in rows)
    return (
        f'<section class="oc-panes">{heading}<p class="oc-help">Each operator beside its partner, in the order of the program: '
        f"{counted(different, 'row')} of {len(rows):,} differ. {_KEY}</p>"
        f'<div class="oc-heads" aria-hidden="true">{heads}</div>{"".join(parts)}{more}</section>'
    )


_KEY = (
    '<span class="oc-where oc-ort">p0</span> runs in ONNX Runtime, in that partition; <span class="oc-where oc-torch">PyTorch</span> '
    'does not; <span class="oc-group">Gemm</span> a kernel that ONNX Runtime fused.'
)


def _is_same(row: PaneRow) -> bool:
    return row.difference == "same" and not any(side is not None and isinstance(side.item, Break) for side in (row.before, row.after))


def _runs(rows: Sequence[PaneRow]) -> Iterator[_Run]:
    """Yield numbered rows, cut where equal ones begin or end; so few equal ones that folding hides nothing stay with the others."""
    waiting: _Run = []
    for is_same, group in groupby(enumerate(rows), key=lambda item: _is_same(item[1])):
        run = list(group)
        if is_same and len(run) >= _FOLD:
            if waiting:
                yield waiting
            yield run
            waiting = []
        else:
            waiting += run
    if waiting:
        yield waiting


def _is_folded(run: _Run) -> bool:
    return len(run) >= _FOLD and all(_is_same(row) for _, row in run)


def _fold(run: _Run, anchors: Anchors) -> str:
    return f'<details><summary class="oc-fold">{_fold_words(run)}</summary>{_table(run, anchors)}</details>'


def _fold_words(run: _Run) -> str:
    modules = [side.item.module for _, row in run if (side := row.before) and not isinstance(side.item, Break) and side.item.module]
    around = f" ({safe(_range(modules), 120)})" if modules else ""
    return f"{counted(len(run), 'operator')} without a difference{around}"


def _range(modules: Sequence[str]) -> str:
    return modules[0] if modules[0] == modules[-1] else f"{modules[0]} … {modules[-1]}"


def _table(items: Sequence[tuple[int, PaneRow]], anchors: Anchors) -> str:
    body = "".join(_row(number, row, anchors) for number, row in items)
    head = '<tr><th scope="col">before</th><th scope="col">after</th><th scope="col">difference</th></tr>'
    return f'<table class="oc-rows"><thead>{head}</thead><tbody>{body}</tbody></table>'


def _row(number: int, row: PaneRow, anchors: Anchors) -> str:
    return (
        f'<tr class="oc-{row.difference} oc-{row.effect}"{anchors.attribute(number)}>{_cell(row.before)}{_cell(row.after)}'
        f'<td class="oc-difference">{_SIGNS[row.effect]}{safe(_said(row))}</td></tr>'
    )


def _said(row: PaneRow) -> str:
    before, after = row.before, row.after
    if isinstance(after and after.item, Break) or isinstance(before and before.item, Break):
        return {"added": "new break", "removed": "fixed"}.get(row.difference, "")
    if row.difference == "moved":
        return f"moved to {'ONNX Runtime' if row.effect == 'better' else 'PyTorch'}"
    if before is not None and after is not None and before.ns is not None and after.ns is not None:
        word = _WORDS[row.difference]
        if not word and before.ns == after.ns:
            return ""
        ratio = f" ({after.ns / before.ns:.2f}x)" if before.ns and word else ""
        return f"{word + ': ' if word else ''}{signed(after.ns - before.ns)}{ratio}"
    return _WORDS[row.difference]


def _cell(side: PaneSide | None) -> str:
    if side is None:
        return '<td class="oc-none"></td>'
    parts = _break(side.item) if isinstance(side.item, Break) else _operator(side, side.item)
    time = "" if side.ns is None else f'<span class="oc-time">{time_from_ns(side.ns)}</span>'
    look = ' class="oc-break"' if isinstance(side.item, Break) else ""
    return f"<td{look}>{' '.join(parts)}{time}</td>"


def _break(item: Break) -> Iterator[str]:
    yield f"<strong>graph break</strong> {safe(item.reason, 160)} <small>{safe(place(item.file, item.line))}</small>"


def _operator(side: PaneSide, node: Node) -> Iterator[str]:
    runs_in = (node.partition_id or "ONNX Runtime") if node.supported else "PyTorch"
    yield f'<span class="oc-where oc-{"ort" if node.supported else "torch"}">{safe(runs_in, 24)}</span>'
    yield f"<strong>{safe(short(node.target), 60)}</strong>"
    if node.module:
        yield f"<small>{safe(node.module, 80)}</small>"
    if side.kernels:
        names = safe(" + ".join(dict.fromkeys(side.kernels)), 80)
        yield f'<span class="oc-group">{names}</span>' if side.is_fused else f'<span class="oc-kernel">{names}</span>'
