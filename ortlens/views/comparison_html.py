"""A comparison of two captures as HTML: the same fragment in a notebook and on a page of its own. No script: what is aligned is one row.

Colours come from the summary's style sheet; every difference has a sign and a word as well. Only the page has ids and links to them,
since a notebook may hold a fragment many times.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ortlens.analysis.compare.kernels import kernel_times
from ortlens.analysis.compare.panes import panes
from ortlens.units import counted, time_from_ns
from ortlens.views.comparison_panes import Anchors, panes_html
from ortlens.views.comparison_style import CSS
from ortlens.views.comparison_text import (
    change_sentence,
    kernel_words,
    operators_words,
    repeated,
    row_name,
    signed,
    timing_words,
    verdict_sentence,
)
from ortlens.views.comparison_tiles import comparison_tiles
from ortlens.views.html import tiles_html
from ortlens.views.policy import policy
from ortlens.views.report.write import MARK
from ortlens.views.static_table import safe
from ortlens.views.style import CSS as SUMMARY_CSS
from ortlens.views.wording import place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortlens.analysis.compare.changes import Change
    from ortlens.analysis.compare.comparison import Compared
    from ortlens.analysis.compare.durations import Timing
    from ortlens.analysis.compare.kernels import KernelTime

_NOTEBOOK_ROWS, _PAGE_ROWS = 150, 4_000
"""Rows of both panes together; what is beyond is counted."""
_CARD_ROWS = 5
_TIMES, _FEW_TIMES = 40, 4
_WORDS = 400
_SIGNS = {"worse": "✗", "better": "✓", "neutral": "·"}
_CARDS = (
    ("Graph breaks and recompiles", frozenset({"break", "recompile"}), "None differs."),
    ("Operators that moved, came or went", frozenset({"operator"}), "None: every operator runs where it ran."),
)
_ELSE = {
    "coverage": "Coverage",
    "partition": "Partition",
    "result": "Results",
    "finding": "Finding",
    "version": "Version",
    "option": "Option",
    "provider": "Provider",
    "setting": "Setting",
    "machine": "Machine",
}


def comparison_page(compared: Compared, *, title: str | None = None) -> str:
    """Make a page that loads and runs nothing, by default titled with the names of both captures; names may hold anything."""
    names = safe(title or _names(compared.before.name, compared.after.name))
    head = [
        '<meta charset="utf-8">',
        MARK,
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{names}</title>",
        "<style>:root{color-scheme:light dark}body{margin:0;background:Canvas;color:CanvasText}</style>",
    ]
    body = _fragment(compared, f"<h1>{names}</h1>", max_rows=_PAGE_ROWS, anchors=Anchors(is_page=True))
    return '<!doctype html>\n<html lang="en">\n<head>\n' + "\n".join(head) + f"\n</head>\n<body>\n{body}\n</body>\n</html>\n"


def _names(before: str | None, after: str | None) -> str:
    return f"{before or 'Comparison'}: before and after" if before == after else f"{before or 'unnamed'} → {after or 'unnamed'}"


def comparison_html(compared: Compared) -> str:
    """Make a fragment for a notebook, without ids, scripts or links; names in the comparison may hold anything."""
    return _fragment(compared, "", max_rows=_NOTEBOOK_ROWS, anchors=Anchors(is_page=False))


def _fragment(compared: Compared, heading: str, *, max_rows: int, anchors: Anchors) -> str:
    kernels = kernel_times(compared)
    rows = panes(compared, kernels)
    anchors.place(rows)
    parts = [
        heading,
        _about(compared),
        tiles_html(comparison_tiles(compared)),
        _machine(compared),
        '<div class="oc-cards">',
        *(_changes_card(title, [row for row in compared.changes if row.kind in kinds], none) for title, kinds, none in _CARDS),
        _kernels_card(compared, kernels, anchors),
        "</div>",
        _times(compared.timings),
        panes_html(compared, rows, anchors, max_rows=max_rows),
        _else(compared.changes),
    ]
    return f'<div class="ortlens-summary ortlens-compare"><style>{SUMMARY_CSS}{CSS}</style>{"".join(parts)}</div>'


def _about(compared: Compared) -> str:
    sides = (
        f"<strong>{label}</strong> {safe(capture.name or 'unnamed capture', 80)} ({safe(capture.backend, 30)}, "
        f"{safe(capture.created or 'no date', 30)})"
        for label, capture in (("Before:", compared.before), ("After:", compared.after))
    )
    sentence = verdict_sentence(compared)
    said = safe(_arrows(sentence[:1].upper() + sentence[1:]), _WORDS)
    return f'<p class="ol-title">{said}</p><p class="oc-about">{" · ".join(sides)}</p>'


def _machine(compared: Compared) -> str:
    if not compared.machine_differs:
        return ""
    return (
        '<p class="oc-note" role="note"><strong>▲ Recorded on different machines or with different numbers of threads,</strong> which may '
        "be all that the times show.</p>"
    )


def _changes_card(title: str, rows: Sequence[Change], none: str) -> str:
    order = sorted(rows, key=lambda row: (row.effect != "worse", row.effect != "better"))
    said = list(Counter((row.effect, _change(row)) for row in order).items())
    items = [
        f'<li class="oc-{effect}"><span aria-hidden="true">{_SIGNS[effect]}</span> {safe(repeated(text, number), _WORDS)}</li>'
        for (effect, text), number in said[:_CARD_ROWS]
    ]
    return _card(title, _list(items, len(said) - _CARD_ROWS, "changes") if items else f"<p>{none}</p>")


def _change(row: Change) -> str:
    if row.kind == "operator" and row.change == "moved":
        where = f"{row.subject} ({place(row.file, row.line, row.module)})"
        return (
            f"into ONNX Runtime: {where}; was in {row.before}"
            if row.effect == "better"
            else f"out of ONNX Runtime: {where}; in {row.after}"
        )
    return _arrows(change_sentence(row))


def _card(title: str, body: str) -> str:
    return f'<section class="oc-card"><h2>{title}</h2>{body}</section>'


def _list(items: Sequence[str], left: int, frame: str) -> str:
    more = f"<p>and {left:,} more: see <code>.{frame}</code></p>" if left > 0 else ""
    return f"<ul>{''.join(items)}</ul>{more}"


def _kernels_card(compared: Compared, kernels: Sequence[KernelTime], anchors: Anchors) -> str:
    known = [row for row in kernels if row.difference_ns]
    known.sort(key=lambda row: (row.verdict not in ("slower", "faster"), -abs(row.difference_ns or 0)))
    missing = _unprofiled(compared)
    note = f"<p>{missing}</p>" if missing else ""
    if not known:
        return _card("Kernels by difference", note or "<p>None takes another time.</p>")
    text = "<p><small>✗ and ✓: the partition or call differs outside the noise, and this explains a tenth of it at least.</small></p>"
    items = _list([_kernel(row, anchors) for row in known[:_CARD_ROWS]], len(known) - _CARD_ROWS, "kernels")
    return _card("Kernels by difference", text + items + note)


def _kernel(row: KernelTime, anchors: Anchors) -> str:
    effect = {"slower": "worse", "faster": "better"}.get(row.verdict, "neutral")
    name = anchors.link(row.before_nodes, row.after_nodes, safe(operators_words(row)))
    module = f" <small>{safe(row.module, 60)}</small>" if row.module else ""
    return (
        f'<li class="oc-{effect}"><span aria-hidden="true">{_SIGNS[effect]}</span> <strong>{signed(row.difference_ns or 0)}</strong> '
        f"{name}{module}<br><small>{safe(_arrows(kernel_words(row)), _WORDS)}</small></li>"
    )


def _arrows(text: str) -> str:
    return text.replace(" -> ", " → ")


def _unprofiled(compared: Compared) -> str:
    missing = [word for word, capture in (("first", compared.before), ("second", compared.after)) if not capture.kernels]
    if not missing:
        return ""
    sides = "Neither capture was" if len(missing) > 1 else f"The {missing[0]} capture was not"
    return f"{sides} profiled. Call <code>lens.profile(*args)</code> before saving, or use <code>--profile</code>, for times of kernels."


def _times(timings: Sequence[Timing]) -> str:
    """Write the times of calls and of what differs; the rest is folded."""
    order = sorted(timings, key=lambda row: (row.verdict in ("same", "unmeasured"), row.scope != "call", -(row.before_ns or 0)))
    first, rest = [row for row in order if _is_told(row)], [row for row in order if not _is_told(row)]
    if len(rest) <= _FEW_TIMES:
        first, rest = order, []
    shown = _times_table(first[:_TIMES]) if first else ""
    if rest:
        unmeasured = sum(row.verdict == "unmeasured" for row in rest)
        words = f"{counted(len(rest), 'more graph or partition', 'more graphs and partitions')}: none differs outside the noise"
        words += f", {unmeasured:,} could not be compared" if unmeasured else ""
        words += f"; {len(rest) - _TIMES:,} are in <code>.times</code> only" if len(rest) > _TIMES else ""
        shown += f'<details><summary class="oc-fold">{words}</summary>{_times_table(rest[:_TIMES])}</details>'
    text = "the least disturbed tenth of the calls, with the band of calmer and busier stretches. "
    text += "A time differs where its bands are apart by more than a slower machine explains."
    return f'<section class="oc-panes"><h2>Times</h2><p class="oc-help">Each is {text}</p>{shown}</section>' if shown else ""


def _is_told(row: Timing) -> bool:
    return row.scope == "call" or row.verdict in ("slower", "faster")


def _times_table(rows: Sequence[Timing]) -> str:
    body = "".join(map(_time, rows))
    return (
        "<table class='oc-times'><thead><tr>"
        '<th scope="col">of</th><th scope="col" class="ol-number">before</th><th scope="col" class="ol-number">after</th>'
        f'<th scope="col" class="oc-wide">bands</th><th scope="col">verdict</th></tr></thead><tbody>{body}</tbody></table>'
    )


def _time(row: Timing) -> str:
    widest = max(row.before_high_ns or 0, row.after_high_ns or 0, 1)
    effect = {"slower": "worse", "faster": "better"}.get(row.verdict, "neutral")
    bands = ""
    if row.before_ns is not None and row.after_ns is not None:
        bands = _band("before", row.before_low_ns, row.before_ns, row.before_high_ns, widest)
        bands += _band("after", row.after_low_ns, row.after_ns, row.after_high_ns, widest)
    return (
        f'<tr class="oc-{effect}"><th scope="row">{safe(row_name(row))}</th>'
        f'<td class="ol-number">{_ns(row.before_ns)}</td><td class="ol-number">{_ns(row.after_ns)}</td>'
        f'<td class="oc-wide" aria-hidden="true">{bands}</td><td>{safe(timing_words(row), _WORDS)}</td></tr>'
    )


def _ns(time: int | None) -> str:
    return "" if time is None else time_from_ns(time)


def _band(side: str, low: int | None, middle: int, high: int | None, widest: int) -> str:
    start, end = 100 * (low or middle) / widest, 100 * (high or middle) / widest
    return (
        f'<span class="oc-band oc-{side}"><i style="left:{start:.1f}%;width:{max(end - start, 0.5):.1f}%"></i>'
        f'<b style="left:{100 * middle / widest:.1f}%"></b></span>'
    )


def _else(changes: Iterable[Change]) -> str:
    rows = [row for row in changes if row.kind in _ELSE]
    if not rows:
        return "<p>Findings, results, versions, options and settings are the same.</p>"
    rows.sort(key=lambda row: (row.effect != "worse", row.effect != "better", list(_ELSE).index(row.kind)))
    said = list(Counter((row.effect, row.kind, _change(row)) for row in rows).items())
    body = "".join(
        f'<tr class="oc-{effect}"><th scope="row">{_ELSE[kind]}</th><td><span aria-hidden="true">{_SIGNS[effect]}</span> '
        f"{safe(repeated(text, number), _WORDS)}</td></tr>"
        for (effect, kind, text), number in said[:_TIMES]
    )
    left = len(said) - _TIMES
    more = f" {counted(left, 'more row')} in <code>.changes</code>." if left > 0 else ""
    return (
        f"<table class='oc-else'><caption><strong>Everything else that differs</strong>{more}</caption>"
        '<thead><tr><th scope="col">what</th><th scope="col">before → after</th></tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
