"""When a difference of times counts."""

from __future__ import annotations

import random
from itertools import cycle
from math import comb

import pytest

from ortlens.analysis.speed import MIN_ROUNDS, AbTiming, median_interval, verdict_of_passes, verdict_of_ratio


@pytest.mark.parametrize("count", [10, 11, 60])
def test_the_interval_misses_the_median_in_1_percent_at_most_and_no_wider_one_is_needed(count: int) -> None:
    low, high = median_interval([float(value) for value in range(count)])
    below = int(low)  # values that are smaller than the lower end
    assert high == count - 1 - below

    def missed(most: int) -> float:
        return float(2 * sum(comb(count, number) for number in range(most + 1)) / 2**count)

    assert missed(below) <= 0.01 < missed(below + 1)


def test_ways_in_turns_are_compared_round_by_round() -> None:
    chance = random.Random(0)  # noqa: S311 - noise, no secret
    eager = [round(100_000 * chance.uniform(1, 3)) for _ in range(40)]  # the machine: three times as slow at times
    rows = {factor: AbTiming(eager, [round(time * factor) for time in eager]).verdict for factor in (0.5, 0.95, 1.0, 1.02, 1.1)}
    assert rows == {0.5: "faster", 0.95: "faster", 1.0: "same", 1.02: "same", 1.1: "slower"}
    noisy = AbTiming(eager, [round(time * chance.uniform(0.5, 1.6)) for time in eager])
    assert noisy.verdict == "same"
    assert AbTiming([1] * (MIN_ROUNDS - 1), [1] * (MIN_ROUNDS - 1)).verdict == "unmeasured"


def test_a_ratio_counts_from_a_threshold_on_in_either_direction() -> None:
    assert [verdict_of_ratio(ratio, 1.25) for ratio in (0.79, 0.8, 1.25, 1.26)] == ["faster", "same", "same", "slower"]


@pytest.mark.parametrize(
    ("passes", "verdict"),
    [((0.5, 0.6), "faster"), ((2, 3), "slower"), ((0.9, 1.2), "same"), ((1.05, 1.5), "unclear"), ((2, 3.1), "unclear"), ((), "unmeasured")],
)
def test_a_side_is_what_all_passes_say(passes: tuple[float, float], verdict: str) -> None:
    assert verdict_of_passes(passes, 1.1) == verdict


def test_passes_are_the_halves_and_the_shortest_times() -> None:
    assert AbTiming([10, 10, 20, 20], [30, 30, 80, 20]).pass_ratios == (3.0, 2.5, 2.0)
    assert AbTiming([10, 20, 20], [20, 20, 10]).pass_ratios == (2.0, 0.75, 1.0)


@pytest.mark.parametrize(
    ("pairs", "faster", "slower", "gain"),
    [
        ([(100, 90)] * 8, True, False, 10),
        ([(100, 98)] * 8, False, False, 2),
        ([(90, 100)] * 8, False, True, -10),
        ([(100, 60), (100, 140)] * 4, False, False, 0),
        ([(100, 80)] * 6 + [(100, 500)] * 1, True, False, 20),
        ([(100, 80)] * 5 + [(100, 120)] * 3, False, False, 20),
    ],
    ids=["surely faster", "not worth it", "surely slower", "noise", "one disturbed", "too often slower"],
)
def test_a_difference_counts_when_it_is_sure_and_worth_it(pairs: list[tuple[int, int]], *, faster: bool, slower: bool, gain: int) -> None:
    compared = AbTiming(*zip(*pairs, strict=True))
    assert (compared.is_faster, compared.is_slower, compared.gain_ns, compared.rounds) == (faster, slower, gain, len(pairs))


def test_a_machine_that_changes_its_speed_changes_both_sides() -> None:
    """Every second pair is timed while the machine is ten times slower: the pairs still agree."""
    factors = cycle([1, 10])
    pairs = [(100 * factor, 80 * factor) for factor in (next(factors) for _ in range(20))]
    assert AbTiming(*zip(*pairs, strict=True)).is_faster
