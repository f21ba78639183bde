"""What counts as faster, slower and the same, wherever two times are compared; and the result of timing two ways in turns."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from statistics import median, quantiles
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

SpeedVerdict: TypeAlias = Literal["faster", "slower", "same", "unmeasured"]

# The least ratio of two times that is a difference.

WORTH_IN_TURNS = 1.03  # of two ways timed in turns: nobody should act on a smaller difference, however sure it is
WORTH_APART = 1.10
"""Of other times, such as those of two captures: on an idle machine the medians of two runs of one program differ by less."""

WORTH_ALONE = 1.35  # of two captures where nothing shows how busy the machine was
WORTH_A_WARNING = 1.3  # of what takes longer than PyTorch: as a warning, and at all where other work ran beside the calls

# The fewest times that can tell a difference from chance.

MIN_ROUNDS = 10  # of an interval of 99 %
MIN_CALLS = 9  # of a capture: the first call, which warms up, and one for each of eight stretches
_CHANCE = 0.005  # on either side: 1 % that the interval of a ratio misses it


def verdict_of_ratio(ratio: float, worth: float) -> SpeedVerdict:
    """Judge how many times as long something takes."""
    return "faster" if ratio < 1 / worth else "slower" if ratio > worth else "same"


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
