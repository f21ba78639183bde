"""Files that nobody vouches for, and those of earlier versions: a load gives an equal capture or a `CaptureError`, and nothing else."""

import json
import os
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ortlens
from ortlens.errors import CaptureError
from ortlens.trace import journal, store
from ortlens.trace.records import SCHEMA_VERSION, Capture
from tests.unit.trace.strategies import entries_in, journal_of, small_capture

Damage = Callable[[bytes], bytes]


def _refused(path: Path, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        store.load(path)
    assert str(path) in str(caught.value)


def test_missing_and_odd_paths_are_refused(tmp_path: Path) -> None:
    _refused(tmp_path / "none.ortlens", "there is no such file")
    (tmp_path / "empty").mkdir()
    _refused(tmp_path / "empty", "a folder or no plain file")
    for path in ("a\0b.ortlens", "~no-such-user-here/a.ortlens"):
        with pytest.raises(CaptureError, match="cannot load the capture"):
            store.load(path)
        with pytest.raises(CaptureError, match="cannot save the capture"):
            store.save(Capture(), path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX file system")
def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ortlens")
    _refused(tmp_path / "pipe.ortlens", "no plain file")


@pytest.mark.parametrize("kind", [{"attach": "models/bomb"}, {"table": "nodes", "rows": 1}])
def test_a_bomb_is_refused_before_it_is_unpacked(kind: dict[str, Any], tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(48 * 2**20))
    data = journal.SAVED + journal.framed_entry({"head": {}, "created": ""}) + journal.framed_entry({**kind, "size": 48 * 2**20}, bomb)
    (tmp_path / "bad.ortlens").write_bytes(data)
    tracemalloc.start()
    _refused(tmp_path / "bad.ortlens", "more than 200 times")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def _with(entry: Any, held: bytes = b"") -> Damage:  # noqa: ANN401 - JSON of any kind
    """With one more entry, which its end counts."""

    def damage(good: bytes) -> bytes:
        *entries, (end, _) = entries_in(good)
        return journal_of([*entries, (entry, held), ({**end, "entries": end["entries"] + 1}, b"")])

    return damage


def _framed(payload: bytes) -> Damage:
    return lambda good: good + b"%08x %08x %b\n" % (len(payload), zlib.crc32(payload), payload)


def _packed(size: object, data: bytes) -> Damage:
    return lambda good: good + journal.framed_entry({"attach": "models/x", "size": size}, data)


NAMES = ("../evil", "/etc/evil", "C:\\evil", "a\\b", "models/../../evil", "a\0.txt", "é.onnx", "NUL", "")
SMALL = zlib.compress(b"x" * 100)
DAMAGED: dict[str, tuple[Damage, str]] = {
    **{f"an attachment named {name!r}": (_with({"attach": name}, b"evil"), "the name is not allowed in a capture") for name in NAMES},
    "a name twice": (_with({"attach": "models/m0.onnx"}, b"evil"), "occurs twice"),
    "a name twice but for its case": (_with({"attach": "MODELS/m0.onnx"}, b"evil"), "occurs twice"),
    "a file as a folder": (_with({"attach": "models"}, b"evil"), "one of its folders is also a file"),
    "a size that lies low": (_packed(99, SMALL), "another size than it says"),
    "a size that lies high": (_packed(101, SMALL), "another size than it says"),
    "a size below 0": (_packed(-1, SMALL), "the size of an entry is no number"),
    "a size that is no number": (_packed("1", SMALL), "the size of an entry is no number"),
    "more than is packed": (_packed(100, SMALL + b"tail"), "another size than it says"),
    "what is not packed": (_packed(100, b"x" * 100), "an entry of the journal cannot be: error"),
    "a tail": (lambda good: good + b"tail", "damaged, or cut off, after"),
    "an end that is missing": (lambda good: good[:-40], "damaged, or cut off, after"),
    "a byte that was changed": (lambda good: good[:400] + bytes([good[400] ^ 1]) + good[401:], "damaged, or cut off, after"),
    "a pickle": (lambda _: b"cos\nsystem\n(S'touch evil'\ntR.", "this is no capture, and no journal"),
    "nothing": (lambda _: b"", "this is no capture, and no journal"),
    "an older version": (lambda good: good.replace(b"capture 3", b"capture 2", 1), "its version is 2; .* record it again"),
    "a newer version": (lambda good: good.replace(b"capture 3", b"capture 9", 1), "its version is 9; .* upgrade ortlens"),
    "deep JSON": (_framed(b"[" * 10**6), "an entry of the journal cannot be: RecursionError"),
    "a long number": (_framed(b'{"at": ' + b"9" * 10**6 + b"}"), "an integer has 1000000 digits"),
    "NaN": (_framed(b'{"at": NaN}'), "NaN is not JSON"),
    "no UTF-8": (_framed(b"\xff\xfe"), "UnicodeDecodeError"),
    "no object": (_framed(b"[]"), "an entry of the journal is no object"),
    "a table of nothing": (_with({"table": "nodes", "rows": 1}), "an entry of the journal cannot be: JSONDecodeError"),
    "a table that is a list": (_with({"table": "nodes", "rows": 1}, b"[]"), "has no number of rows, or no columns"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_is_refused_in_words(tmp_path: Path, name: str) -> None:
    damage, message = DAMAGED[name]
    good = store.save(small_capture(), tmp_path / "good.ortlens").read_bytes()
    (tmp_path / "bad.ortlens").write_bytes(damage(good))
    _refused(tmp_path / "bad.ortlens", message)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bad.ortlens", "good.ortlens"]


SCHEMAS = Path(__file__).resolve().parents[2] / "data" / "captures" / "schemas"
VERSIONS = range(3, SCHEMA_VERSION + 1)
UNREAD = {"rank"}
"""Columns that were removed because nothing reads them."""


def test_each_version_has_a_capture() -> None:
    assert {path.stem: path.read_bytes().splitlines()[0] for path in SCHEMAS.glob("*.ortlens")} == {
        str(version): b"ortlens-capture %d" % version for version in VERSIONS
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_capture_of_each_version_loads_with_all_that_it_holds(version: int, tmp_path: Path) -> None:
    """A column that is renamed, of another type, or removed although something reads it, needs a new version, and a capture of it here."""
    path = SCHEMAS / f"{version}.ortlens"
    assert "graph break" in ortlens.load(path).summary()
    again = store.save(store.load(path), tmp_path / "again.ortlens")  # advice that is missing is computed where it is read
    then, now = (
        {entry["table"]: json.loads(held) for entry, held in entries_in(file.read_bytes()) if "table" in entry} for file in (path, again)
    )
    assert len(then) > 10
    for name, columns in then.items():
        kept = columns.keys() - UNREAD
        assert {column: now[name][column] for column in kept} == {column: columns[column] for column in kept}, name
