"""What a study says before it begins, and notes afterwards."""

from __future__ import annotations

import math

import pytest

from ortlens.lens.time_budget import TimeBudget
from ortlens.trace.recorder import Recorder


@pytest.mark.parametrize(
    ("expected_s", "budget_s", "words"),
    [
        (0.2, 60, "verifying"),
        (12.34, math.inf, "verifying, about 12 s"),
        (1234.0, 60, "verifying, about 1200 s, 60 s at most"),
    ],
)
def test_what_is_said_before(expected_s: float, budget_s: float, words: str) -> None:
    recorder = Recorder()
    with TimeBudget(budget_s).spent("verify", "verifying", expected_s, recorder) as said:
        assert said == words
        assert recorder.figures.verify_took_s is None
    figures = recorder.figures
    assert figures.verify_expected_s == expected_s
    assert figures.verify_took_s is not None
    assert figures.verify_budget_s == budget_s


def test_it_is_over_when_its_time_is() -> None:
    assert not TimeBudget(None).is_over()
    assert not TimeBudget(math.inf).is_over()
    short = TimeBudget(1e-9)
    assert short.is_over()
    assert short.over == "the time of 1e-09 s was over"
