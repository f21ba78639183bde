from __future__ import annotations

import random
from dataclasses import replace
from math import comb

import pytest

from ortlens.analysis.compare.ways import MIN_ROUNDS, failed_variant, ratio_interval, run_variant_of
from ortlens.cli.bench import conclusion, ways_text
from ortlens.trace.records import RunVariant


@pytest.mark.parametrize("count", [10, 11, 60])
def test_the_interval_misses_the_median_in_1_percent_at_most_and_no_wider_one_is_needed(count: int) -> None:
    low, high = ratio_interval([float(value) for value in range(count)])
    below = int(low)  # values that are smaller than the lower end
    assert high == count - 1 - below

    def missed(most: int) -> float:
        return float(2 * sum(comb(count, number) for number in range(most + 1)) / 2**count)

    assert missed(below) <= 0.01 < missed(below + 1)


def test_ways_in_turns_are_compared_round_by_round() -> None:
    chance = random.Random(0)  # noqa: S311 - noise, no secret
    eager = [round(100_000 * chance.uniform(1, 3)) for _ in range(40)]  # the machine: three times as slow at times
    rows = {
        factor: run_variant_of("ortlens", [round(time * factor) for time in eager], eager).verdict for factor in (0.5, 0.95, 1.0, 1.02, 1.1)
    }
    assert rows == {0.5: "faster", 0.95: "faster", 1.0: "same", 1.02: "same", 1.1: "slower"}
    assert run_variant_of("eager", eager, eager).verdict == "reference"
    noisy = run_variant_of("ortlens", [round(time * chance.uniform(0.5, 1.6)) for time in eager], eager)
    assert noisy.verdict == "same"
    few = run_variant_of("ortlens", [1] * (MIN_ROUNDS - 1), [1] * (MIN_ROUNDS - 1))
    assert (few.verdict, few.call_ns) == ("unmeasured", None)


EAGER = RunVariant(way="eager", verdict="reference", call_ns=100_000, ratio=1.0, ratio_low=1.0, ratio_high=1.0, first_ns=5, rounds=20)
FAST = RunVariant(
    way="ortlens", verdict="faster", call_ns=50_000, ratio=0.5, ratio_low=0.45, ratio_high=0.55, first_ns=10**9, max_abs=1e-7, rounds=20
)


def test_the_table_and_its_conclusion() -> None:
    text = ways_text((EAGER, FAST, failed_variant("inductor", "no compiler"))).splitlines()
    assert text[0].split() == ["way", "time", "per", "call", "of", "eager", "99", "%", "interval", "first", "call", "difference"]
    assert text[2].split("  ")[0] == "ortlens"
    assert "0.45x to 0.55x" in text[2]
    assert text[3:] == ["inductor: not measured: no compiler", "", "Fastest: ortlens, 0.50x of eager."]
    near = replace(FAST, way="exported", ratio=0.53, ratio_low=0.5)
    assert conclusion((EAGER, near, FAST)) == "Fastest: ortlens, 0.50x of eager; exported cannot be told apart from it."
    assert conclusion((EAGER, replace(FAST, verdict="same"))) == "No way is faster than eager outside the noise."
    assert "other shapes or NaN" in ways_text((EAGER, replace(FAST, max_abs=float("inf"))))
