"""What the figures of a report show, as plain data; `drawing` draws it.

Every figure says how it was measured and over how many calls. One of which nothing was recorded is absent: an empty picture
would look like a finding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_ROWS = 12
"""Bars of a figure; the rest becomes one bar of its own, so that the whole stays the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row of a figure with bars.

    Attributes:
        label: What it is about.
        parts: Lengths by kind of part, a kind being a key of `Bars.words`, all of one unit.
        text: What is written behind it.
    """

    label: str
    parts: tuple[tuple[str, float], ...]
    text: str

    @property
    def total(self) -> float:
        """Its whole length."""
        return sum(length for _, length in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars beside each other, each of one or several parts.

    Attributes:
        bars: From top to bottom.
        words: What the kinds of parts mean, in the order of the legend; one kind needs no legend.
    """

    bars: tuple[Bar, ...]
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """How long the calls of something take, in ns.

    Attributes:
        label: What is called.
        median: Half of the calls are faster.
        p90: Nine of ten are faster.
        p99: Ninety-nine of a hundred are faster.
        slowest: The slowest call.
    """

    label: str
    median: int
    p90: int
    p99: int
    slowest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Times of calls on a common scale of time, which is logarithmic.

    Attributes:
        ranges: From top to bottom.
    """

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Times of calls in their order, in ns.

    Attributes:
        calls: Number of the call, or of the middle one of some.
        median: Time of that call, or the median of some.
        fastest: The fastest of them.
        slowest: The slowest of them.
    """

    calls: tuple[float, ...]
    median: tuple[float, ...]
    fastest: tuple[float, ...]
    slowest: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far values are from PyTorch's, in the order of the graph.

    Attributes:
        places: Number of the value.
        errors: How large the difference is; infinite where a value is not finite on one side alone.
        verdicts: True for right, False for wrong, None where there is no verdict.
        in_tolerances: Whether the errors are multiples of the tolerance; they are relative differences otherwise.
    """

    places: tuple[int, ...]
    errors: tuple[float, ...]
    verdicts: tuple[bool | None, ...]
    in_tolerances: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What the machine reached, of an element type on a number of threads.

    Attributes:
        label: Which.
        flops: Floating-point operations per second.
        bytes: Bytes per second.
    """

    label: str
    flops: float
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Kernels by operations per byte and per second, under the peaks of the machine.

    Attributes:
        intensity: Floating-point operations per byte of each.
        flops: Floating-point operations per second that each reached.
        shares: Time of each, as a share of the longest.
        peaks: What bounds them.
    """

    intensity: tuple[float, ...]
    flops: tuple[float, ...]
    shares: tuple[float, ...]
    peaks: tuple[Peaks, ...]


Drawing: TypeAlias = Bars | Ranges | Course | Errors | Roofline


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a report.

    Attributes:
        name: Short name, unique within a report.
        title: The question that it answers.
        caption: How it was measured and over how many calls, in one line.
        method: The same in full: what was done, by which clock, and what the figure does not show.
        drawing: What it shows.
    """

    name: str
    title: str
    caption: str
    method: str
    drawing: Drawing


def bounded(bars: Iterable[Bar], rest: str, text_of_rest: object = None) -> tuple[Bar, ...]:
    """Keep the longest bars, which come first, and add the others up as one: at most `MAX_ROWS` bars.

    The others are called `rest`, where `{}` stands for their number; `text_of_rest` turns their length into the text behind them.
    """
    rows = tuple(bars)
    if len(rows) <= MAX_ROWS:
        return rows
    shown, others = rows[: MAX_ROWS - 1], rows[MAX_ROWS - 1 :]
    lengths: dict[str, float] = {}
    for bar in others:
        for kind, length in bar.parts:
            lengths[kind] = lengths.get(kind, 0.0) + length
    text = text_of_rest(sum(lengths.values())) if callable(text_of_rest) else ""
    return (*shown, Bar(label=rest.format(f"{len(others):,}"), parts=tuple(lengths.items()), text=text))
