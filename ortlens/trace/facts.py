"""Figures as named texts, as views list them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.trace.schema import FIGURES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.trace.records import Capture, Figures, SideResult

_WORDS = {True: "yes", False: "no"}
_UNMEASURED = "unmeasured: "


def facts_of(capture: Capture) -> dict[str, str]:
    """Name everything that is known about a capture as a whole: its environment, and its figures as text."""
    return {**capture.environment, **dict(_texts(capture.figures))}


def _texts(figures: Figures) -> Iterator[tuple[str, str]]:
    for column in FIGURES.columns:
        value = getattr(figures, column.name)
        is_default = value is None or value == () or (value is False and not column.nullable)
        if column.rows is None and not is_default:
            yield column.name, _text(value)
    for peak in figures.peaks:
        what = "bytes" if peak.dtype is None else f"flops_{peak.dtype}"
        where = f"threads_{peak.threads}" if peak.threads else peak.provider.removesuffix("ExecutionProvider").lower()
        yield f"peak_{what}_{where}", _text(peak.per_s)
    for way in figures.ways:
        yield f"bench_{way.way}", _way_text(way)


def _text(value: Any) -> str:  # noqa: ANN401 - any figure
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return _WORDS[value] if isinstance(value, bool) else f"{value:.4g}" if isinstance(value, float) else str(value)


def _way_text(way: SideResult) -> str:
    if way.call_ns is None:
        return f"{_UNMEASURED}{way.note}"[:300]
    low, ratio, high = (1.0 if value is None else value for value in (way.ratio_low, way.ratio, way.ratio_high))
    return f"call_ns={way.call_ns} ratio={ratio:.3f} low={low:.3f} high={high:.3f} {way.verdict}"
