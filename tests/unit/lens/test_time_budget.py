"""When the time of a study is over."""

import math

from ortlens.lens.observing.time_budget import TimeBudget


def test_it_is_over_when_its_time_is() -> None:
    assert not TimeBudget(None).is_over()
    assert not TimeBudget(math.inf).is_over()
    short = TimeBudget(1e-9)
    assert short.is_over()
    assert short.over == "the time of 1e-09 s was over"
