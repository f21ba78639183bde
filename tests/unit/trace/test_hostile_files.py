"""Files that nobody vouches for: a load gives an equal capture or a `CaptureError`, and nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import struct
import sys
import tracemalloc
import warnings
import zipfile
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ortlens.errors import CaptureError
from ortlens.trace import store
from ortlens.trace.records import Capture
from tests.unit.trace.strategies import small_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Damage = Callable[[bytes], bytes]

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX file system")


def _saved(tmp_path: Path) -> bytes:
    return store.save(small_capture(), tmp_path / "good.ortlens").read_bytes()


def _outcome(path: Path, data: bytes) -> Capture | CaptureError:
    path.write_bytes(data)
    try:
        return store.load(path)
    except CaptureError as err:
        return err


def _refused(path: Path, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        store.load(path)
    assert str(path) in str(caught.value)


def _rezipped(data: bytes, *, without: Sequence[str] = (), entries: Sequence[tuple[Any, str | bytes]] = ()) -> bytes:
    """The good file without some members, and with entries added as they are."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(target, "w") as out:
        for info in source.infolist():
            if info.filename not in without:
                out.writestr(info, source.read(info), compress_type=zipfile.ZIP_DEFLATED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a duplicate name, which is the point
            for entry, content in entries:
                out.writestr(entry, content)
    return target.getvalue()


def _with_table(data: bytes, text: bytes) -> bytes:
    """The good file with another nodes table and a manifest that vouches for it."""
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        manifest = json.loads(source.read("manifest.json"))
    manifest["members"]["tables/nodes.json"] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    entries = (("manifest.json", json.dumps(manifest)), ("tables/nodes.json", text))
    return _rezipped(data, without=("manifest.json", "tables/nodes.json"), entries=entries)


def test_missing_and_odd_paths_are_refused(tmp_path: Path) -> None:
    _refused(tmp_path / "none.ortlens", "there is no such file or folder")
    (tmp_path / "empty").mkdir()
    _refused(tmp_path / "empty", "member 'manifest.json' is missing")
    for path in ("a\0b.ortlens", "~no-such-user-here/a.ortlens"):
        with pytest.raises(CaptureError, match="cannot load the capture"):
            store.load(path)
        with pytest.raises(CaptureError, match="cannot save the capture"):
            store.save(Capture(), path)


@POSIX
def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ortlens")
    _refused(tmp_path / "pipe.ortlens", "not a file or folder")


FOLDERS: tuple[tuple[str, Callable[[Path], object], str], ...] = (
    ("tables/nodes.json", getattr(os, "mkfifo", os.mkdir), r"member 'tables/nodes\.json' is not a plain file"),
    ("manifest.json", os.mkdir, r"member 'manifest\.json' is not a plain file"),
    ("models", lambda path: path.write_bytes(b""), r"member 'models/m0\.onnx' cannot be read"),
    ("models", lambda path: path.symlink_to(path.parent / "tables"), r"member 'models/m0\.onnx' is, or lies behind, a symbolic link"),
    ("models/m0.onnx", lambda path: path.symlink_to(path.parents[1] / "manifest.json"), "is, or lies behind, a symbolic link"),
    ("models/m0.onnx", lambda _: None, r"member 'models/m0\.onnx' is missing"),
    ("models/m0.onnx", lambda path: path.write_bytes(b"ONNX" * 50), r"member 'models/m0\.onnx' was changed after the capture was saved"),
    ("models/m0.onnx", lambda path: path.write_bytes(b"short"), "was changed after the capture was saved"),
    ("models/m0.onnx", lambda path: path.write_bytes(b"onnx" * 51), "has more than the 200 bytes allowed"),
)
"""What is replaced in a folder, and by what."""


@POSIX
@pytest.mark.parametrize(("member", "put", "message"), FOLDERS)
def test_a_damaged_folder_is_refused(tmp_path: Path, member: str, put: Callable[[Path], object], message: str) -> None:
    folder = store.save(small_capture(), tmp_path / "run")
    path = folder / member
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    put(path)
    _refused(folder, message)
    if path.is_symlink():
        with pytest.raises(CaptureError, match="other files"):
            store.save(Capture(), folder)


@POSIX
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_member_is_named(tmp_path: Path) -> None:
    folder = store.save(small_capture(), tmp_path / "run")
    (folder / "manifest.json").chmod(0)
    _refused(folder, r"member 'manifest\.json' cannot be read")


class _Nameless(zipfile.ZipInfo):
    """An entry without a name, which Python's own writer cannot look at."""

    def is_dir(self) -> bool:
        return False


def test_a_folder_zipped_by_another_tool_opens(tmp_path: Path) -> None:
    entries = [(zipfile.ZipInfo("models/"), b""), ("README.txt", b"by hand")]
    assert _outcome(tmp_path / "other.ortlens", _rezipped(_saved(tmp_path), entries=entries)) == small_capture()


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("models/bomb")
    info.compress_type = zipfile.ZIP_DEFLATED
    (tmp_path / "bad.ortlens").write_bytes(_rezipped(_saved(tmp_path), entries=[(info, bytes(64 * 2**20))]))
    tracemalloc.start()
    _refused(tmp_path / "bad.ortlens", "more than 200 times")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_a_size_that_lies_low_is_noticed(tmp_path: Path) -> None:
    data = bytearray(_saved(tmp_path))
    at = data.rindex(b"PK\1\2")
    size = struct.unpack_from("<L", data, at + 24)[0]
    for lie in (0, size - 1, size + 1, 2**32 - 1):
        struct.pack_into("<L", data, at + 24, lie)
        assert isinstance(_outcome(tmp_path / "bad.ortlens", bytes(data)), CaptureError)


@pytest.mark.parametrize(
    ("limit", "most", "message"),
    [
        ("MAX_TOTAL_BYTES", 1000, "bytes unpacked are more than the 1000"),
        ("MAX_MANIFEST_BYTES", 100, r"member 'manifest\.json' has \d+ bytes; 100 are allowed"),
        ("MAX_MEMBERS", 10, "the zip directory has 16 entries in .* 10 entries are allowed"),
    ],
)
def test_too_much_in_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, message: str) -> None:
    path = store.save(small_capture(), tmp_path / "good.ortlens")
    monkeypatch.setattr(store, limit, most)
    _refused(path, message)


def test_a_directory_that_lies_about_its_entries_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(_saved(tmp_path))
    struct.pack_into("<HH", data, len(data) - 14, 3, 3)
    monkeypatch.setattr(store, "MAX_MEMBERS", 10)
    (tmp_path / "bad.ortlens").write_bytes(data)
    _refused(tmp_path / "bad.ortlens", "16 members are more than the 10")


def _entry(name: str, **attributes: int) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    for attribute, value in attributes.items():
        setattr(made, attribute, value)
    return made


def _nameless() -> zipfile.ZipInfo:
    made = _Nameless("x")
    made.filename = ""
    return made


def _added(name: str | zipfile.ZipInfo, content: bytes = b"evil") -> Damage:
    return lambda good: _rezipped(good, entries=[(name, content)])


def _named(name: str) -> Damage:
    """With a member of this name. Python's writer would clean it, so it is put in afterwards."""
    plain = "x" * len(name.encode())
    return lambda good: _added(zipfile.ZipInfo(plain))(good).replace(plain.encode(), name.encode())


def _without_the_model(*entries: tuple[str, bytes]) -> Damage:
    return lambda good: _rezipped(good, without=("models/m0.onnx",), entries=entries)


def _encrypted(good: bytes) -> bytes:
    data = bytearray(_added("models/x", b"x")(good))
    data[data.rindex(b"PK\1\2") + 8] |= 1
    return bytes(data)


NAMES = ("../evil", "/etc/evil", "C:\\evil", "a\\b", "models/../../evil", "manifest.json\0.txt", "é.onnx", "NUL")
PARTS = "the zip directory has parts that capture files do not have"
JSON = (
    (b"[" * 10**6, "the JSON is nested too deeply"),
    (b'{"a":' * 10**5, "the JSON is nested too deeply"),
    (b'{"rows": ' + b"9" * 10**6 + b"}", "an integer has 1000000 digits"),
    (b'{"rows": NaN}', "NaN is not JSON"),
    (b"\xff\xfe", "is not valid JSON"),
    (b"{'rows': 1}", "is not valid JSON"),
    (b"[]", "is not a JSON object"),
    (b"", "is not valid JSON"),
    (b'{"rows": 1, "columns": {"graph_id": ["g0"], "node": [["n"]]}}', r"column (target|supported) is missing"),
)
DAMAGED: dict[str, tuple[Damage, str]] = {
    **{f"a member named {name!r}": (_named(name), "the name is not allowed in a capture") for name in NAMES},
    "a member without a name": (_added(_nameless()), "member '': the name is not allowed in a capture"),
    "a name twice": (_added("manifest.json"), "occurs twice"),
    "a name twice but for its case": (_added("MANIFEST.json"), "occurs twice"),
    "a file as a folder": (_added("manifest.json/x"), "one of its folders is also a file"),
    "a link": (_added(_entry("models/link", external_attr=(stat.S_IFLNK | 0o777) << 16)), "member 'models/link' is a symbolic link"),
    "other packing": (_added(_entry("models/x", compress_type=zipfile.ZIP_BZIP2), b"x" * 100), "packed by method 12"),
    "encryption": (_encrypted, "member 'models/x' is encrypted"),
    "a comment": (lambda good: (good[:-2] + struct.pack("<H", 22) + good[-22:])[: len(good)], PARTS),
    "ZIP64": (lambda good: good[:-22] + b"PK\6\7" + bytes(16) + good[-22:], PARTS),
    "a tail": (lambda good: good + b"tail", "not a capture file, or truncated"),
    "a pickle": (lambda _: b"cos\nsystem\n(S'touch evil'\ntR.", "not a capture file"),
    "a member that is missing": (_without_the_model(), r"member 'models/m0\.onnx' is missing"),
    "a member of other content": (_without_the_model(("models/m0.onnx", b"evil" * 50)), r"member 'models/m0\.onnx' was changed"),
    **{f"JSON {n}": (partial(_with_table, text=text), rf"member 'tables/nodes\.json'.*{said}") for n, (text, said) in enumerate(JSON)},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_is_refused_in_words(tmp_path: Path, name: str) -> None:
    damage, message = DAMAGED[name]
    (tmp_path / "bad.ortlens").write_bytes(damage(_saved(tmp_path)))
    _refused(tmp_path / "bad.ortlens", message)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bad.ortlens", "good.ortlens"]
