"""Progress shows in a terminal and in a notebook, nowhere else, and costs and breaks nothing."""

from __future__ import annotations

import io
import itertools
import os
import pty
import subprocess
import sys
import threading
import types

import pytest

from ortlens import progress as shown
from ortlens.progress import progress

WORK = """
import multiprocessing, sys, threading, time, warnings
warnings.simplefilter("error")
from ortlens.progress import progress
with progress("working", 40, "step") as step:
    for _ in range(40):
        time.sleep(float(sys.argv[1]))
        step(1)
print("tqdm" in sys.modules, threading.active_count())
multiprocessing.set_start_method("spawn")  # raises where somebody settled it before
"""


class Terminal(io.StringIO):
    """Takes text, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


NOW = [0.0]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the work moves on, and no word from outside."""
    monkeypatch.setattr(shown, "time", types.SimpleNamespace(monotonic=lambda: NOW[0]))
    monkeypatch.delenv("ORTLENS_PROGRESS", raising=False)


def takes(seconds: float) -> None:
    NOW[0] += seconds


def a_terminal(monkeypatch: pytest.MonkeyPatch, kind: type[Terminal] = Terminal) -> Terminal:
    """A terminal as standard error. No fixture: pytest's capture would put its own there."""
    made = kind()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def work(steps: int = 5) -> list[int]:
    """Some steps that take long enough to be shown."""
    done = []
    with progress("working", steps, "step") as step:
        for number in range(steps):
            takes(0.6)
            step(1)
            done.append(number)
    return done


def under_pty(step_s: float) -> tuple[str, str]:
    """Run the work in a process whose standard error is a real terminal."""
    ours, theirs = pty.openpty()
    drained: list[bytes] = []

    def drain() -> None:
        try:
            while chunk := os.read(ours, 4096):
                drained.append(chunk)
        except OSError:
            return  # Linux says EIO when the last writer is gone

    reader = threading.Thread(target=drain)
    reader.start()
    env = {key: value for key, value in os.environ.items() if key != "ORTLENS_PROGRESS"}
    command = [sys.executable, "-c", WORK, str(step_s)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True, check=False, timeout=120, env=env)
    os.close(theirs)
    reader.join(timeout=30)
    os.close(ours)
    text = b"".join(drained).decode()
    assert done.returncode == 0, text
    return done.stdout, text


def test_a_terminal_sees_long_work_is_clean_afterwards_and_sees_no_short_work() -> None:
    out, text = under_pty(0.05)
    assert out.split() == ["True", "1"], "tqdm is loaded, and no thread was left"
    assert "working: " in text
    assert "/40 [" in text
    assert "\n" not in text
    assert text.rsplit("\r", 2)[-2].strip() == "", "the bar is wiped out"
    out, text = under_pty(0.0)
    assert (out.split()[0], text) == ("False", "")


@pytest.mark.parametrize(
    ("kind", "said", "seen"),
    [("file", None, False), ("file", "0", False), ("file", "1", True), ("file", "yes", False), ("terminal", "0", False)],
)
def test_a_file_gets_nothing_unless_it_is_asked_for(kind: str, said: str | None, seen: object, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal() if kind == "terminal" else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    if said is not None:
        monkeypatch.setenv("ORTLENS_PROGRESS", said)
    work()
    assert ("working" in stream.getvalue()) is seen


@pytest.mark.parametrize("stream", [None, object(), types.SimpleNamespace(isatty=lambda: 1 / 0)])
def test_any_standard_error_will_do(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    assert work(2) == [0, 1]


def test_without_tqdm_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "tqdm.std", None)
    assert work() == [0, 1, 2, 3, 4]
    assert terminal.getvalue() == ""


def test_what_the_work_raises_is_raised_and_the_bar_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)

    def fail() -> None:
        with progress("working", 2, "step") as step:
            takes(2)
            step(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert terminal.getvalue().endswith("\r")
    assert work(), "the next one may be shown"


def test_work_within_work_takes_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    with progress("outer", 2, "step", at_once=True) as step:
        work(2)
        step(1)
    told = [name for part in terminal.getvalue().split("\r") for name in ("outer", "working") if name in part]
    assert [name for name, _ in itertools.groupby(told)] == ["outer", "working", "outer"]
    assert "\n" not in terminal.getvalue()


def test_short_work_is_shown_where_the_whole_is_long_and_another_thread_leaves_the_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    with progress("outer", 2, "step"):
        with progress("first", 1, "step") as step:
            step(1)
        takes(2)
        with progress("second", 1, "step") as step:
            step(1)
    assert "first" not in terminal.getvalue()
    assert "second" in terminal.getvalue()
    with progress("outer", 2, "step", at_once=True):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "outer" in terminal.getvalue()
    assert "working" not in terminal.getvalue()


def test_work_whose_steps_nobody_tells_or_that_has_more_than_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    with progress("tracing", 0, "", at_once=True):
        assert terminal.getvalue().endswith("\rtracing …")
    assert terminal.getvalue().endswith("\r         \r")
    with progress("working", 1, "step", at_once=True) as step:
        assert "working:   0%" in terminal.getvalue()
        takes(0.2)
        step(7)


def test_the_bars_of_the_user_keep_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    tqdm = pytest.importorskip("tqdm.std").tqdm
    before = (tqdm.monitor_interval, tqdm.monitor, tqdm.__dict__.get("_lock"))
    work()
    assert "working" in terminal.getvalue()
    assert (tqdm.monitor_interval, tqdm.monitor, tqdm.__dict__.get("_lock")) == before


class Handle:
    """What IPython gives for an output that can be written over."""

    def __init__(self, seen: list[dict[str, str]]) -> None:
        self._seen = seen

    def update(self, bundle: dict[str, str], **_: object) -> None:
        self._seen.append(bundle)


def test_a_notebook_gets_one_output_that_is_empty_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display")
    ipython = pytest.importorskip("IPython")
    seen: list[dict[str, str]] = []

    def show(bundle: dict[str, str], **_: object) -> Handle:
        seen.append(bundle)
        return Handle(seen)

    monkeypatch.setattr(ipython, "get_ipython", lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setattr(display, "display", show)
    with progress("<b>&", 3, "step") as step:
        for _ in range(3):
            takes(2)
            step(1)
    assert '<progress max="3" value="1"></progress> 1 of 3 steps' in seen[1]["text/html"]
    assert "&lt;b&gt;&amp;" in seen[1]["text/html"]
    assert "1/3 [" in seen[1]["text/plain"]
    assert seen[-1] == {"text/plain": "", "text/html": ""}


class Broken(Terminal):
    """A terminal that went away."""

    def write(self, text: str, /) -> int:
        raise BrokenPipeError(text)


def test_a_bar_that_fails_is_dropped_and_keeps_no_lock_from_the_users_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    # tqdm leaves its lock locked when drawing raises, and torch.fx makes bars of tqdm's in every compilation.
    std = pytest.importorskip("tqdm.std")
    a_terminal(monkeypatch, Broken)
    assert work() == [0, 1, 2, 3, 4]
    taken: list[bool] = []

    def take() -> None:
        lock = std.TqdmDefaultWriteLock.th_lock
        taken.append(lock.acquire(timeout=5))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert taken == [True]
