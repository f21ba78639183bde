"""`lens.live()` on a terminal; in a kernel, test_magic_kernel.py shows it."""

import gc
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import ortlens
from ortlens.lens import live
from ortlens.trace import store
from ortlens.views.live import live_figures

X = torch.linspace(-1, 1, 12).reshape(3, 4)
LINE = re.compile(r"ortlens: [\d,]+ runs?; .*; 0 graph breaks; 0 recompiles; 1 session; 2 operators in PyTorch;.*")


def looking() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "ortlens live"]


@pytest.fixture
def lens() -> ortlens.Lens:
    made = ortlens.Lens(name="net")
    made.fast = torch.compile(lambda a: torch.fft.fft(torch.sin(a) * 2).abs(), backend=made)  # type: ignore[attr-defined, misc]  # of this test
    return made


def called(lens: Any, calls: int) -> None:  # noqa: ANN401 - see the fixture
    for _ in range(calls):
        lens.fast(X)


def test_lines_on_a_terminal_come_at_a_bounded_rate_and_end_with_the_block(lens: ortlens.Lens, capsys: pytest.CaptureFixture[str]) -> None:
    called(lens, 2)
    with lens.live(every=0.2) as shown:
        assert looking() == ["ortlens live"]
        began = time.monotonic()
        while time.monotonic() - began < 1:
            called(lens, 10)
    took = time.monotonic() - began
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= took / 0.2 + 2
    assert all(LINE.fullmatch(line) for line in lines)
    assert int(lines[-1].split()[1].replace(",", "")) == sum(lens.sessions.calls), "the last line is of the end"
    assert looking() == []
    assert repr(shown).startswith("<Live: ")
    shown.close()
    assert capsys.readouterr().err == ""


def test_it_ends_when_the_loop_raises(lens: ortlens.Lens) -> None:
    def loop() -> None:
        with lens.live(every=0.05):
            called(lens, 1)
            raise KeyError("in the loop")

    with pytest.raises(KeyError, match="in the loop"):
        loop()
    assert looking() == []


def test_it_ends_with_its_lens() -> None:
    made = ortlens.Lens()
    shown = made.live(every=0.05)
    del made
    gc.collect()
    shown._thread.join(timeout=10)
    assert looking() == []
    shown.close()


def test_its_own_failure_never_reaches_the_loop(lens: ortlens.Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "live_figures", lambda *_: 1 // 0)
    with lens.live(every=0.05) as shown:
        called(lens, 3)
    assert repr(shown) == "<Live>"
    assert [row.rule for row in lens.captured().findings if "showing live figures" in row.title] == ["lens_failed"]


def test_lens_and_journal_give_the_same_figures(tmp_path: Path) -> None:
    lens = ortlens.Lens(journal=tmp_path / "run.journal")
    fast = torch.compile(lambda a: torch.fft.fft(torch.sin(a) * 2).abs(), backend=lens)
    for rows in (3, 3, 2, 2, 2):
        fast(X[:rows])
    lens._recorder.journal.close()  # type: ignore[union-attr]  # it has one
    now = live_figures(live.snapshot(lens._recorder))
    assert now.runs == 5
    assert now.recompile_count == 1
    assert now == live_figures(lens.captured()) == live_figures(store.load(tmp_path / "run.journal"))
