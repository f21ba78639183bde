"""How often `profile` repeats a run."""

from __future__ import annotations

import pytest

from ortlens.lens.time_budget import FEWEST, MOST, STABLE_S, Repeats


def repeats_of(asked: int | None, run_s: float, monkeypatch: pytest.MonkeyPatch) -> int:
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    repeats, done = Repeats(asked), 0
    while not repeats.are_enough(done):
        done, now = done + 1, now + run_s
    return done


@pytest.mark.parametrize(
    ("asked", "run_s", "expected"),
    [
        (None, 0.001, MOST),
        (None, STABLE_S / 10, 11),
        (None, STABLE_S, FEWEST),
        (1, STABLE_S, 1),
        (60, STABLE_S, 60),
    ],
)
def test_long_runs_are_repeated_less_often_unless_asked(
    asked: int | None, run_s: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repeats_of(asked, run_s, monkeypatch) == expected
