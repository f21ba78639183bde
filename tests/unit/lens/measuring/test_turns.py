from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest

from ortlens.backend.runtime.turns import Comparison, compare, comparison_of
from ortlens.lens.measuring.probes import finding_of
from ortlens.lens.measuring.trials import Trial
from ortlens.trace.records import Finding


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
    compared = comparison_of(pairs)
    assert (compared.is_faster, compared.is_slower, compared.gain_ns, compared.rounds) == (faster, slower, gain, len(pairs))


def test_both_ways_are_timed_in_turns() -> None:
    order: list[str] = []

    def way(name: str, times: list[int]) -> int:
        order.append(name)
        return times[len(order) % len(times)]

    compared = compare(lambda: way("a", [100]), lambda: way("b", [70]), 0)
    assert order[:8] == ["a", "b", "a", "b", "a", "b", "b", "a"]
    assert (compared.rounds, compared.base_ns, compared.other_ns, compared.gain_ns) == (7, 100, 70, 30)


TRIAL = Trial(rule="unfrozen_weights", subject="p0", change="freezing the weights", mitigation="freeze", pair=lambda: None, per_call=3)
KNOWN = Finding(rule="unfrozen_weights", subject="p0", severity="warning", title="16 MiB are inputs", evidence="recorded")


def compared(gain: int, *, base: int = 1000) -> Comparison:
    return comparison_of([(base, base - gain)] * 8)


def test_a_gain_is_told_per_call_of_the_model_and_with_what_was_known() -> None:
    finding = finding_of(TRIAL, compared(200), KNOWN)
    assert (finding.title, finding.severity, finding.gain_ns, finding.measured) == ("16 MiB are inputs", "warning", 600, True)
    parts = ("recorded; ", "1.00 µs as it is", "800 ns with", "8 pairs", "3 runs per call")
    assert [part for part in parts if part not in finding.evidence] == []
    assert finding.mitigation == "freeze"


@pytest.mark.parametrize("gain", [-200, 0])
def test_no_gain_withdraws_the_warning(gain: int) -> None:
    finding = finding_of(TRIAL, compared(gain), KNOWN)
    assert (finding.severity, finding.gain_ns, finding.measured) == ("info", 0, True)
    assert ("is slower" in finding.title) == (gain < 0)


@pytest.mark.parametrize(("gain", "severity"), [(99, "info"), (100, "warning")])
def test_a_gain_that_no_rule_expected_is_a_warning_from_a_tenth_on(gain: int, severity: str) -> None:
    finding = finding_of(replace(TRIAL, per_call=1), compared(gain), None)
    assert (finding.severity, finding.gain_ns) == (severity, gain)
    assert "freezing the weights makes calls faster" in finding.title
    assert finding.hazard


def test_a_machine_that_changes_its_speed_changes_both_sides() -> None:
    """Every second pair is timed while the machine is ten times slower: the pairs still agree."""
    factors = cycle([1, 10])
    pairs = [(100 * factor, 80 * factor) for factor in (next(factors) for _ in range(20))]
    assert comparison_of(pairs).is_faster
