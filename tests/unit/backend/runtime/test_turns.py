"""Timing two ways in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.backend.runtime import turns

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Clock:
    """A clock that only the timed ways move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr("ortlens.backend.runtime.turns.time.perf_counter_ns", lambda: self.now)

    def way(self, *takes: int) -> Callable[[], int]:
        left = list(takes)

        def timed() -> int:
            ns = left.pop(0) if len(left) > 1 else left[0]
            self.now += ns
            return ns

        return timed


def test_a_first_pair_that_uses_up_the_time_is_only_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    compared = turns.compare_briefly(clock.way(300, 30), clock.way(30), 100)
    assert compared.least_ns == (30, 30)
    assert compared.rounds == 3
    assert not compared.is_faster


def test_a_pair_that_takes_many_times_the_limit_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    compared = turns.compare_briefly(clock.way(900), clock.way(30), 100)
    assert (compared.rounds, compared.least_ns, clock.now) == (1, (900, 30), 930)
