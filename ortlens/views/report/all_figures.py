"""The figures of a capture, in the order in which people ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.views.report.state import memory_figure, numerics_figure
from ortlens.views.report.times import compile_figure, course_figure, ledger_figure, sessions_figure
from ortlens.views.report.work import fallbacks_figure, lines_figure, operators_figure, roofline_figure

if TYPE_CHECKING:
    from ortlens.analysis.overview import Overview
    from ortlens.trace.records import Capture
    from ortlens.views.report.figures import Figure


def figures_of(capture: Capture, overview: Overview) -> tuple[Figure, ...]:
    """Make every figure for which something was recorded."""
    found = (
        ledger_figure(capture, overview),
        lines_figure(capture),
        operators_figure(capture),
        roofline_figure(capture),
        fallbacks_figure(capture, overview),
        sessions_figure(capture, overview),
        course_figure(capture),
        compile_figure(capture, overview),
        memory_figure(capture),
        numerics_figure(capture),
    )
    return tuple(figure for figure in found if figure is not None)
