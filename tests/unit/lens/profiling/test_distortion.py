"""How much the profiler lengthens a run."""

from __future__ import annotations

import pytest

from ortlens.lens.profiling.kernel_records import distortion


def test_the_shortest_runs_of_each_call_decide() -> None:
    assert distortion([90, 10, 50, 20, 21], [90, 15, 15, 900, 30], [None, 0, 0, 1, 1]) == pytest.approx((15 + 30) / (10 + 20))


def test_a_run_under_the_profiler_is_never_the_shorter_one() -> None:
    assert distortion([100, 400], [99, 100], [0, 0]) == 1.0


def test_runs_that_took_no_time_have_no_distortion() -> None:
    assert distortion([0], [5], [0]) is None
    assert distortion([7], [5], [None]) is None
