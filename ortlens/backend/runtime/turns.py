"""Times two ways of doing the same in turns, and decides whether one is really faster."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_WARM_UP = 2
_FEWEST, _MOST = 7, 200
_FEWEST_BRIEFLY = 3
_TOO_LONG = 5
"""Times the limit that a pair must take to be the only one."""
_WORTH = 0.03
"""Share of the time below which a difference is too small to act on, even if it is significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two ways compare.

    Attributes:
        base_ns: Median of the first.
        other_ns: Median of the second.
        gain_ns: Median of the differences, pair by pair; negative when the second is slower.
        is_faster: Whether the second is faster in three of four pairs, by at least 3 %.
        is_slower: Whether the second is slower, by the same measure.
        rounds: Pairs that were timed.
        least_ns: The shortest time of either: other work on the machine can only lengthen it.
    """

    base_ns: int
    other_ns: int
    gain_ns: int
    is_faster: bool
    is_slower: bool
    rounds: int
    least_ns: tuple[int, int]


def compare(base: Callable[[], int], other: Callable[[], int], budget_ns: int) -> Comparison:
    """Time two ways, which return ns, in turns, so that changes in the speed of the machine affect both; at least seven pairs."""
    for _ in range(_WARM_UP):
        base()
        other()
    pairs: list[tuple[int, int]] = []
    deadline = time.perf_counter_ns() + budget_ns
    while len(pairs) < _FEWEST or (len(pairs) < _MOST and time.perf_counter_ns() < deadline):
        pairs.append(_pair(base, other, len(pairs)))
    return comparison_of(pairs)


def compare_briefly(base: Callable[[], int], other: Callable[[], int], budget_ns: int) -> Comparison:
    """Compare ways that may take long: a pair that uses up the time many times over is the only one.

    Else the first pair is a warm-up, whatever it takes: fresh memory and other work on the machine can lengthen it tenfold.
    """
    started = time.perf_counter_ns()
    first = _pair(base, other, 0)
    if time.perf_counter_ns() - started > _TOO_LONG * budget_ns:
        return comparison_of([first])
    pairs: list[tuple[int, int]] = []
    while len(pairs) < _FEWEST_BRIEFLY or (len(pairs) < _MOST and time.perf_counter_ns() - started < budget_ns):
        pairs.append(_pair(base, other, len(pairs)))
    return comparison_of(pairs)


def _pair(base: Callable[[], int], other: Callable[[], int], number: int) -> tuple[int, int]:
    """Time one pair; every other one in the opposite order, since the second may profit from warm caches."""
    if number % 2:
        second, first = other(), base()
    else:
        first, second = base(), other()
    return first, second


def comparison_of(pairs: list[tuple[int, int]]) -> Comparison:
    """Evaluate pairs, at least one, of the times of the first and the second way in ns."""
    base_ns, other_ns = (round(median(pair[side] for pair in pairs)) for side in (0, 1))
    differences = [first - second for first, second in pairs]
    low, middle, high = quantiles(differences, n=4) if len(differences) > 1 else differences * 3
    worth = _WORTH * base_ns
    return Comparison(
        base_ns=base_ns,
        other_ns=other_ns,
        gain_ns=round(middle),
        is_faster=low > 0 and middle >= worth,
        is_slower=high < 0 and -middle >= worth,
        rounds=len(pairs),
        least_ns=(min(first for first, _ in pairs), min(second for _, second in pairs)),
    )


def clocked(run: Callable[[], object]) -> Callable[[], int]:
    """Return a function that runs another one and returns ns; the result is freed after the clock has been read."""
    clock = time.perf_counter_ns

    def timed() -> int:
        started = clock()
        result = run()
        elapsed = clock() - started
        del result
        return elapsed

    return timed
