"""When one set of calls is slower than another: outside the noise within each capture, and beyond what the machine explains.

Captures of the same program differ, because other work on the machine delays calls, cools caches and slows down cores. On two busy cores,
medians of the same partition differed by up to 1.5 times, and even the shortest tenth of the calls by 1.3 times. So:

1. The time of a unit is the tenth of its calls that was disturbed least, taken in each of up to twelve stretches of the capture. The
   stretches, without the shortest and the longest of twelve, are its band. By chance alone, the bands of two captures are apart in fewer
   than 1 of 5,000 comparisons, so that a capture of fifty partitions stays below 1 %.
2. The machine's share is read off the code around the sessions, which is the same in both captures and runs in the same calls: binding and
   outputs. It reacts to other work more than kernels do: its square root, and its absolute growth, bounded what was seen of kernels.
3. What is left must be a tenth at least. Without code to read the machine's share off, it must be 35 %.
4. Where calls take longer than the system leaves a thread alone, none of them is undisturbed on a busy machine: calls of 25 ms took 2.8
   times as long in one capture as in another. They are compared only where the stretches of each capture agree, as on a calm machine.

Rejected: a bootstrap over calls, whose intervals are far too narrow, since what disturbs a call disturbs its neighbours too; and PyTorch's
own calls as the reference, because torch's allocations vary more than what is to be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from ortlens.analysis.speed import MIN_CALLS, WORTH_ALONE, WORTH_APART

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.analysis.speed import SpeedVerdict

_LONG_NS = 4_000_000
"""About a time slice of Linux's scheduler."""

_CALM = 1.25
"""Slowest over fastest stretch of long calls, at most; on a calm machine about 1.1, with other work 1.5 to 2.4."""

_FEWEST, _STRETCHES = 8, 12
_ELASTICITY = 1 / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """How long a unit takes in one capture."""

    ns: int  # the least disturbed tenth of the calls: the median over the stretches
    low_ns: int  # the same in a fast stretch
    high_ns: int
    median_ns: int  # of all calls, disturbed ones included


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the code around the sessions took, per call, in two captures."""

    before_ns: int
    after_ns: int


def band_of(times: Sequence[int]) -> Band | None:
    """Summarise the ns per call of a unit without the first call, which warms up; None below `MIN_CALLS`."""
    if len(times) < MIN_CALLS:
        return None
    warm = times[1:]
    count = min(_STRETCHES, max(_FEWEST, len(warm) // 2))
    edges = [len(warm) * number // count for number in range(count + 1)]
    fast = sorted(_lower_tenth(warm[start:stop]) for start, stop in pairwise(edges))
    kept = fast[1:-1] if count == _STRETCHES else fast
    return Band(
        ns=round(median(fast)),
        low_ns=round(kept[0]),
        high_ns=round(kept[-1]),
        median_ns=round(median(warm)),
    )


def _lower_tenth(times: Sequence[int]) -> float:
    """Interpolate the quantile at one tenth, so that it means the same for stretches of different length."""
    ordered = sorted(times)
    place = (len(ordered) - 1) / 10
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def allowance(before_ns: int, machine: Machine | None) -> tuple[float, float]:
    """Compute the least and the largest ratio that the machine alone explains for a unit; (1, 1) on an equally busy machine."""
    if machine is None or machine.before_ns <= 0 or machine.after_ns <= 0:
        return 1.0, 1.0
    bent = (machine.after_ns / machine.before_ns) ** _ELASTICITY
    shifted = 1 + (machine.after_ns - machine.before_ns) / max(before_ns, 1)
    back = 1 / (1 + (machine.before_ns - machine.after_ns) / max(before_ns, 1)) if machine.after_ns < machine.before_ns else 1.0
    return min(1.0, bent, back), max(1.0, bent, shifted)


def verdict_of(before: Band | None, after: Band | None, machine: Machine | None) -> SpeedVerdict:
    """Compare a unit of two captures: `slower` or `faster` only outside the noise and beyond what the machine explains.

    Else `same`; `unmeasured` without calls, or where long ones were disturbed.
    """
    if before is None or after is None or before.ns <= 0:
        return "unmeasured"
    if min(before.ns, after.ns) > _LONG_NS and not (_is_calm(before) and _is_calm(after)):
        return "unmeasured"
    least, most = allowance(before.ns, machine)
    worth = WORTH_APART if machine is not None else WORTH_ALONE
    ratio = after.ns / before.ns
    if after.low_ns > before.high_ns and ratio >= most * worth:
        return "slower"
    if after.high_ns < before.low_ns and ratio <= least / worth:
        return "faster"
    return "same"


def _is_calm(band: Band) -> bool:
    return band.high_ns <= _CALM * band.low_ns
