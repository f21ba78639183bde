"""Figures drawn with matplotlib, as SVG that follows the page.

No pyplot: it keeps figures and settings for the whole process, and a library must not touch those of its user. Text stays text
and is never read as mathematics, so that a name with dollar signs is a name.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from ortlens._optional import require
from ortlens.units import percent, time_from_ns
from ortlens.views.report.figures import Bars, Course, Errors, Ranges, Roofline
from ortlens.views.wording import clipped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Sheet

    from ortlens.views.report.figures import Bar, Drawing, Figure

INK, SOFT, LINE, ON_RUN, ON_FILL = "#010203", "#010204", "#010205", "#010206", "#010207"
"""Stand for the page's text, its softer text, its rules, and text on fills; no drawing uses these by chance."""
COLOURS = {
    "run": "#0072b2",
    "eager": "#d55e00",
    "bind": "#e69f00",
    "output": "#009e73",
    "guards": "#cc79a7",
    "residual": "#8a8a8a",
    "other": "#56b4e9",
    "time": "#0072b3",
    "memory": "#0072b4",
}
"""Fills by kind of part: the hues of the explorer."""
_VARIABLES = {INK: "currentColor", SOFT: "var(--of-soft)", LINE: "var(--of-line)", ON_RUN: "var(--of-on-run)", ON_FILL: "#000"} | {
    colour: f"var(--of-{'run' if kind in ('time', 'memory') else kind})" for kind, colour in COLOURS.items()
}
_TAG = re.compile(r"<[^<>]*>")  # matplotlib escapes angles in names, so that this is a tag and never text
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r"""(?:url\(#|href="#)([^)"]+)""")
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_DROPPED = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style .*?</style>", re.DOTALL
)  # `*{...}` would style the page
_DIGITS = re.compile(r"(\.\d\d)\d+")
_SIZE = re.compile(r' (?:width|height)="[^"]*pt"')

_WIDTH = 6.6  # inches of 72 units; the page scales it
_ROW = 0.27
_HEIGHT = 2.3  # of a drawing without rows
_LETTER = 0.073  # inches of a letter, on average
_LABEL = 42  # letters of a label
_VERDICTS = ((True, "output", "o", "within tolerance"), (None, "residual", "s", "no verdict"), (False, "eager", "X", "out of tolerance"))
_SHORT = {"run": "ORT", "eager": "PyTorch"}
_FEW_TIMES = 3
"""How far times may be apart to stand on a plain scale."""

_LABELLED = 0.085
"""Share of the width from which on a part has its name written on it: colours alone are not enough."""

_SETTINGS: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ortlens",  # ids of clips and patterns are the same every time
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.unicode_minus": False,
    "path.simplify": True,
}


def svg_from_figure(figure: Figure) -> str:
    """Draw a figure as one `svg` element; equal figures give equal text."""
    matplotlib = require("matplotlib", feature="Figures in a report")
    stream = io.StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # not the user's own style
        matplotlib.rcParams.update(_SETTINGS)
        warnings.filterwarnings("ignore", message=r".*[Gg]lyph.*")  # the browser has a font for it
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        _drawn(figure.drawing).savefig(stream, format="svg", metadata=metadata)
    return themed(stream.getvalue(), figure.name, f"{figure.title} {figure.caption}")


def _drawn(drawing: Drawing) -> Sheet:
    from matplotlib.figure import Figure as Sheet

    rows, legend = _size(drawing)
    height = 0.25 + _ROW * rows + legend if rows else _HEIGHT
    sheet = Sheet(figsize=(_WIDTH, height + (0.45 if isinstance(drawing, Ranges) else 0.0)), layout="constrained")
    sheet.patch.set_visible(False)
    axes = sheet.add_subplot()
    axes.patch.set_visible(False)
    if isinstance(drawing, Bars):
        _bars(axes, drawing)
    elif isinstance(drawing, Ranges):
        _ranges(axes, drawing)
    elif isinstance(drawing, Course):
        _course(axes, drawing)
    elif isinstance(drawing, Roofline):
        _roofline(axes, drawing)
    else:
        _errors(axes, drawing)
    return sheet


def _size(drawing: Drawing) -> tuple[int, float]:
    """Return the rows of a drawing, none where its height is always the same, and the inches of its legend."""
    if isinstance(drawing, Bars):
        return len(drawing.bars), 0.17 * (len(drawing.words) // 2 + 1) if len(drawing.words) > 1 else 0.0
    return (len(drawing.ranges), 0.0) if isinstance(drawing, Ranges) else (0, 0.0)


def _bars(axes: Axes, drawing: Bars) -> None:
    kinds = list(drawing.words) or list(dict.fromkeys(kind for bar in drawing.bars for kind, _ in bar.parts))
    for place, bar in enumerate(drawing.bars):
        _bar(axes, place, bar, kinds)
    longest = max(bar.total for bar in drawing.bars)
    if len(kinds) > 1:
        _name_parts(axes, drawing, longest)
    _rows(axes, [bar.label for bar in drawing.bars])
    axes.set_xlim(0, max(_needed(bar, drawing) for bar in drawing.bars) or 1)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    if len(drawing.words) > 1:
        _legend(axes, drawing)


def _needed(bar: Bar, drawing: Bars) -> float:
    """Compute how long the scale must be for the text behind a bar to fit; matplotlib's layout would cut it off."""
    width = _WIDTH - _LETTER * min(_LABEL, max(len(other.label) for other in drawing.bars)) - 0.3
    return bar.total / (1 - min(0.75, (_LETTER * len(bar.text) + 0.1) / width))


def _bar(axes: Axes, place: int, bar: Bar, kinds: list[str]) -> None:
    left = 0.0
    lengths = dict(bar.parts)
    for kind in kinds:
        length = lengths.get(kind, 0.0)
        if length > 0:
            axes.barh(place, length, left=left, height=0.66, **_look(kind))
            left += length
    axes.annotate(bar.text, (left, place), xytext=(4, 0), textcoords="offset points", va="center", color=INK)


def _name_parts(axes: Axes, drawing: Bars, longest: float) -> None:
    for place, bar in enumerate(drawing.bars):
        left, lengths = 0.0, dict(bar.parts)
        for kind in drawing.words:
            length = lengths.get(kind, 0.0)
            if length > _LABELLED * longest:
                ink = ON_RUN if kind == "run" else ON_FILL
                axes.text(left + length / 2, place, _SHORT.get(kind, kind), ha="center", va="center", color=ink, fontsize=7.5)
            left += length


def _look(kind: str) -> dict[str, Any]:
    return {"facecolor": COLOURS.get(kind, COLOURS["run"]), "edgecolor": SOFT, "linewidth": 0.4}


def _rows(axes: Axes, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), [clipped(label, _LABEL) for label in labels])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def _legend(axes: Axes, drawing: Bars) -> None:
    from matplotlib.patches import Patch

    first = drawing.bars[0]
    lengths, whole = dict(first.parts), first.total or 1
    shares = len(first.parts) > 2  # noqa: PLR2004 - a bar of two parts shows its shares by itself
    names = [f"{word} {percent(lengths.get(kind, 0) / whole)}" if shares else word for kind, word in drawing.words.items()]
    patches = [Patch(**_look(kind)) for kind in drawing.words]
    axes.figure.legend(patches, names, loc="outside lower left", ncols=2, handlelength=1.2, handleheight=0.9, columnspacing=1.2)


def _ranges(axes: Axes, drawing: Ranges) -> None:
    for place, item in enumerate(drawing.ranges):
        axes.plot([item.median, item.slowest], [place, place], color=LINE, linewidth=1.2, solid_capstyle="butt")
        axes.plot([item.median, item.p99], [place, place], color=COLOURS["run"], linewidth=2.2, solid_capstyle="butt")
        axes.plot([item.median, item.p90], [place, place], color=COLOURS["run"], linewidth=5.5, solid_capstyle="butt")
        axes.plot([item.slowest], [place], marker="|", markersize=8, color=SOFT)
        axes.plot([item.median], [place], marker="o", markersize=6, color=COLOURS["run"], markeredgecolor=INK, markeredgewidth=0.6)
    _rows(axes, [item.label for item in drawing.ranges])
    axes.set_xlabel("call time")
    _time_axis(axes, "x")


def _course(axes: Axes, drawing: Course) -> None:
    grouped = drawing.fastest != drawing.slowest
    if grouped:
        axes.fill_between(drawing.calls, drawing.fastest, drawing.slowest, color=COLOURS["other"], alpha=0.45, linewidth=0)
        axes.plot(drawing.calls, drawing.median, color=COLOURS["run"], linewidth=1.2)
    else:
        axes.plot(drawing.calls, drawing.median, color=LINE, linewidth=0.6)
        axes.plot(drawing.calls, drawing.median, linestyle="none", marker="o", markersize=3, color=COLOURS["run"])
    axes.set_xlabel("call number")
    axes.set_ylabel("call time")
    _time_axis(axes, "y")


def _time_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_data_interval()
    if high < _FEW_TIMES * low:
        axis.set_major_locator(MaxNLocator(5, integer=True))
    else:
        getattr(axes, f"set_{which}scale")("log")
        axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if high < 30 * low else (1,)))  # few powers of ten lie within 30 times
        axis.set_label_text(", ".join(filter(None, (axis.get_label_text(), "log scale"))))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, axis=which)
    axes.set_axisbelow(b=True)


def _tick(value: float) -> str:
    return time_from_ns(round(value)).replace(".00", "").replace(".0 ", " ")


def _roofline(axes: Axes, drawing: Roofline) -> None:
    ridges = [peak.flops / peak.bytes for peak in drawing.peaks]
    left, right = min(*drawing.intensity, *ridges) / 2, max(*drawing.intensity, *ridges) * 2
    for peak, ridge in zip(drawing.peaks, ridges, strict=True):
        axes.plot([left, ridge, right], [left * peak.bytes / 1e9, peak.flops / 1e9, peak.flops / 1e9], color=INK, linewidth=1.4)
        words = f"{peak.flops / 1e9:.3g} GFLOP/s, {peak.bytes / 1e9:.3g} GB/s: {peak.label}"
        axes.annotate(words, (right, peak.flops / 1e9), xytext=(0, 3), textcoords="offset points", ha="right", color=SOFT, fontsize=7.5)
    reached = [flops / 1e9 for flops in drawing.flops]
    sizes = [16 + 150 * share for share in drawing.shares]
    axes.scatter(drawing.intensity, reached, sizes, color=COLOURS["run"], edgecolors=INK, linewidths=0.6, zorder=2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(min(reached) / 2, max(*reached, *(peak.flops / 1e9 for peak in drawing.peaks)) * 1.8)
    axes.set_xlabel("FLOP per byte, log scale")
    axes.set_ylabel("GFLOP/s, log scale")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.grid(visible=True)
    axes.set_axisbelow(b=True)


def _errors(axes: Axes, drawing: Errors) -> None:
    finite = [error for error in drawing.errors if 0 < error < math.inf]
    around = [*finite, 1.0] if drawing.in_tolerances else finite or [1.0]
    low, high = min(around) / 10, max(around) * 10
    shown = [low if error == 0 else high if error == math.inf else error for error in drawing.errors]
    for verdict, kind, marker, words in _VERDICTS:
        at = [place for place, found in enumerate(drawing.verdicts) if found is verdict]
        if at:
            axes.plot(
                [drawing.places[place] for place in at],
                [shown[place] for place in at],
                linestyle="none",
                marker=marker,
                markersize=6 if verdict is False else 4,
                color=COLOURS[kind],
                markeredgecolor=INK,
                markeredgewidth=0.4,
                label=f"{words} ({len(at):,})",
            )
    _error_axis(axes, drawing, low, high)
    axes.figure.legend(loc="outside lower left", ncols=4, handlelength=1.6, columnspacing=1.2)


def _error_axis(axes: Axes, drawing: Errors, low: float, high: float) -> None:
    if drawing.in_tolerances:
        axes.axhline(1.0, color=SOFT, linewidth=0.8, linestyle="--", label="tolerance")
    axes.set_yscale("log")
    axes.set_ylim(low / 3, high * 3)
    ticks = [10.0**power for power in range(math.ceil(math.log10(low) + 0.5), math.floor(math.log10(high) - 0.5) + 1)]
    thinned = ticks[:: max(1, len(ticks) // 5)]
    ends = {low: "equal"} if 0 in drawing.errors else {}
    ends |= {high: "NaN or Inf"} if math.inf in drawing.errors else {}
    axes.set_yticks([*ends, *thinned], [*ends.values(), *(f"{tick:g}" for tick in thinned)])
    axes.set_yticks([], minor=True)
    axes.set_xlabel("value, in graph order")
    axes.set_ylabel("difference / tolerance" if drawing.in_tolerances else "relative difference")
    axes.grid(visible=True, axis="y")


def themed(svg: str, name: str, label: str) -> str:
    """Turn what matplotlib wrote into an `svg` element of a page; ids begin with `name`, which is unique there.

    The drawing has the stand-ins of this module as colours; `label` is for those who cannot see it.
    """
    bare = _DROPPED.sub("", svg)
    wanted = set(_REFERENCE.findall("".join(_TAG.findall(bare))))
    drawn = _TAG.sub(lambda tag: _on_page(tag[0], name, wanted), bare).strip()
    opening, rest = drawn.split(">", 1)
    opening = _SIZE.sub("", opening).replace("<svg", f'<svg class="or-figure" role="img" aria-label="{escape(label, quote=True)}"', 1)
    return re.sub(r"\s*\n\s*", "\n", f"{opening}>{rest}")


def _on_page(tag: str, name: str, wanted: set[str]) -> str:
    plain = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in wanted else "", tag)
    linked = _REFERENCE.sub(lambda found: found[0][: -len(found[1])] + f"{name}-{found[1]}", plain)
    short = _DIGITS.sub(r"\1", linked)
    return _COLOUR.sub(lambda found: _VARIABLES.get(found[0], found[0]), short)
