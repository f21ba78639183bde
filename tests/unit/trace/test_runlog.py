import sys
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from ortlens.trace import runlog
from ortlens.trace.runlog import CAPACITY, RunLog, RunStats
from tests.counting import calls_within
from tests.threads import in_threads


@pytest.fixture
def _frequent_switches() -> Iterator[None]:
    """Threads change over so often that they meet in the middle of everything."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _call(log: RunLog, start: int, total: int, thread: int = 1) -> None:
    log.record(start, start + 1, start + total - 1, start + total, thread)


def test_few_calls_give_exact_figures() -> None:
    log = RunLog("s0", "g0")
    assert log.stats() == RunStats(0, 0, None, None, None, None, None)
    assert list(log.rows()) == []
    log.record(100, 110, 150, 160, 7)
    assert list(log.rows()) == [(0, 100, 110, 150, 160, 7)]
    assert log.stats() == RunStats(1, 60, 60, 60, 60, 60, 60)
    # 0.9 of ten calls is the ninth; in floats, 0.9 * 10 may come out above 9.
    ten = RunLog("s0", "g0")
    for number, total in enumerate((1, 2, 3, 4, 5, 6, 7, 8, 9, 30)):
        _call(ten, 0, total, thread=number % 2)
    stats = ten.stats()
    assert (stats.p50_ns, stats.p90_ns, stats.p99_ns) == (5, 9, 30)
    assert [(row[0], row[5]) for row in ten.rows()] == [(number, number % 2) for number in range(10)]
    back = RunLog("s0", "g0")
    back.record(100, 100, 100, 90, 1)
    assert back.stats() == RunStats(1, 0, 0, 0, 0, 0, 0), "a clock that steps back counts as nothing"


@pytest.mark.usefixtures("_frequent_switches")
def test_threads_lose_no_call() -> None:
    log, threads, calls = RunLog("s0", "g0"), 8, 5_000

    def work(number: int) -> None:
        thread = threading.get_ident()
        for i in range(calls):
            log.record(i, i, i, i + number + 1, thread)

    in_threads(work, threads)
    stats = log.stats()
    assert stats.calls == threads * calls
    assert stats.total_ns == sum(range(1, threads + 1)) * calls
    assert stats.max_ns == threads


@pytest.mark.usefixtures("_frequent_switches")
def test_a_reader_never_sees_half_a_call() -> None:
    log, stop = RunLog("s0", "g0"), threading.Event()
    seen: list[RunStats] = []

    def write(_: int) -> None:
        thread, i = threading.get_ident(), 0
        while not stop.is_set():
            i += 1
            log.record(i, i + 1, i + 2, i + 3, thread)

    # Daemons: a failing assertion below must not leave the interpreter waiting for them.
    writers = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(4)]
    for writer in writers:
        writer.start()
    try:
        while not seen or seen[-1].calls < 60_000:
            seen.append(log.stats())
            assert seen[-1].total_ns == 3 * seen[-1].calls
            rows = list(log.rows())
            assert all((bound - start, ran - bound, done - ran) == (1, 1, 1) for _, start, bound, ran, done, _ in rows)
            numbers = [row[0] for row in rows]
            assert numbers == sorted(set(numbers))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert [stats.calls for stats in seen] == sorted(stats.calls for stats in seen)
    assert log.stats().calls > 4 * CAPACITY


def test_the_ring_wraps_and_keeps_the_latest_calls() -> None:
    log, calls = RunLog("s0", "g0"), 3 * CAPACITY + 5
    for i in range(calls):
        _call(log, 10 * i, 5)
    rows = list(log.rows())
    assert [row[0] for row in rows] == list(range(calls - CAPACITY + 1, calls))
    assert rows[-1] == (calls - 1, 10 * (calls - 1), 10 * (calls - 1) + 1, 10 * (calls - 1) + 4, 10 * (calls - 1) + 5, 1)
    assert log.stats().calls == calls


def test_many_calls_take_no_more_memory_than_a_few() -> None:
    log = RunLog("s0", "g0")
    record = log.record
    for i in range(CAPACITY):
        record(i, i, i, i + 100, 1)
    log.stats()
    tracemalloc.start()
    for i in range(2 * CAPACITY):
        record(i, i, i, i + 100, 1)
    # What other threads of the test run allocate meanwhile is not the log's.
    own = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(inclusive=True, filename_pattern=file) for file in (runlog.__file__, __file__)]
    )
    tracemalloc.stop()
    assert sum(trace.size for trace in own.traces) < 20_000
    for i in range(50 * CAPACITY):
        record(i, i, i, i + 100, 1)
    assert log.stats() == RunStats(53 * CAPACITY, 100 * 53 * CAPACITY, 100, 100, 100, 100, 100)
    assert len(list(log.rows())) == CAPACITY - 1
    assert {len(shard.ring) for shard in log._shards.values()} == {runlog._FIELDS * CAPACITY}


def test_few_calls_take_little_memory_and_none_is_lost_while_the_ring_grows() -> None:
    log = RunLog("s0", "g0")
    for i in range(CAPACITY - 1):
        log.record(i, i, i, 2 * i, 1)
        if i in (0, 30, 31, 32, 1023, 1024):
            assert log.stats()[:2] == (i + 1, i * (i + 1) // 2)
            assert [row[0] for row in log.rows()][-20:] == list(range(i + 1))[-20:]
        if i == 9:
            assert [len(shard.ring) for shard in log._shards.values()] == [32 * runlog._FIELDS]
            assert all(shard.histogram is None for shard in log._shards.values())
    assert [row[:3] for row in log.rows()] == [(i, i, i) for i in range(CAPACITY - 1)]


def test_recording_a_call_takes_two_calls_and_no_lock() -> None:
    log = RunLog("s0", "g0")
    log.record(0, 0, 0, 1, 1)
    assert calls_within(log.record, 1, 1, 1, 2, 1) == ["get", "next"]


RNG = np.random.default_rng(5)
DISTRIBUTIONS = {
    "constant": np.full(5_000, 12_345),
    "uniform": RNG.integers(0, 10**6, 20_000),
    "small": RNG.integers(0, 40, 3_000),
    "lognormal": RNG.lognormal(11, 1.5, 20_000).astype(np.int64),
    "two_modes": np.concatenate([RNG.normal(2e4, 100, 900), RNG.normal(5e6, 1e4, 100)]).astype(np.int64),
    "heavy_tail": (RNG.pareto(1.1, 10_000) * 1e4).astype(np.int64),
    "hours": RNG.integers(10**12, 10**13, 1_000),
}


@pytest.mark.parametrize("totals", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_percentiles_are_within_a_bucket(totals: NDArray[np.int64]) -> None:
    log = RunLog("s0", "g0")
    for total in totals.tolist():
        log.record(0, 0, 0, total, 1)
    stats = log.stats()
    exact = np.percentile(totals, [50, 90, 99], method="inverted_cdf")
    np.testing.assert_allclose([stats.p50_ns, stats.p90_ns, stats.p99_ns], exact, rtol=0.032)  # type: ignore[arg-type]  # none is None after a call
    assert (stats.total_ns, stats.max_ns) == (int(totals.sum()), int(totals.max()))
    assert stats.mean_ns == round(totals.sum() / len(totals))
