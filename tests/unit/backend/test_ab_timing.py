"""Timing ways in turns, on a clock that only they move on."""

from collections.abc import Callable

import pytest
import torch

from ortlens.analysis.speed import AbTiming
from ortlens.backend.basis import ab_timing
from ortlens.backend.basis.ab_timing import clocked, clocked_often, compare, take_turns, waiting_for


class Clock:
    """A clock that only the timed ways move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr("ortlens.backend.basis.ab_timing.time.perf_counter_ns", lambda: self.now)

    def way(self, *takes: int) -> Callable[[], int]:
        left = list(takes)

        def timed() -> int:
            ns = left.pop(0) if len(left) > 1 else left[0]
            self.now += ns
            return ns

        return timed


def test_a_first_pair_that_uses_up_the_time_is_a_warm_up_or_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    compared = ab_timing.compare_briefly(clock.way(300, 30), clock.way(30), 100)
    assert (compared.rounds, compared.least_ns, compared.is_faster) == (3, (30, 30), False)
    compared = ab_timing.compare_briefly(clock.way(900), clock.way(30), 100)
    assert (compared.rounds, compared.least_ns) == (1, (900, 30)), "it takes many times the limit"


def test_both_ways_are_timed_in_turns() -> None:
    order: list[str] = []

    def way(name: str, times: list[int]) -> int:
        order.append(name)
        return times[len(order) % len(times)]

    compared = compare(lambda: way("a", [100]), lambda: way("b", [70]), 0)
    assert order[:8] == ["a", "b", "a", "b", "a", "b", "b", "a"]
    assert (compared.rounds, compared.base_ns, compared.other_ns, compared.gain_ns) == (7, 100, 70, 30)


def test_each_round_of_several_ways_begins_with_another_one() -> None:
    order: list[str] = []

    def way(name: str) -> Callable[[], str]:
        return lambda: order.append(name) or name  # type: ignore[func-returns-value]  # the name is what it returns

    told: list[int] = []
    readings = take_turns([way("a"), way("b"), way("c")], fewest=3, most=9, is_over=lambda: True, tell=told.append)
    assert "".join(order) == "abcbcacab"
    assert readings == [("a",) * 3, ("b",) * 3, ("c",) * 3]
    assert told == [1, 1, 1]


class Device:
    """A device of a machine without one: calls queue work on it, and waiting for it takes as long as that work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
        self.clock, self.queued, self.waited = clock, 0, set[torch.device]()
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("meta"))
        monkeypatch.setattr(torch.accelerator, "synchronize", self.synchronize)

    def synchronize(self, device: torch.device) -> None:
        self.waited.add(device)
        self.clock.now += self.queued
        self.queued = 0

    def call(self, host: int, work: int) -> None:
        self.clock.now += host
        self.queued += work


def test_a_device_is_waited_for_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    device = Device(monkeypatch, clock)
    wait = waiting_for([torch.empty(2), {"x": torch.empty(2, device="meta")}])
    device.call(0, 10_000)  # what was queued before belongs to neither
    compared = compare(clocked(lambda: device.call(5, 300), wait), clocked(lambda: device.call(200, 0), wait), 0)
    assert compared == AbTiming((305,) * 7, (200,) * 7)
    assert device.waited == {torch.device("meta")}


def test_short_calls_are_timed_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    device = Device(monkeypatch, clock)
    wait = waiting_for(torch.nn.Linear(1, 1, device="meta"))
    timed = clocked_often(lambda: device.call(1_000, 19_000), wait)
    before = clock.now
    assert timed() == 20_000
    assert clock.now - before == 52 * 20_000, "one call for the caches, then as many as take a millisecond"


def test_nothing_is_waited_for_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: pytest.fail("waited"))
    waiting_for(torch.ones(2), torch.nn.Linear(1, 1), None, torch.empty(1, device="meta"))()
