"""What a study says before it begins, and notes afterwards."""

from __future__ import annotations

import math

import pytest

from ortlens.lens.time_budget import TimeBudget


@pytest.mark.parametrize(
    ("expected_s", "budget_s", "words"),
    [
        (0.2, 60, "verifying"),
        (0.2, 0.1, "verifying"),
        (12.34, 60, "verifying, about 12 s"),
        (12.34, math.inf, "verifying, about 12 s"),
        (87.6, 60, "verifying, about 88 s, 60 s at most"),
        (1234.0, 60, "verifying, about 1200 s, 60 s at most"),
    ],
)
def test_what_is_said_before(expected_s: float, budget_s: float, words: str) -> None:
    facts: dict[str, str] = {}
    with TimeBudget(budget_s).spent("verify", "verifying", expected_s, facts) as said:
        assert said == words
        assert "verify_took_s" not in facts
    assert float(facts["verify_expected_s"]) == pytest.approx(expected_s, rel=0.01)
    assert float(facts["verify_took_s"]) < 1
    assert facts["verify_budget_s"] == f"{budget_s:g}"


def test_it_is_over_when_its_time_is() -> None:
    assert not TimeBudget(None).is_over()
    assert not TimeBudget(math.inf).is_over()
    short = TimeBudget(1e-9)
    assert short.is_over()
    assert short.over == "the time of 1e-09 s was over"
