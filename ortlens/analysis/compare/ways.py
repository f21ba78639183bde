"""Several ways of running one model, timed in turns: what each takes, and whether it is faster than PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.trace.records import column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VariantVerdict: TypeAlias = Literal["reference", "faster", "slower", "same", "unmeasured"]

MIN_ROUNDS = 10
"""Fewer rounds cannot tell a difference from chance at the level of `_CHANCE`."""

_CHANCE = 0.005
"""On either side: 1 % that the interval of a ratio misses it."""

_WORTH = 1.03
"""A smaller difference is none that anybody should act on, however sure it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVariant:
    """One way of running a model, against PyTorch without compilation."""

    way: str = column("`eager`, `inductor`, `ortlens`, `frozen`: `ortlens.freeze`, or `exported`: torch.onnx.export's model in a session.")
    verdict: VariantVerdict = column(  # noqa: RUF009 - field() in disguise
        "`faster` or `slower` than eager if the whole interval of the ratio is, by 3 % at least; `same`; `unmeasured` where it cannot run."
    )
    call_ns: int | None = column("Time of a call, the median over the rounds.", unit="ns", default=None)
    ratio: float | None = column("Times as long as eager: the median over the rounds of the ratio within a round.", default=None)
    ratio_low: float | None = column("Lower end of its 99 % interval.", default=None)
    ratio_high: float | None = column("Upper end of it.", default=None)
    first_ns: int | None = column("Time of the first call, compilation or export included.", unit="ns", default=None)
    max_abs: float | None = column("Largest absolute difference of a result from eager.", default=None)
    rounds: int = column("Rounds; in each, every way is timed once.", default=0)
    note: str = column("Why it was not measured.", default="")


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


def facts_of(rows: Sequence[RunVariant]) -> Mapping[str, str]:
    """Turn rows into `bench_<way>` facts for the head of a capture: time, ratio and interval that a program can split, or the reason."""
    return {
        f"bench_{row.way}": f"unmeasured: {row.note}"[:300]
        if row.call_ns is None
        else f"call_ns={row.call_ns} ratio={row.ratio or 1:.3f} low={row.ratio_low or 1:.3f} high={row.ratio_high or 1:.3f} {row.verdict}"
        for row in rows
    }
