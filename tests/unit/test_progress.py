"""Progress shows in a terminal and in a notebook, nowhere else, and breaks nothing."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import types

import pytest

from ortlens import _shell
from ortlens._shell import progress

WORK = """
import sys, time
from ortlens._shell import progress
with progress("outer", 2, "part") as part:
    for _ in range(2):
        with progress("inner", 30, "step") as step:
            for _ in range(20):
                time.sleep(float(sys.argv[1]))
                step(1)
        part(1)
print("tqdm" in sys.modules)
"""


class Terminal(io.StringIO):
    """Takes text, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Broken(Terminal):
    """A terminal that went away."""

    def write(self, text: str, /) -> int:
        raise BrokenPipeError(text)


@pytest.fixture(autouse=True)
def _no_word_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORTLENS_PROGRESS", raising=False)


def work(monkeypatch: pytest.MonkeyPatch, stream: object, step_s: float = 2.0) -> str:
    """Take five steps, each of so long, with a standard error. No fixture: pytest's capture would put its own there."""
    std = pytest.importorskip("tqdm.std")
    now = [0.0]
    monkeypatch.setattr(std, "time", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("working", 3, "step") as step:  # more than announced
        for _ in range(5):
            now[0] += step_s
            step(1)
    return stream.getvalue() if isinstance(stream, io.StringIO) else ""


def under_pty(step_s: float) -> str:
    """Run nested work in a process whose standard error is a real terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))  # a terminal without a size gets no bar of tqdm's
    drained: list[bytes] = []

    def drain() -> None:
        try:
            while chunk := os.read(ours, 4096):
                drained.append(chunk)
        except OSError:
            return  # Linux says EIO when the last writer is gone

    reader = threading.Thread(target=drain)
    reader.start()
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(step_s)], stdout=subprocess.PIPE, stderr=theirs, text=True, check=False, timeout=120
    )
    os.close(theirs)
    reader.join(timeout=30)
    os.close(ours)
    text = b"".join(drained).decode()
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), text
    return text


def test_a_terminal_sees_long_work_within_long_work_and_no_short_work() -> None:
    text = under_pty(0.06)
    assert "outer:  50%" in text
    assert "inner:" in text
    assert text.rsplit("\r", 2)[-2].strip() == "", "the bars are wiped out"
    assert under_pty(0.0) == ""


@pytest.mark.parametrize(
    ("kind", "said", "step_s", "is_seen"),
    [
        (Terminal, None, 2.0, True),
        (Terminal, None, 0.1, False),
        (Terminal, "0", 2.0, False),
        (io.StringIO, None, 2.0, False),
        (io.StringIO, "1", 2.0, True),
        (io.StringIO, "yes", 2.0, False),
    ],
)
def test_it_shows_where_it_is_wanted_and_slow(
    kind: type[io.StringIO], said: str | None, step_s: float, is_seen: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said is not None:
        monkeypatch.setenv("ORTLENS_PROGRESS", said)
    assert ("working" in work(monkeypatch, kind(), step_s)) is is_seen


def test_a_notebook_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shell, "in_notebook", lambda: True)
    assert "working" in work(monkeypatch, io.StringIO())


@pytest.mark.parametrize("stream", [None, object(), types.SimpleNamespace(isatty=lambda: 1 / 0)])
def test_any_standard_error_will_do(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    work(monkeypatch, stream)


def test_without_tqdm_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert work(monkeypatch, Terminal()) == ""


def test_a_bar_that_fails_breaks_nothing_and_keeps_no_lock_from_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    work(monkeypatch, Broken())
    taken: list[bool] = []

    def take() -> None:
        lock = pytest.importorskip("tqdm.std").tqdm.get_lock()
        lock.acquire()
        lock.release()
        taken.append(True)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(timeout=5)
    assert taken
