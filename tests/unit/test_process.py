"""What has the cores is told from what the system counts, and the last of several threads lets the garbage collector run again."""

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ortlens import _process
from ortlens._process import CoreWatch, at_cores, gc_paused, usable_cores

HZ = 100


@pytest.mark.timed
def test_other_processes_are_told_from_this_one() -> None:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * usable_cores())]
    try:
        time.sleep(0.5)  # they have begun
        watch = CoreWatch()
        own = time.process_time()
        while time.process_time() - own < 0.2:
            pass
        shares = watch.shares()
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert shares is not None
    assert shares[0] > 0.25
    assert shares[1] < 0.25


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with these counters, and a clock that stands still."""
    monkeypatch.setattr(_process, "_STAT", tmp_path / "stat")
    monkeypatch.setattr("os.sysconf", lambda _: HZ)
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    return tmp_path / "stat"


def shares(counted: Path, before: str, after: str, passed: float, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float] | None:
    monkeypatch.setattr("time.perf_counter", lambda: 1.0)
    counted.write_text(before)
    watch = CoreWatch()
    monkeypatch.setattr("time.perf_counter", lambda: 1.0 + passed)
    counted.write_text(after)
    return watch.shares()


def test_time_that_the_host_took_counts_as_used(counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = "cpu 100 0 0 50 0 0 0 0 0 0\ncpu0 1 2 3\n", "cpu 200 10 10 140 10 5 5 70 70 0\ncpu0 1 2 3\n"
    assert shares(counted, before, after, 1.0, monkeypatch) == pytest.approx((2.0, 1.0))


@pytest.mark.parametrize(
    ("text", "passed"), [("cpu 1 2 3 4 5 6 7 8\n", 0.05), ("", 1.0), ("cpu a b\n", 1.0), ("intr 1 2 3 4 5 6 7 8\n", 1.0)]
)
def test_what_is_not_counted_or_too_short_is_not_known(text: str, passed: float, counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares(counted, text, text, passed, monkeypatch) is None


def test_a_system_that_does_not_count_is_no_failure(counted: Path) -> None:
    assert not counted.exists()
    assert CoreWatch().shares() is None


def test_threads_that_spin_after_the_work_are_waited_for_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    used, walls = iter([0, 6_000_000, 9_000_000, 12_000_000, 12_100_000]), iter([0, 3_000_000])  # two cores, then one for 6 ms
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("time.process_time_ns", lambda: next(used))
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(walls))
    assert at_cores(lambda: "made") == ("made", 2.0, 6_000_000)


def test_the_collector_rests_meanwhile_and_comes_back_after_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError), gc_paused():  # noqa: PT012 - what happens inside is tested
        with gc_paused():
            pass
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_it_stays_off_for_who_had_it_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_several_threads_switches_it_on() -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow() -> None:
        with gc_paused():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=slow)
    thread.start()
    inside.wait()
    with gc_paused():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
