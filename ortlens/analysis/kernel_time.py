"""Kernel times without the profiler's overhead, estimated from profiled times."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST = 0.1
"""Share of its profiled time that a kernel keeps whatever the profiler costs: a kernel that ran took some time."""


def divided(profiled_ns: Sequence[float], calls: Sequence[int], total_ns: int, cost_ns: float = 0.0) -> list[int]:
    """Divide the time of unprofiled runs among kernels.

    The profiler lengthens each call of a kernel by about the same, be it long or short. So that is taken from each call, down to a
    tenth of its time. Where the rest still adds up to more than the runs really took, the excess is taken from each call alike;
    what is then left over or missing, as the time between kernels, changes all in proportion.

    Args:
        profiled_ns: Own time of each kernel under the profiler, in ns.
        calls: How often each ran in that time.
        total_ns: Time of as many runs without the profiler, in ns.
        cost_ns: What the profiler adds to a call, as far as that is known.

    Returns:
        Time of each kernel in ns; they add up to `total_ns`. Empty without kernels.
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
