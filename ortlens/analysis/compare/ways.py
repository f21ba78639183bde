"""Several ways of running one model, timed in turns: what each takes, and whether it is faster than PyTorch."""

from __future__ import annotations

from math import comb
from statistics import median
from typing import TYPE_CHECKING

from ortlens.trace.records import RunVariant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.trace.records import VariantVerdict

MIN_ROUNDS = 10
"""Fewer rounds cannot tell a difference from chance at the level of `_CHANCE`."""

_CHANCE = 0.005
"""On either side: 1 % that the interval of a ratio misses it."""

_WORTH = 1.03
"""A smaller difference is none that anybody should act on, however sure it is."""


def ratio_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Compute the interval of a median from the order of at least `MIN_ROUNDS` values alone.

    The true median lies outside with a probability of 1 % at most, whatever the distribution, if the values are independent.
    """
    ordered = sorted(ratios)
    count, below, place = len(ordered), 0, 0
    while place < count // 2 and (below := below + comb(count, place)) <= _CHANCE * 2**count:
        place += 1
    lowest = max(place - 1, 0)
    return ordered[lowest], ordered[count - 1 - lowest]


def run_variant_of(
    name: str,
    times: Sequence[int],
    reference: Sequence[int],
    *,
    first_ns: int | None = None,
    max_abs: float | None = None,
) -> RunVariant:
    """Evaluate one way against eager, by the ns per call in the same rounds."""
    ratios = [time / base for time, base in zip(times, reference, strict=True) if base > 0]
    if len(ratios) < MIN_ROUNDS:
        return failed_variant(name, f"{len(ratios)} rounds are too few; {MIN_ROUNDS} are needed, so raise the time limit")
    low, high = ratio_interval(ratios)
    verdict: VariantVerdict = "faster" if high < 1 / _WORTH else "slower" if low > _WORTH else "same"
    return RunVariant(
        way=name,
        verdict="reference" if name == "eager" else verdict,
        call_ns=round(median(times)),
        ratio=median(ratios),
        ratio_low=low,
        ratio_high=high,
        first_ns=first_ns,
        max_abs=max_abs,
        rounds=len(ratios),
    )


def failed_variant(name: str, why: str) -> RunVariant:
    """Make the row of a way that could not be measured."""
    return RunVariant(way=name, verdict="unmeasured", note=why)
