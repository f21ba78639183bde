"""Dividing the time of unprofiled runs: sums that fit, and the profiler's cost taken from every call alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortlens.lens.profiling.kernel_records import divided

KERNELS = st.lists(st.tuples(st.floats(0, 1e9), st.integers(1, 1000)), min_size=1, max_size=30)


@given(kernels=KERNELS, total=st.integers(0, 10**12), cost=st.floats(0, 1e5))
def test_times_are_never_negative_and_add_up_to_the_unprofiled_total(kernels: list[tuple[float, int]], total: int, cost: float) -> None:
    times = divided([time for time, _ in kernels], [calls for _, calls in kernels], total, cost)
    assert len(times) == len(kernels)
    assert sum(times) == total
    assert min(times) >= 0


def test_a_known_cost_is_taken_from_each_call() -> None:
    # A large kernel of 600 us and thirty of 0.3 us, each told 1.8 us more than it takes.
    told = [601_800.0, *[2_100.0] * 30]
    times = divided(told, [1] * 31, 609_000, 1_800)
    assert times[0] == pytest.approx(600_000, rel=0.001)
    assert sum(times[1:]) == pytest.approx(9_000, rel=0.03)


def test_a_cost_that_is_not_known_shows_as_excess_and_is_taken_from_each_call() -> None:
    times = divided([602_000.0, *[2_000.0] * 30], [1] * 31, 610_000)
    in_proportion = 610_000 * 602 / 662
    assert times[0] > in_proportion + 40_000, "small kernels took what is the profiler's"
    assert sum(times) == 610_000


def test_a_kernel_that_ran_keeps_a_tenth_of_its_time() -> None:
    times = divided([1_000.0, 1_000_000.0], [1, 1], 1_000_100, 5_000)
    assert times[0] == pytest.approx(100, rel=0.02)


def test_what_lies_between_kernels_goes_to_all_in_proportion() -> None:
    assert divided([100.0, 300.0], [1, 1], 800) == [200, 600]
    assert divided([0.0, 0.0], [1, 3], 400) == [100, 300], "by their calls"
    assert divided([], [], 1000) == []
