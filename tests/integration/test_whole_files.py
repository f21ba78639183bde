"""Files are whole or not there: under a full disk, a kill, folders that cannot be written, and names as long as they may be."""

import contextlib
import errno
import functools
import io
import os
import random
import signal
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ortlens
from ortlens import _files
from ortlens.backend import compile_context
from ortlens.backend.freeze.frozen import Frozen
from ortlens.cli.entry import main
from ortlens.errors import OrtLensError
from ortlens.trace import store
from tests.unit.trace.strategies import small_capture

resource = pytest.importorskip("resource", reason="POSIX limits")
X = torch.linspace(-1, 1, 6)


@contextlib.contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file may grow beyond some bytes; Python turns the signal into an OSError.

    Modules are not cached meanwhile: Python would leave half a file in `__pycache__`, which no later process could import.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    caches_nothing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = caches_nothing


def in_a_fork(act: Callable[[], None]) -> int:
    """Run in a forked process, which ends without exit functions; returns its id."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return child


def fresh() -> ortlens.Lens:
    made = ortlens.Lens()
    with torch.no_grad():
        torch.compile(torch.nn.Linear(6, 500).eval(), backend=made)(X)
    return made


@functools.cache
def frozen() -> Frozen:
    with torch.no_grad():
        return ortlens.freeze(torch.nn.Linear(6, 500).eval(), X)


@pytest.fixture(scope="module")
def lens() -> ortlens.Lens:
    return fresh()


def checked(saved: Path, target: Path) -> None:
    """The command line, with its exit status as an error like those of the functions."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main(["check", str(saved), "--max-breaks", "0", "--json", str(target)])
    if code:
        raise OrtLensError(f"exit status {code}")


WRITERS: dict[str, tuple[str, Callable[[ortlens.Lens, Path, Path], object]]] = {
    "save": ("run.ortlens", lambda lens, at, _: lens.save(at)),
    "report": ("run.html", lambda lens, at, _: lens.report(at)),
    "repro": ("repro", lambda lens, at, _: lens.repro("p0", at)),
    "repro with values": ("repro", lambda _, at, __: fresh().repro("p0", at, args=(X,), real_inputs=True, weights=True)),
    "export_onnx": ("model.onnx", lambda lens, at, _: lens.export_onnx(at)),
    "netron": ("model.html", lambda lens, at, _: lens.netron("p0").save(at)),
    "frozen": ("frozen", lambda _, at, __: frozen().save(at)),
    "export": ("tables", lambda lens, at, _: lens.export(at, "csv", replace=True)),
    "check": ("check.json", lambda _, at, saved: checked(saved, at)),
}
FULL_AT = [*((writer, 300) for writer in WRITERS), *((writer, 2500) for writer in ("repro", "frozen", "export"))]
OVER_OLD = sorted(WRITERS.keys() - {"repro", "repro with values", "frozen"})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("writer", "room"), FULL_AT)
def test_a_full_disk_leaves_nothing_behind(writer: str, room: int, lens: ortlens.Lens, tmp_path: Path) -> None:
    name, write = WRITERS[writer]
    saved = lens.save(tmp_path / "saved.ortlens")
    (tmp_path / "here").mkdir()
    failed = False
    try:
        with full_disk(room), torch.no_grad():
            write(lens, tmp_path / "here" / name, saved)
    except OrtLensError:
        failed = True
    assert failed or room > 300
    assert bool(list((tmp_path / "here").iterdir())) != failed


@pytest.mark.parametrize("writer", OVER_OLD)
def test_a_full_disk_leaves_what_was_there(writer: str, lens: ortlens.Lens, tmp_path: Path) -> None:
    name, write = WRITERS[writer]
    saved = lens.save(tmp_path / "saved.ortlens")
    (tmp_path / "here").mkdir()
    with torch.no_grad():
        write(lens, tmp_path / "here" / name, saved)
        before = contents(tmp_path / "here")
        assert before
        with full_disk(10), contextlib.suppress(OrtLensError):
            write(lens, tmp_path / "here" / name, saved)
    assert contents(tmp_path / "here") == before


@pytest.mark.parametrize("writer", WRITERS)
def test_a_place_that_cannot_be_written_is_an_error_of_ours(writer: str, lens: ortlens.Lens, tmp_path: Path) -> None:
    name, write = WRITERS[writer]
    saved = lens.save(tmp_path / "saved.ortlens")
    (tmp_path / "file").write_text("not a folder")
    with torch.no_grad(), pytest.raises(OrtLensError):
        write(lens, tmp_path / "file" / name, saved)


@pytest.mark.parametrize("writer", ["save", "report", "export_onnx", "netron", "check", "repro", "frozen"])
def test_a_name_may_be_as_long_as_the_file_system_allows(writer: str, lens: ortlens.Lens, tmp_path: Path) -> None:
    name, write = WRITERS[writer]
    stem, dot, ending = name.partition(".")
    long = stem + "n" * (255 - len(name)) + dot + ending
    with torch.no_grad():
        write(lens, tmp_path / long, lens.save(tmp_path / "saved.ortlens"))
    assert (tmp_path / long).exists()


@pytest.mark.parametrize("writer", ["repro", "frozen"])
def test_the_mark_of_a_folder_is_written_last(writer: str, lens: ortlens.Lens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, write = WRITERS[writer]
    marks: list[str] = []
    monkeypatch.setattr(_files, "_remove", lambda _, mark: marks.append(mark))
    with torch.no_grad():
        write(lens, tmp_path / name, tmp_path)
    written = sorted((tmp_path / name).rglob("*"), key=lambda path: path.stat().st_mtime_ns)
    assert len(written) > 3
    assert marks
    assert {written[-1].name} == set(marks)


@pytest.mark.parametrize("room", [0, 200])
def test_a_dump_is_whole_or_not_there(room: int, tmp_path: Path) -> None:
    compiled = torch.compile(torch.sin, backend=ortlens.OrtBackend({"dump_path": str(tmp_path / "d")}))
    with torch.no_grad(), full_disk(room), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.testing.assert_close(compiled(X), X.sin())
    names = sorted(path.suffix for path in tmp_path.iterdir())
    assert names in ([], [".onnx", ".txt"])
    assert bool(names) != any("could not be dumped" in str(warning.message) for warning in heard)


@pytest.mark.parametrize("synced", [0, 1])
def test_a_dump_over_another_is_whole_or_the_old_one(synced: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = synced

    def dumped(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        monkeypatch.setattr(compile_context, "_numbers", defaultdict(int))  # as in another process
        torch.compiler.reset()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.compile(function, backend=ortlens.OrtBackend({"dump_path": str(tmp_path / "d")}))(X)

    def full(_: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    dumped(torch.sin)
    before = contents(tmp_path)
    assert sorted(before) == ["d0.onnx", "d0.txt"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        dumped(torch.cos)
    assert contents(tmp_path) == before
    dumped(torch.cos)
    assert contents(tmp_path).keys() == before.keys()
    assert all(data != before[name] for name, data in contents(tmp_path).items())


def save_for_ever(target: Path) -> None:
    made = [replace(small_capture(), name=name, attachments={"models/m0.onnx": name.encode() * 20000}) for name in ("one", "two")]
    while True:
        for capture in made:
            store.save(capture, target)


def test_a_kill_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    target, chance = tmp_path / "run.ortlens", random.Random(5)  # noqa: S311 - when to kill is no secret
    store.save(small_capture(), target)
    for _ in range(5):
        child = in_a_fork(lambda: save_for_ever(target))
        time.sleep(chance.uniform(0.01, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert store.load(target).name in {"one", "two", small_capture().name}
