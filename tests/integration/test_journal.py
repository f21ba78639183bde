"""The journal of a lens holds what the lens holds, whenever its process ends."""

import errno
import gc
import mmap
import os
import random
import struct
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens.errors import CaptureError, UsageError
from ortlens.trace import journal, store
from ortlens.trace.codec import row_from_record
from ortlens.trace.records import Capture
from ortlens.trace.schema import TABLES
from tests.integration.test_whole_files import full_disk, in_a_fork

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def program() -> Callable[[torch.Tensor], torch.Tensor]:
    """With a break, an operator in PyTorch, and whatever else fills tables."""
    layer = nn.Linear(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = layer(x).relu()
        torch._dynamo.graph_break()
        result: torch.Tensor = torch.fft.fft(y).abs() + y.sum()
        return result

    return function


@torch.no_grad()
def recorded(path: Path, calls: int = 40) -> Capture:
    """Compile and call with a journal, close it, and return what the lens held."""
    lens = ortlens.Lens(journal=path, name="journalled")
    fast = torch.compile(program(), backend=lens)
    for count in range(calls):
        fast(X if count % 2 else X[:2])
    capture = lens.captured()
    del lens, fast
    torch.compiler.reset()
    gc.collect()
    return capture


def rows(capture: Capture, name: str) -> list[dict[str, Any]]:
    return [row_from_record(TABLES[name], record) for record in getattr(capture, name)]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Capture]:
    """A closed journal, and what its lens held."""
    path = tmp_path_factory.mktemp("journal") / "run.journal"
    capture = recorded(path)
    return path.read_bytes(), capture


@pytest.fixture
def path(closed: tuple[bytes, Capture], tmp_path: Path) -> Path:
    (tmp_path / "run.journal").write_bytes(closed[0])
    return tmp_path / "run.journal"


def test_a_closed_journal_holds_all_of_its_lens(path: Path, closed: tuple[bytes, Capture], monkeypatch: pytest.MonkeyPatch) -> None:
    # It may replace attachments as often as it likes: the limits are those of a saved capture.
    monkeypatch.setattr(journal, "MAX_ATTACHMENTS", len(closed[1].attachments) - 1)
    held, loaded = closed[1], ortlens.load(path).captured()
    assert (loaded.findings, loaded.attachments) == (held.findings, held.attachments)
    for name in set(TABLES) - {"runs", "ledger"}:  # the ledger is drawn up by the lens
        assert rows(loaded, name) == rows(held, name), name
    assert held.fallbacks
    assert len(loaded.runs) == len(held.runs) > 0
    assert (loaded.name, loaded.backend, loaded.environment) == (held.name, held.backend, held.environment)


def test_whatever_is_cut_off_leaves_the_entries_before_it(path: Path, closed: tuple[bytes, Capture]) -> None:
    data, draw = closed[0], random.Random(0)  # noqa: S311 - where it is cut
    before = -1
    for size in sorted({len(journal.HEADER), len(data) - 1, *(draw.randrange(len(journal.HEADER), len(data)) for _ in range(25))}):
        path.write_bytes(data[:size])
        loaded = store.load(path)
        assert [finding.rule for finding in loaded.findings][-1:] == ["journal_not_closed"]
        assert len(loaded.nodes) >= before
        before = len(loaded.nodes)
    assert before == len(closed[1].nodes)


@pytest.mark.parametrize(
    "bad", [b'{"add":"nodes","row":{}}', b'{"add":"none","row":{}}', b"[]", b'{"log":"s0","graph":1,"stats":[],"rows":[[1]]}', b"{"]
)
def test_an_entry_that_cannot_be_is_refused(bad: bytes, path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"%08x %08x %b\n" % (len(bad), zlib.crc32(bad), bad))
    with pytest.raises(CaptureError, match="cannot load the capture"):
        store.load(path)


def test_a_journal_that_finds_no_room_is_refused_and_leaves_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    with ortlens.capture(journal=path) as lens:
        torch.compile(torch.cos, backend="ortlens")(X)
    with full_disk(0):
        for refused in (path, tmp_path / "other.journal"):
            with pytest.raises(UsageError, match=r"cannot be written: \[Errno 27\]"):
                ortlens.Lens(journal=refused)
    with pytest.raises(UsageError, match="cannot be written"):
        ortlens.Lens(journal=tmp_path / "none" / "run.journal")
    assert len(store.load(path).graphs) == len(lens.graphs) == 1
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@torch.no_grad()
@pytest.mark.parametrize("ask", ["measure", "verify", "profile"])
def test_what_raises_leaves_no_trace_until_its_graph_runs(ask: str, path: Path) -> None:
    def function(x: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        y = x.exp() + x.size(0)
        if twice:
            torch._dynamo.graph_break()
        return y.view(4, -1) if twice else y.relu()

    lens = ortlens.Lens(journal=path)
    fast = torch.compile(function, backend=lens)
    fast(X)
    lens.measure(X)
    before = replace(lens.captured(), created="", attachments={})
    with pytest.raises(Exception, match=r"view|invalid"):
        getattr(lens, ask)(X[:, :3], twice=True)
    assert replace(lens.captured(), created="", attachments={}) == before
    lens._recorder.journal.flush()  # type: ignore[union-attr]  # it has one
    read = ortlens.load(path).captured()
    same = TABLES.keys() - {"findings", "ledger", "runs"}  # not closed, shares are rounded, and of many calls at a time a few are kept
    assert {name: getattr(read, name) for name in same} == {name: getattr(before, name) for name in same}
    assert set(read.runs) <= set(before.runs)
    with pytest.raises(Exception, match=r"view|invalid"):
        fast(X[:, :3], twice=True)
    again = lens.captured()
    assert len(again.graphs) > len(before.graphs)
    assert {row.graph_id for row in again.runs} <= {row.graph_id for row in again.graphs}
    lens._recorder.journal.flush()  # type: ignore[union-attr]  # as above
    assert ortlens.load(path).captured().graphs == again.graphs


def test_a_process_that_ends_at_once_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """Without exit functions, as when it is killed; a fork, because imports of torch take seconds."""
    path, counted = tmp_path / "run.journal", mmap.mmap(-1, 8)
    recorded(tmp_path / "warm.journal", calls=1)

    def act() -> None:
        lens = ortlens.Lens(journal=path)
        fast = torch.compile(program(), backend=lens)
        with torch.no_grad():
            for _ in range(3):
                fast(X)
        assert lens._recorder.journal is not None
        lens._recorder.journal.flush()
        capture = lens.captured()
        counted[:8] = struct.pack("q", len(capture.nodes) + len(capture.runs))

    os.waitpid(in_a_fork(act), 0)
    loaded = store.load(path)
    assert loaded.runs
    assert len(loaded.nodes) + len(loaded.runs) == struct.unpack("q", counted[:8])[0] > 6
    assert [finding.rule for finding in loaded.findings][-1:] == ["journal_not_closed"]


def test_calls_that_find_no_room_end_the_journal_with_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lens = ortlens.Lens(journal=tmp_path / "run.journal")
    fast = torch.compile(torch.cos, backend=lens)
    fast(X)
    writer = lens._recorder.journal
    assert writer is not None

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the thread may be first
        patched.setattr(os, "write", refuse)
        torch.testing.assert_close(fast(X), X.cos())
        writer.flush()
        writer.flush()
    (failed,) = (finding for finding in lens.captured().findings if finding.rule == "journal_failed")
    assert "No space left on device" in str(failed.evidence)
    torch.testing.assert_close(fast(X), X.cos())
    assert len(store.load(tmp_path / "run.journal").graphs) == 1


def test_an_entry_may_be_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: max(1, len(data) // 2)]))
    assert recorded(tmp_path / "run.journal", calls=1).graphs == store.load(tmp_path / "run.journal").graphs


def test_a_forked_process_leaves_the_journal_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    lens = ortlens.Lens(journal=path)
    torch.compile(torch.cos, backend=lens)(X)
    writer = lens._recorder.journal
    assert writer is not None
    writer.flush()
    before = path.stat().st_size

    def act() -> None:
        writer.write({"attach": "models/x.onnx"}, b"x")
        writer.close()

    os.waitpid(in_a_fork(act), 0)
    assert path.stat().st_size == before
    assert replace(store.load(path), findings=()).attachments == lens.captured().attachments


def test_watch_says_what_happened_and_ends_with_the_journal(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ortlens.cli.entry import main

    assert main(["watch", str(path)]) == 0
    said = capsys.readouterr().out
    assert "graph break b0  integration/test_journal.py:" in said
    assert "in PyTorch  aten" in said
    assert "median of the latest" in said
    assert said.endswith("this is all\n")
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["watch", "--once", str(path)]) == 0
    assert "the journal was not closed" in capsys.readouterr().out
    assert main(["watch", "--once", str(path.with_name("none"))]) == 2
    assert "there is no journal" in capsys.readouterr().err
