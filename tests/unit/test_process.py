"""What has the cores is told from what the system counts, and the last of several threads lets the garbage collector run again."""

import contextlib
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ortlens import _process
from ortlens._process import CoreWatch, at_cores, gc_paused, usable_cores
from tests.threads import in_threads


@pytest.mark.timed
def test_other_processes_are_told_from_this_one() -> None:
    with contextlib.ExitStack() as others:
        for _ in range(2 * usable_cores()):
            others.callback(others.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"])).kill)
        time.sleep(0.5)  # they have begun
        watch = CoreWatch()
        own = time.process_time()
        while time.process_time() - own < 0.2:
            pass
        shares = watch.shares()
    assert shares is not None
    assert shares[0] > 0.25
    assert shares[1] < 0.25


LINUX = {"user": 1, "nice": 0.1, "system": 0.1, "idle": 0.8, "iowait": 0.2, "irq": 0.1, "softirq": 0.1, "steal": 0.7, "guest": 1}
WINDOWS = {"user": 1, "system": 0.5, "idle": 1, "interrupt": 0.1, "dpc": 0.2}  # `system` holds the last two


@pytest.mark.parametrize(("counted", "used"), [(LINUX, 2.1), (WINDOWS, 1.5)])
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


def test_threads_that_spin_after_the_work_are_waited_for_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    used, walls = iter([0, 6_000_000, 9_000_000, 12_000_000, 12_100_000]), iter([0, 3_000_000])  # two cores, then one for 6 ms
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("time.process_time_ns", lambda: next(used))
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(walls))
    assert at_cores(lambda: "made") == ("made", 2.0, 6_000_000)


@pytest.mark.parametrize(("set_before", "enabled"), [(gc.enable, True), (gc.disable, False)])
def test_the_collector_rests_and_is_as_before_after_an_error_too(set_before: Callable[[], None], *, enabled: bool) -> None:
    set_before()
    with pytest.raises(ZeroDivisionError), gc_paused():  # noqa: PT012 - what happens inside is tested
        with gc_paused():
            pass
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled() == enabled
    gc.enable()


def test_the_last_of_several_threads_switches_it_on() -> None:
    with contextlib.ExitStack() as another:
        with gc_paused():
            in_threads(lambda _: another.enter_context(gc_paused()), count=1)
        assert not gc.isenabled()
    assert gc.isenabled()


V1, QUOTA, PERIOD = "4:cpu,cpuacct:/a/b\n3:memory:/a/b\n0::/\n", "cpu.cfs_quota_us", "cpu.cfs_period_us=100000"
STATS = "cpu.stat=nr_throttled 2|a/cpu.stat=nr_throttled 3\nthrottled_usec 5"
TREES = [  # what the process is in, its groups as `path=text`, and its quota, cores of 3, bytes of 10,000 and throttling
    ("0::/a/b", f"a/b/cpu.max=300000 100000|a/cpu.max=250000 100000|cpu.max=max 1|{STATS}|a/memory.max=9", (2.5, 3, 9, (5, 5000))),
    (V1, f"cpu/a/b/{QUOTA}=-1|cpu/a/b/{PERIOD}|cpu/a/{QUOTA}=50000|cpu/a/{PERIOD}|cpu/cpu.stat=throttled_time 9", (0.5, 1, 10000, (0, 9))),
    (V1, f"cpu,cpuacct/a/{QUOTA}=150000|cpu,cpuacct/a/{PERIOD}|memory/a/b/memory.limit_in_bytes=7", (1.5, 2, 7, (0, 0))),
    ("4:cpu:/docker/ab", f"cpu/{QUOTA}=400000|cpu/{PERIOD}", (4.0, 3, 10000, (0, 0))),
    ("0::/../other", "cpu.max=125000 100000|../other/cpu.max=1 100000", (1.25, 1, 10000, (0, 0))),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "files", "expected"), TREES)
def test_the_least_of_all_groups_wins(lines: str, files: str, expected: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in [("proc/self/cgroup", lines), *(f"sys/fs/cgroup/{each}".split("=") for each in files.split("|"))]:
        (tmp_path / name).resolve().parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).resolve().write_text(text)
    monkeypatch.setattr(_process, "_ROOT", tmp_path)
    monkeypatch.setattr(_process, "affinity_cores", lambda: 3)
    monkeypatch.setattr("os.sysconf", lambda _: 100)
    assert (_process.cpu_quota(), usable_cores(), _process.usable_bytes(), _process.throttling()) == expected
