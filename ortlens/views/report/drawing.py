"""Figures that bars cannot show: calls in their order, kernels under the machine's peaks, differences value by value.

They are drawn with matplotlib, as SVG that follows the page. No pyplot: it keeps figures and settings for the whole process, and a library
must not touch those of its user. Text stays text and is never read as mathematics, so that a name with dollar signs is a name.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from functools import partial
from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any

from ortlens._optional import require
from ortlens.analysis.index import grouped
from ortlens.analysis.numbers import tolerances_of
from ortlens.analysis.roofline import roofs
from ortlens.units import counted, time_from_ns
from ortlens.views.report.figures import CLOCK, PROFILED, Figure, current_kernels
from ortlens.views.wording import clipped, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from ortlens.analysis.roofline import Roof
    from ortlens.trace.records import Capture, Numeric, Run

_INK, _SOFT, _LINE, _BLUE, _BAND, _GREEN, _GREY, _RED = (f"#01020{number}" for number in range(8))  # no drawing has these by chance
_VARIABLES = {
    _INK: "currentColor",
    _SOFT: "var(--page-soft)",
    _LINE: "var(--page-line)",
    _BLUE: "var(--of-run)",
    _BAND: "#56b4e9",
    _GREEN: "var(--of-output)",
    _GREY: "var(--of-residual)",
    _RED: "var(--of-eager)",
}
"""What stands on the page for the colours of a drawing."""

_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": _INK,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _SOFT,
    "xtick.color": _LINE,
    "ytick.color": _LINE,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "grid.color": _LINE,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.unicode_minus": False,
}
_SIZE = (6.6, 2.3)  # inches of 72 units; the page scales it
_TAG = re.compile(r"<[^<>]*>")  # matplotlib escapes angles in names, so that this is a tag and never text
_DROPPED = re.compile(r"^.*?(?=<svg)|<!--.*?-->|<metadata>.*?</metadata>|<style .*?</style>", re.DOTALL)  # `*{...}` would style the page
_NEEDLESS = re.compile(r'(?<=<g) id="[^"]*"| (?:width|height)="[^"]*pt"|(?<=\.\d\d)\d+')
_COLOUR = re.compile(r"#01020[0-7]")

_POINTS, _MIN_CALLS = 240, 5  # about one point for every two pixels; fewer calls have no course
_FEW_TIMES = 3  # how far times may be apart to stand on a plain scale
_MAX_VALUES = 600
_VERDICTS = ((True, _GREEN, "o", "within tolerance"), (None, _GREY, "s", "no verdict"), (False, _RED, "X", "out of tolerance"))


def drawings_of(capture: Capture) -> tuple[Figure, ...]:
    """Draw every figure for which something was recorded; equal captures give equal text."""
    return tuple(figure for figure in (_roofline(capture), _course(capture), _numerics(capture)) if figure is not None)


def _figure(title: str, caption: str, method: str, draw: Callable[[Axes], None]) -> Figure:
    """Have a figure drawn as one `svg` element; those who cannot see it are told title and caption."""
    matplotlib = require("matplotlib", feature="Figures in a report")
    from matplotlib.figure import Figure as Sheet

    stream = io.StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # not the user's own style
        matplotlib.rcParams.update(_SETTINGS | {"svg.hashsalt": title})  # ids are the same every time, and no other figure has them
        warnings.filterwarnings("ignore", message=r".*[Gg]lyph.*")  # the browser has a font for it
        sheet = Sheet(figsize=_SIZE, layout="constrained")
        axes = sheet.add_subplot()
        draw(axes)
        sheet.patch.set_visible(False)
        axes.patch.set_visible(False)
        sheet.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    drawn = _TAG.sub(_on_page, _DROPPED.sub("", stream.getvalue()))
    about = f'<svg class="or-figure" role="img" aria-label="{escape(f"{title} {caption}", quote=True)}"'
    return Figure(title=title, caption=caption, method=method, svg=re.sub(r"\s*\n\s*", "\n", drawn.strip().replace("<svg", about, 1)))


def _on_page(tag: re.Match[str]) -> str:
    return _COLOUR.sub(lambda found: _VARIABLES[found[0]], _NEEDLESS.sub("", tag[0]))


def _course(capture: Capture) -> Figure | None:
    """Show how long the calls of the costliest session take, one after the other; None for too few calls.

    Of many calls, the middle, fastest and slowest of each few are shown.
    """
    by_caller = grouped(((run.session_id, run.graph_id), run) for run in capture.runs)
    total_ns = {session.session_id: session.total_ns for session in capture.sessions}  # of all calls, not only of those that are kept
    (session_id, graph_id), runs = max(
        by_caller.items(),
        key=lambda item: total_ns.get(item[0][0] or "", 0) or sum(run.total_ns for run in item[1]),
        default=((None, None), []),
    )
    if len(runs) < _MIN_CALLS:
        return None
    who = f"session {visible(session_id)}" if session_id else f"graph {visible(graph_id or '')}"
    runs = sorted(runs, key=lambda run: run.call)
    size = -(-len(runs) // _POINTS)
    each = f"; each point is the median of {size:,} calls in a row, the band reaches from the fastest to the slowest" if size > 1 else ""
    return _figure(
        "Do calls get faster or slower?",
        f"The {len(runs):,} latest calls of {clipped(who, 40)}, which takes the most time{each}.",
        "The latest calls of every session are kept one by one, 2,048 per thread, with their start, binding, run and output. "
        f"The figure shows those of the one with the most time in total, in call order. {CLOCK}",
        partial(_draw_course, [runs[first : first + size] for first in range(0, len(runs), size)]),
    )


def _draw_course(groups: Sequence[Sequence[Run]], axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    calls = [median(run.call for run in group) for group in groups]
    times = [[float(run.total_ns) for run in group] for group in groups]
    fastest, middle, slowest = ([part(group) for group in times] for part in (min, median, max))
    if fastest != slowest:
        axes.fill_between(calls, fastest, slowest, color=_BAND, alpha=0.45, linewidth=0)
        axes.plot(calls, middle, color=_BLUE, linewidth=1.2)
    else:
        axes.plot(calls, middle, color=_LINE, linewidth=0.6)
        axes.plot(calls, middle, linestyle="none", marker="o", markersize=3, color=_BLUE)
    axes.set_xlabel("call number")
    low, high = axes.yaxis.get_data_interval()
    is_plain = high < _FEW_TIMES * low
    axes.set_ylabel("call time" if is_plain else "call time, log scale")
    if is_plain:
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if high < 30 * low else (1,)))  # few powers of ten lie in between
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ns, _: time_from_ns(round(ns)).replace(".00", "").replace(".0 ", " ")))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, axis="y")


def _roofline(capture: Capture) -> Figure | None:
    """Show how fast kernels with counted operations are for this machine; None where none was compared with measured peaks."""
    current = {kernel.session_id for kernel in current_kernels(capture)}
    placed = [row for row in roofs(capture) if row.session_id in current and row.intensity and row.flops_per_s]
    if not any(row.peak_flops_per_s and row.peak_bytes_per_s for row in placed):
        return None
    return _figure(
        "Are the kernels as fast as this machine can be?",
        f"{counted(len(placed), 'kernel')} with counted operations: the larger, the longer it takes. Line: the machine's peaks.",
        "Operations are those that PyTorch's counter counts for the FX nodes of a kernel, bytes those that it reads and writes by "
        "ONNX Runtime's profile, with the weights that it packed. The peaks were measured with ONNX Runtime on as many threads: a "
        "matrix product of 512 rows, and reading and writing 64 MiB. A kernel whose data stay in caches may lie above the slope. "
        f"Kernels without counted operations are absent; the table roofline of the explorer has them. {PROFILED}",
        partial(_draw_roofline, placed),
    )


def _draw_roofline(placed: Sequence[Roof], axes: Axes) -> None:
    intensity = [row.intensity or 0.0 for row in placed]
    reached = [(row.flops_per_s or 0.0) / 1e9 for row in placed]
    longest = max(row.mean_ns for row in placed)
    peaks = {
        f"{row.dtype}, {counted(row.threads, 'thread') if row.threads else 'GPU'}": (row.peak_flops_per_s / 1e9, row.peak_bytes_per_s / 1e9)
        for row in placed
        if row.peak_flops_per_s and row.peak_bytes_per_s
    }
    ridges = [flops / size for flops, size in peaks.values()]
    left, right = min(*intensity, *ridges) / 2, max(*intensity, *ridges) * 2
    for (label, (flops, size)), ridge in zip(peaks.items(), ridges, strict=True):
        axes.plot([left, ridge, right], [left * size, flops, flops], color=_INK, linewidth=1.4)
        words = f"{flops:.3g} GFLOP/s, {size:.3g} GB/s: {label}"
        axes.annotate(words, (right, flops), xytext=(0, 3), textcoords="offset points", ha="right", color=_SOFT, fontsize=7.5)
    sizes = [16 + 150 * row.mean_ns / longest for row in placed]
    axes.scatter(intensity, reached, sizes, color=_BLUE, edgecolors=_INK, linewidths=0.6, zorder=2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(min(reached) / 2, max(*reached, *(flops for flops, _ in peaks.values())) * 1.8)
    axes.set_xlabel("FLOP per byte, log scale")
    axes.set_ylabel("GFLOP/s, log scale")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.grid(visible=True)


def _numerics(capture: Capture) -> Figure | None:
    """Show how far ONNX Runtime's numbers are from PyTorch's; None where nothing was compared.

    Of many values, all wrong ones are shown, and the worst of each few others.
    """
    rows = [(number, row) for number, row in enumerate(capture.numerics) if row.ok is not None or row.max_rel is not None]
    if not rows:
        return None
    in_tolerances = all(row.max_abs is None or (row.atol is not None and row.rtol is not None) for _, row in rows)
    found = [(number, _error(row, in_tolerances=in_tolerances), row.ok) for number, row in rows]
    wrong, others = [item for item in found if item[2] is False][:_MAX_VALUES], [item for item in found if item[2] is not False]
    size = max(1, -(-len(others) // _MAX_VALUES))
    kept = [*wrong, *(max(others[first : first + size], key=lambda item: item[1]) for first in range(0, len(others), size))]
    some = f"; the worst {len(kept):,} are drawn" if len(kept) < len(rows) else ""
    checked = sum(row.ok is not None for _, row in rows)
    return _figure(
        "Are the results correct?",
        f"{counted(len(rows), 'value')} of one call compared with PyTorch, {checked:,} with a verdict{some}.",
        "Verifying calls the function once and runs every partition on the same inputs in ONNX Runtime and in PyTorch. The "
        "largest difference of each value is shown as a multiple of the tolerance: the smaller of the absolute difference over "
        "`atol` and the relative one over `rtol`, relative to the larger of the element and the root mean square of PyTorch's value. "
        "A float64 run is the arbiter: a difference beyond the tolerance is accepted where ONNX Runtime is no farther from "
        "it than PyTorch is, within a factor. Equal values are at the bottom; values that are NaN or infinite on one side "
        "only are at the top.",
        partial(_draw_numerics, kept, in_tolerances=in_tolerances),
    )


def _error(row: Numeric, *, in_tolerances: bool) -> float:
    """Return at most how many tolerances a value is away; each element may differ by `atol` and by `rtol` times its size."""
    if row.max_rel is None or row.max_abs is None:
        return 0.0 if row.ok else math.inf
    if math.isnan(row.max_rel) or math.isnan(row.max_abs):
        return math.inf
    return tolerances_of(row.max_abs, row.max_rel, row) if in_tolerances else abs(row.max_rel)


def _draw_numerics(values: Sequence[tuple[int, float, bool | None]], axes: Axes, *, in_tolerances: bool) -> None:
    errors = [error for _, error, _ in values]
    around = [error for error in errors if 0 < error < math.inf] + [1.0] * in_tolerances or [1.0]
    low, high = min(around) / 10, max(around) * 10
    for verdict, colour, marker, words in _VERDICTS:
        shown = [(place, min(max(error, low), high)) for place, error, found in values if found is verdict]
        if shown:
            axes.plot(
                *zip(*shown, strict=True),
                linestyle="none",
                marker=marker,
                markersize=6 if verdict is False else 4,
                color=colour,
                markeredgecolor=_INK,
                markeredgewidth=0.4,
                label=f"{words} ({len(shown):,})",
            )
    if in_tolerances:
        axes.axhline(1.0, color=_SOFT, linewidth=0.8, linestyle="--", label="tolerance")
    axes.set_yscale("log")
    axes.set_ylim(low / 3, high * 3)
    powers = [10.0**power for power in range(math.ceil(math.log10(low) + 0.5), math.floor(math.log10(high) - 0.5) + 1)]
    ticks = {low: "equal"} if 0 in errors else {}
    ticks |= {high: "NaN or Inf"} if math.inf in errors else {}
    ticks |= {power: f"{power:g}" for power in powers[:: max(1, len(powers) // 5)]}
    axes.set_yticks([*ticks], [*ticks.values()])
    axes.set_yticks([], minor=True)
    axes.set_xlabel("value, in graph order")
    axes.set_ylabel("difference / tolerance" if in_tolerances else "relative difference")
    axes.grid(visible=True, axis="y")
    axes.figure.legend(loc="outside lower left", ncols=4, handlelength=1.6, columnspacing=1.2)
