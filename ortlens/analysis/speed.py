"""What counts as faster, slower and the same, wherever two times are compared; and the result of timing two ways in turns."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, inf
from statistics import median, quantiles
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.index import once

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortlens.trace.records import Capture

SpeedVerdict: TypeAlias = Literal["faster", "slower", "same", "unmeasured"]
PaceVerdict: TypeAlias = Literal["faster", "slower", "same", "unclear", "unmeasured"]
"""`unclear` where two passes disagree."""

# The least ratio of two times that is a difference.

WORTH_IN_TURNS = 1.03  # of two ways timed in turns: nobody should act on a smaller difference, however sure it is
WORTH_APART = 1.10
"""Of other times, such as those of two captures: on an idle machine the medians of two runs of one program differ by less."""

WORTH_ALONE = 1.35  # of two captures where nothing shows how busy the machine was
WORTH_A_WARNING = 1.3  # of what takes longer than PyTorch: as a warning, and at all where other work ran beside the calls

MUCH = 0.1
"""Share of a call from which what is no warning is worth a word."""

# The fewest times that can tell a difference from chance.

MIN_ROUNDS = 10  # of an interval of 99 %
MIN_CALLS = 9  # of a capture: the first call, which warms up, and one for each of eight stretches
_CHANCE = 0.005  # on either side: 1 % that the interval of a ratio misses it


_APART = 1.5  # passes that are farther apart do not say by how much
_ABOUT = 1.25  # two passes of which one finds a difference and the other none call it the same, if neither finds a larger one


def verdict_of_ratio(ratio: float, worth: float) -> SpeedVerdict:
    """Judge how many times as long something takes."""
    return "faster" if ratio < 1 / worth else "slower" if ratio > worth else "same"


def verdict_of_passes(ratios: Iterable[float], worth: float) -> PaceVerdict:
    """Judge how many times as long something takes, by several passes: a side is what all of them say."""
    found = tuple(ratios)
    verdicts = {verdict_of_ratio(ratio, worth) for ratio in found}
    if len(verdicts) > 1:
        is_about_one = all(1 / _ABOUT < ratio < _ABOUT for ratio in found) and max(found) <= _APART * min(found)
        return "same" if is_about_one else "unclear"
    return next(iter(verdicts), "unmeasured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One way of calling the model, against eager."""

    verdict: PaceVerdict  # `unmeasured` where not both were
    call_ns: int | None = None  # time of a call
    eager_ns: int | None = None  # time of a call in eager PyTorch, made in turns with it
    ratio: float | None = None  # times as long as eager
    interval: tuple[float, float] | None = None  # ends of the 99 % interval of the ratio, where rounds were made for it
    passes: tuple[float, ...] = ()  # the lowest and the highest of `AbTiming.pass_ratios` and the ratio, where they are known

    @property
    def is_rough(self) -> bool:
        """Whether all passes say which is faster, but not by how much."""
        return self.verdict in {"faster", "slower"} and bool(self.passes) and max(self.passes) > _APART * min(self.passes)


@once
def call_pace(capture: Capture) -> Pace | None:
    """Compare the compiled call with one in eager PyTorch, made in turns; None if not both were measured."""
    from ortlens.analysis.ledger import measured_call  # not at the top: the backend imports this module, and has no capture

    call, eager = measured_call(capture), capture.figures.uncompiled_ns
    if call is None or eager is None or not 0 < eager < _LONGEST_NS:
        return None
    ratio, low, high = call.total_ns / eager, capture.figures.turns_low, capture.figures.turns_high
    passes = () if low is None or high is None or not 0 < low <= high < inf else (min(low, ratio), max(high, ratio))
    return Pace(
        verdict=verdict_of_passes(passes or (ratio,), WORTH_APART), call_ns=call.total_ns, eager_ns=eager, ratio=ratio, passes=passes
    )


_LONGEST_NS = 10**15  # a damaged capture may hold any number


@dataclass(frozen=True, slots=True)
class AbTiming:
    """Two ways that took turns: the ns of a call of either, a value per round, one round at least."""

    base: Sequence[int]
    other: Sequence[int]

    @property
    def rounds(self) -> int:
        """How often both were timed."""
        return len(self.base)

    @property
    def base_ns(self) -> int:
        """Median of the first way."""
        return round(median(self.base))

    @property
    def other_ns(self) -> int:
        """Median of the second way."""
        return round(median(self.other))

    @property
    def least_ns(self) -> tuple[int, int]:
        """The shortest time of either: other work on the machine can only lengthen it."""
        return min(self.base), min(self.other)

    @property
    def gain_ns(self) -> int:
        """Median of the differences, round by round; negative when the second way is slower."""
        return round(self._gains()[1])

    @property
    def is_faster(self) -> bool:
        """Whether the second way is faster in three of four rounds, by 3 % at least; few rounds suffice."""
        low, middle, _ = self._gains()
        return low > 0 and self.base_ns + middle >= WORTH_IN_TURNS * self.base_ns

    @property
    def is_slower(self) -> bool:
        """Whether it is slower, by the same measure."""
        _, middle, high = self._gains()
        return high < 0 and self.base_ns - middle >= WORTH_IN_TURNS * self.base_ns

    @property
    def ratio(self) -> float:
        """How many times as long the second way takes: the median over the rounds."""
        return median(self._ratios())

    @property
    def pass_ratios(self) -> tuple[float, ...]:
        """The ratio of the medians in the first half of the rounds and in the second, two rounds at least, and of the shortest times.

        Where other work has the cores, medians of either side are what that left to it; then the three are far apart.
        """
        middle = self.rounds // 2
        halves = ((self.base[:middle], self.other[:middle]), (self.base[middle:], self.other[middle:]))
        return *(median(other) / max(median(base), 1) for base, other in halves), self.least_ns[1] / max(self.least_ns[0], 1)

    @property
    def interval(self) -> tuple[float, float]:
        """The 99 % interval of the ratio, of `MIN_ROUNDS` rounds at least."""
        return median_interval(self._ratios())

    @property
    def verdict(self) -> SpeedVerdict:
        """`faster` or `slower` if the whole interval is, by 3 % at least."""
        if self.rounds < MIN_ROUNDS:
            return "unmeasured"
        low, high = (verdict_of_ratio(end, WORTH_IN_TURNS) for end in self.interval)
        return low if low == high else "same"

    def _gains(self) -> tuple[float, float, float]:
        """Compute the quartiles of the differences."""
        gains = [first - second for first, second in zip(self.base, self.other, strict=True)]
        low, middle, high = quantiles(gains, n=4) if len(gains) > 1 else gains * 3
        return low, middle, high

    def _ratios(self) -> list[float]:
        return [second / max(first, 1) for first, second in zip(self.base, self.other, strict=True)]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Compute the interval of a median from the order of at least `MIN_ROUNDS` values alone.

    The true median lies outside with a probability of 1 % at most, whatever the distribution, if the values are independent.
    """
    ordered = sorted(values)
    count, below, place = len(ordered), 0, 0
    while place < count // 2 and (below := below + comb(count, place)) <= _CHANCE * 2**count:
        place += 1
    lowest = max(place - 1, 0)
    return ordered[lowest], ordered[count - 1 - lowest]


def loss_of_call(pace: Pace | None, times: float = WORTH_APART) -> int | None:
    """Compute the ns that a call loses to one in eager PyTorch; None where not known, or too little to be told from noise."""
    if pace is None or pace.verdict != "slower" or (pace.ratio or 0) < times:
        return None
    loss = (pace.call_ns or 0) - (pace.eager_ns or 0)
    return loss if loss >= _LEAST_LOSS_NS else None


_LEAST_LOSS_NS = 10_000
_BUSY = 1.5  # times the shortest call; on an idle machine half of the calls stay below 1.2
_CROWDED = 0.25  # cores: others had this many, and fewer were idle


def spread_of(capture: Capture) -> float | None:
    """Return the median of the measured calls over the shortest; None where it is not known."""
    spread = capture.figures.ledger_spread
    return spread if 1 <= (spread or 0) < inf else None  # a damaged capture may hold any number


def others_of(capture: Capture) -> float | None:
    """Return the cores that other processes had during the measured calls, where they left none idle; else None."""
    others, idle = capture.figures.ledger_others, capture.figures.ledger_idle
    return others if others is not None and idle is not None and inf > others >= _CROWDED > idle else None


def is_busy(capture: Capture) -> bool:
    """Tell whether other work ran beside the measured calls, so that times are less certain."""
    return others_of(capture) is not None or (spread_of(capture) or 1) >= _BUSY


def is_crowded(capture: Capture) -> bool:
    """Tell whether threads of PyTorch or ONNX Runtime waited for cores: then either may seem a hundred times as fast."""
    return others_of(capture) is not None and capture.figures.torch_threads not in (None, 1)
