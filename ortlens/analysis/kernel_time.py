"""Kernel times without the profiler's overhead, estimated from profiled times."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST = 0.1
"""Share of its profiled time that a kernel keeps whatever the profiler costs: a kernel that ran took some time."""


def divided(profiled_ns: Sequence[float], calls: Sequence[int], total_ns: int, cost_ns: float = 0.0) -> list[int]:
    """Divide the time of as many unprofiled runs, in ns, among kernels; the results add up to `total_ns`.

    The profiler adds about the same to each call, so `cost_ns` is taken from each, down to a tenth of its time. If the rest still exceeds
    the total, the excess is taken from each call alike; what is then left over or missing changes all in proportion.
    """
    least = [_LEAST * time for time in profiled_ns]
    times = [max(time - cost_ns * count, low) for time, count, low in zip(profiled_ns, calls, least, strict=True)]
    times = _without_excess(times, calls, least, float(total_ns))
    whole = sum(times)
    if not whole:
        times, whole = [float(count) for count in calls], float(sum(calls))
    ends = [round(total_ns * upto / whole) for upto in accumulate(times)] if whole else []
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _without_excess(given: Sequence[float], calls: Sequence[int], least: Sequence[float], total_ns: float) -> list[float]:
    """Subtract the same from every call until the sum fits; entries already at the minimum are skipped."""
    times = list(given)
    giving = {place for place, time in enumerate(times) if time > least[place]}
    while giving and (excess := sum(times) - total_ns) > 1e-9 * total_ns:
        each = excess / sum(calls[place] for place in giving)
        bottom = {place for place in giving if times[place] - each * calls[place] <= least[place]}
        for place in bottom or giving:
            times[place] = least[place] if place in bottom else times[place] - each * calls[place]
        giving = giving - bottom if bottom else set()
    return times
