"""Throughput over latency, as a picture."""

from __future__ import annotations

from html import escape
from typing import Any

from ortlens.analysis.index import grouped
from ortlens.units import time_from_ns

_WIDE, _HIGH, _LEFT, _TOP = 500, 320, 20, 40  # of the field in the axes, and where it begins
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a6c00", "#56b4e9", "#444444", "#8f3f71")


def throughput_svg(rows: tuple[Any, ...]) -> str:
    """Draw items (of inputs with several batches: calls) per second over the median latency, as an `svg` element without scripts.

    Points are numbers of callers, filled for processes; a line joins those of a way with a batch. `rows` are `load` of `ortlens bench`.
    """
    shown = [(row, row.items_per_s or row.calls_per_s, row.call_ns) for row in rows if row.call_ns]
    most, longest = (max((each[place] for each in shown), default=1) for place in (1, 2))
    parts = [f'<path d="M{_LEFT},{_TOP}v{_HIGH}h{_WIDE}" stroke="currentColor"/>']
    for number, (name, own) in enumerate(grouped((f"{each[0].way}, batch {each[0].batch}", each) for each in shown).items()):
        colour, line = _COLOURS[number % len(_COLOURS)], []
        for row, rate, ns in own:
            x, y, inside = _LEFT + ns / longest * _WIDE, _TOP + _HIGH - rate / most * _HIGH, colour if "process" in row.callers else "none"
            about = escape(f"{name}, {row.callers}: {rate:,.0f} per second, {time_from_ns(ns)}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" stroke="{colour}" fill="{inside}"><title>{about}</title></circle>')
            line.append(f"{x:.1f},{y:.1f}")
        parts.append(f'<polyline points="{" ".join(line)}" stroke="{colour}"/><text x="{x + 8:.1f}" y="{y + 4:.1f}">{escape(name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE + 200} {_HIGH + 90}" role="img" aria-label="Throughput over latency" '
        f'font-family="system-ui,sans-serif" font-size="12" fill="none"><style>text{{fill:currentColor}}</style>{"".join(parts)}'
        f'<text x="{_LEFT}" y="20">Items per second, 0 to {most:,.0f}; filled points are processes</text>'
        f'<text x="{_LEFT}" y="{_TOP + _HIGH + 25}">Median time of a call, 0 to {time_from_ns(round(longest))}</text></svg>\n'
    )
