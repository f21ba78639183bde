"""What has the cores is told from what the system counts, and the last of several threads lets the garbage collector run again."""

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ortlens import _process
from ortlens._process import CoreWatch, gc_paused, usable_cores


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


@pytest.mark.parametrize(
    ("counted", "used"),
    [
        ({"user": 1, "nice": 0.1, "system": 0.1, "idle": 0.8, "iowait": 0.2, "irq": 0.1, "softirq": 0.1, "steal": 0.7, "guest": 1}, 2.1),
        ({"user": 1, "system": 0.5, "idle": 1, "interrupt": 0.1, "dpc": 0.2}, 1.5),  # Windows, whose `system` holds the last two
    ],
)
def test_time_that_the_host_took_counts_as_used(counted: dict[str, float], used: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("psutil.cpu_times", lambda: SimpleNamespace(**{name: now * seconds for name, seconds in counted.items()}))
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    watch = CoreWatch()
    now = 0.05
    assert watch.shares() is None, "too short"
    now = 2.0
    assert watch.shares() == pytest.approx((used, 1.0))


@pytest.mark.parametrize("text", [None, "", "cpu a b\n"])
def test_a_system_that_does_not_count_is_no_failure(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path))
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert CoreWatch().shares() is None


def test_a_system_whose_libraries_need_names_does_not_report_its_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: "/" in name)  # as on Windows
    assert _process._mallinfo2.__wrapped__() is None


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
