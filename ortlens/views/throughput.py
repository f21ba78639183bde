"""Throughput over latency, as a picture."""

from __future__ import annotations

from html import escape
from math import log
from typing import Any

from ortlens.analysis.index import grouped
from ortlens.units import time_from_ns

_WIDE, _HIGH, _LEFT, _TOP = 500, 320, 20, 40  # of the field in the axes, and where it begins


def throughput_svg(rows: tuple[Any, ...]) -> str:
    """Draw items (of inputs with several batches: calls) per second over the median latency, as an `svg` element without scripts.

    Points are numbers of callers, filled for processes; a line joins those of a way with a batch. `rows` are `load` of `ortlens bench`.
    """
    shown = [(row, row.items_per_s or row.calls_per_s, row.call_ns) for row in rows if row.call_ns]
    rates, times = ([each[place] for each in shown] or [1] for place in (1, 2))
    parts = [f'<path d="M{_LEFT},{_TOP}v{_HIGH}h{_WIDE}" stroke="currentColor"/>']
    series = grouped((f"{each[0].way}, batch {each[0].batch}", each) for each in shown)
    for number, (name, own) in enumerate(series.items()):
        colour, line = f"hsl({360 * number // len(series)},70%,42%)", []
        for row, rate, ns in own:
            x, y = _LEFT + _share(ns, times) * _WIDE, _TOP + _HIGH - _share(rate, rates) * _HIGH
            inside = colour if "process" in row.callers else "none"
            about = escape(f"{name}, {row.callers}: {rate:,.0f} per second, {time_from_ns(ns)}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" stroke="{colour}" fill="{inside}"><title>{about}</title></circle>')
            line.append(f"{x:.1f},{y:.1f}")
        key = f'<text x="{_LEFT + _WIDE + 20}" y="{_TOP + 18 * number}" style="fill:{colour}">{escape(name)}</text>'
        parts.append(f'<polyline points="{" ".join(line)}" stroke="{colour}"/>{key}')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE + 220} {max(_HIGH, 18 * len(parts)) + 90}" role="img" '
        'aria-label="Throughput over latency" font-family="system-ui,sans-serif" font-size="12" fill="none">'
        f"<style>text{{fill:currentColor}}</style>{''.join(parts)}"
        f'<text x="{_LEFT}" y="20">Items per second, {min(rates):,.0f} to {max(rates):,.0f}; filled points are processes</text>'
        f'<text x="{_LEFT}" y="{_TOP + _HIGH + 25}">Median time of a call, {time_from_ns(min(times))} to {time_from_ns(max(times))}; '
        "both axes are logarithmic</text></svg>\n"
    )


def _share(value: float, values: list[Any]) -> float:
    """Return where a value lies between the least and the largest, on a logarithmic scale."""
    return log(value / min(values)) / (log(max(values) / min(values)) or 1)
