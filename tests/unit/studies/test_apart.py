"""Whatever happens in a process of its own is an answer: real crashes, hangs and memory."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortlens._process import is_running, usable_bytes
from ortlens.errors import UsageError
from ortlens.studies import apart
from ortlens.studies.apart import ProcessLimits, ProcessResult, StoppedError, held_bytes, run_in_subprocess
from tests.unit.studies import small_cases

LONG = ProcessLimits(seconds=60)


def end_of(function: Callable[..., Any], folder: Path, *args: object, limits: ProcessLimits = LONG) -> ProcessResult:
    return run_in_subprocess(function, args, limits=limits, folder=Path(tempfile.mkdtemp(dir=folder)))


def gone(pid: int) -> bool:
    for _ in range(500):
        if not is_running(pid):
            return True
        time.sleep(0.01)
    return False


def pid_in(file: Path) -> int:
    for _ in range(3000):
        if file.exists() and (text := file.read_text(encoding="utf-8")):
            return int(text)
        time.sleep(0.01)
    raise AssertionError(f"{file} was not written")


@pytest.mark.parametrize(("system", "line"), [("posix", ", at .* in hangs"), ("nt", "")])
def test_a_hang_ends_at_its_limit_with_all_that_it_started(system: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "nt":  # where no signal asks a process where it is, and there are no groups
        monkeypatch.setattr(subprocess.Popen, "send_signal", lambda process, number: os.kill(process.pid, (9,).index(number) or 9))
        monkeypatch.delattr(os, "killpg")
    ended = end_of(small_cases.hangs_with_a_child, tmp_path, str(tmp_path / "pid"), limits=ProcessLimits(seconds=1.5))
    assert ended.status == "timeout"
    assert re.fullmatch(f"no answer within 1.5 s, while waiting{line}", ended.reason)
    assert gone(pid_in(tmp_path / "pid"))


@pytest.mark.parametrize("processes", ["/proc", "/none"])  # as on Linux and elsewhere
def test_more_memory_than_the_limit(processes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_PROC", Path(processes))
    ended = end_of(small_cases.eats, tmp_path, limits=ProcessLimits(seconds=60, memory_bytes=200 << 20))
    assert ended.status == "memory"
    assert ended.reason.startswith("more memory than the limit of 200 MiB while eating, at ")
    assert ended.peak_bytes is not None
    assert 200 << 20 < ended.peak_bytes < 2 << 30


@pytest.mark.parametrize(
    ("function", "args", "status", "reason"),
    [
        (
            *(small_cases.dereferences_null, (), "crashed"),
            r"the process crashed: SIGSEGV \(segmentation fault\) while reading memory, at .*small_cases.py:\d+ in dereferences_null$",
        ),
        (small_cases.leaves, (3,), "crashed", "the process ended with exit code 3 while starting"),
        (small_cases.leaves, (0,), "crashed", "the process ended with exit code 0 while starting"),
        (small_cases.is_killed, (), "crashed", r"the process was killed \(SIGKILL\), by the system for lack of memory or by somebody,"),
        (small_cases.asks_for_too_much, (), "memory", ".*can't allocate memory"),
        (small_cases.raises, (), "failed", "ValueError: no <weights> at "),
        (small_cases.exits, (), "failed", "SystemExit: 7"),
    ],
)
def test_every_end_has_a_reason(function: Callable[..., Any], args: tuple[int, ...], status: str, reason: str, tmp_path: Path) -> None:
    ended = end_of(function, tmp_path, *args)
    assert ended.status == status
    assert re.match(reason, ended.reason)
    assert (status == "failed") == ("Traceback (most recent call last)" in ended.log and status != "memory")


def test_an_answer(tmp_path: Path) -> None:
    ended = end_of(small_cases.doubled, tmp_path, 4)
    assert (ended.status, ended.reason, ended.value, ended.log) == ("ok", "", {"twice": 8}, "working\n")
    assert ended.wall_ns > 0
    early = end_of(small_cases.answers_and_crashes, tmp_path)
    assert (early.status, early.value) == ("ok", {"done": True}), "it counts though the process crashes after it"
    assert end_of(small_cases.reads, tmp_path).value == ["", "ortlens"], "it has no input and no arguments"
    long = end_of(small_cases.chatters, tmp_path)
    assert long.status == "ok"
    assert long.log.endswith("the end\n")
    assert len(long.log) < 100_000


def test_what_cannot_be_pickled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be sent to another process"):
        end_of(small_cases.doubled, tmp_path, threading.Lock())


def test_it_ends_when_it_is_no_longer_wanted(tmp_path: Path) -> None:
    stop, file = threading.Event(), tmp_path / "pid"

    def stop_it() -> None:
        pid_in(file)
        stop.set()

    threading.Thread(target=stop_it).start()
    with pytest.raises(StoppedError):
        run_in_subprocess(small_cases.hangs, (str(file),), limits=LONG, folder=tmp_path, stop=stop)
    assert gone(pid_in(file))


def test_it_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = (
        "import json, pathlib, sys; sys.path[:] = json.loads(sys.argv[1])\n"
        "from ortlens.studies.apart import ProcessLimits, run_in_subprocess\n"
        "from tests.unit.studies import small_cases\n"
        "run_in_subprocess(small_cases.hangs, (sys.argv[2],), limits=ProcessLimits(seconds=600), folder=pathlib.Path(sys.argv[3]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, json.dumps(sys.path), str(file), str(tmp_path)])
    try:
        case = pid_in(file)
        assert is_running(case)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert gone(case)


@pytest.mark.skipif(sys.platform != "linux", reason="that of children is watched on Linux")
def test_memory_is_that_of_all_its_processes() -> None:
    before = held_bytes(os.getpid()) or 0
    code = "held = bytearray(100 << 20); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        held = held_bytes(os.getpid()) or 0
        child.communicate(b"\n")
    assert held > before + (80 << 20)
    assert (usable_bytes() or 0) > 1 << 28
