from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import sys
import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

from ortlens import _files, _versions
from ortlens.errors import CaptureError
from ortlens.trace import records as r
from ortlens.trace import store
from ortlens.trace.schema import TABLES, frame_from_capture
from tests.unit.trace.strategies import captures, small_capture

if TYPE_CHECKING:
    from collections.abc import Callable

FORMS = pytest.mark.parametrize("name", ["run.ortlens", "run"], ids=["zip", "folder"])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(capture=captures())
def test_any_capture_survives_and_becomes_frames_that_print_and_export(tmp_path: Path, capture: r.Capture) -> None:
    path = store.save(capture, tmp_path / "run.ortlens")
    again = store.load(path)
    # NaN equals nothing; repr tells all other values apart. The order of the two mappings is not part of a capture.
    assert repr(replace(again, environment={}, attachments={})) == repr(replace(capture, environment={}, attachments={}))
    assert again.environment == capture.environment
    assert again.attachments == capture.attachments
    for name in TABLES:
        frame = frame_from_capture(again, name)
        assert len(frame) == len(getattr(capture, name))
        frame.to_csv().encode("utf-8")
        repr(frame).encode("utf-8")


def test_equal_captures_give_equal_bytes(tmp_path: Path) -> None:
    one = replace(small_capture(), environment={"a": "1", "b": "2"}, attachments={"models/a.onnx": b"a", "models/b.onnx": b"b"})
    two = replace(small_capture(), environment={"b": "2", "a": "1"}, attachments={"models/b.onnx": b"b", "models/a.onnx": b"a"})
    first, second = (store.save(capture, tmp_path / f"{n}.ortlens").read_bytes() for n, capture in enumerate((one, two)))
    assert first == second


def test_file_is_a_plain_zip_with_the_documented_members(tmp_path: Path) -> None:
    path = store.save(small_capture(), tmp_path / "run.ortlens")
    with zipfile.ZipFile(path) as opened:
        assert opened.testzip() is None
        names = opened.namelist()
        manifest = json.loads(opened.read("manifest.json"))
        runs = json.loads(opened.read("tables/runs.json"))
        # Neither the clock nor the operating system of the writer shows.
        assert {(info.create_system, info.date_time) for info in opened.infolist()} == {(3, (1980, 1, 1, 0, 0, 0))}
    assert names == ["manifest.json", "models/m0.onnx", *sorted(f"tables/{name}.json" for name in TABLES)]
    assert (manifest["format"], manifest["schema_version"]) == ("ortlens-capture", r.SCHEMA_VERSION)
    assert manifest["tables"] == dict.fromkeys(TABLES, 1)
    assert runs["rows"] == 1
    assert list(runs["columns"]) == [column.name for column in TABLES["runs"].columns]
    assert (runs["columns"]["call"], runs["columns"]["session_id"]) == ([3], [None])


@pytest.mark.parametrize(
    ("name", "is_folder"), [("a.ortlens", False), ("a.ORTLENS", False), ("a", True), ("a.zip", True), ("a.ortlens" + os.sep, True)]
)
def test_the_name_decides_between_file_and_folder(tmp_path: Path, name: str, is_folder: bool) -> None:  # noqa: FBT001 - parametrised
    path = store.save(small_capture(), os.path.join(tmp_path, name))  # noqa: PTH118 - pathlib drops the separator at the end
    assert path.is_dir() is is_folder
    assert store.load(path) == store.load(os.path.join(path, "") if is_folder else path) == small_capture()  # noqa: PTH118 - as above


def test_an_existing_empty_folder_is_filled_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.ortlens").mkdir()
    assert store.save(small_capture(), tmp_path / "a.ortlens").is_dir()


@FORMS
def test_an_earlier_capture_is_replaced_and_nothing_else_is_left(tmp_path: Path, name: str) -> None:
    store.save(small_capture(), tmp_path / name)
    store.save(r.Capture(name="second"), tmp_path / name)
    assert store.load(tmp_path / name) == r.Capture(name="second")
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208 - names only


def test_files_and_folders_of_others_are_never_touched(tmp_path: Path) -> None:
    store.save(small_capture(), tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine", encoding="utf-8")
    store.save(small_capture(), tmp_path / "damaged")
    (tmp_path / "damaged" / "manifest.json").write_text("{", encoding="utf-8")
    (tmp_path / "folders" / "empty").mkdir(parents=True)
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for name, message in (
        ("run", r"the folder contains other files, such as 'notes\.txt'"),
        ("damaged", "the folder contains other files"),
        ("folders", "contains other files, such as 'empty'"),
        ("file", r"this is a file; a name ending in \.ortlens saves a file"),
    ):
        with pytest.raises(CaptureError, match=message):
            store.save(r.Capture(), tmp_path / name)
    assert [(tmp_path / name).read_text(encoding="utf-8") for name in ("run/notes.txt", "file")] == ["mine"] * 2
    assert (tmp_path / "folders" / "empty").is_dir()
    assert (tmp_path / "damaged" / "models" / "m0.onnx").exists()
    assert store.load(tmp_path / "run") == small_capture()


@FORMS
def test_a_missing_parent_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CaptureError, match=r"cannot save the capture to .*missing"):
        store.save(r.Capture(), tmp_path / "missing" / name)
    assert not list(tmp_path.iterdir())


def _full_disk(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_is_replaced_in_one_step_not_rewritten(tmp_path: Path) -> None:
    path = store.save(small_capture(), tmp_path / "run.ortlens")
    (tmp_path / "held.ortlens").hardlink_to(path)
    store.save(r.Capture(), path)
    # Whoever holds the old file still has the whole of it: no byte of it was written over.
    assert store.load(tmp_path / "held.ortlens") == small_capture()
    assert store.load(path) == r.Capture()


@pytest.mark.parametrize("exchange", [None, lambda *_: -1], ids=["no system call", "a file system that cannot"])
def test_a_failed_swap_puts_the_old_folder_back(exchange: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "_exchange", lambda: exchange)
    store.save(small_capture(), tmp_path / "run")
    rename, renamed = Path.rename, []

    def fail_second(self: Path, target: Path) -> Path:
        renamed.append(target)
        if len(renamed) == 2:
            _full_disk()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_second)
    with pytest.raises(CaptureError, match="No space left"):
        store.save(r.Capture(), tmp_path / "run")
    monkeypatch.undo()
    assert len(renamed) == 3
    assert store.load(tmp_path / "run") == small_capture()
    assert os.listdir(tmp_path) == ["run"]  # noqa: PTH208 - names only


@pytest.mark.skipif(sys.platform != "linux", reason="a system call of Linux")
def test_a_folder_is_exchanged_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(small_capture(), tmp_path / "run")
    monkeypatch.setattr(Path, "rename", _full_disk)
    store.save(r.Capture(), tmp_path / "run")
    assert store.load(tmp_path / "run") == r.Capture()
    assert os.listdir(tmp_path) == ["run"]  # noqa: PTH208 - names only


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links")
def test_saving_over_a_link_writes_where_it_points(tmp_path: Path) -> None:
    store.save(r.Capture(), tmp_path / "real.ortlens")
    (tmp_path / "link.ortlens").symlink_to("real.ortlens")
    store.save(small_capture(), tmp_path / "link.ortlens")
    assert (tmp_path / "link.ortlens").is_symlink()
    assert store.load(tmp_path / "real.ortlens") == small_capture()


def test_hostile_attachment_names_are_not_saved(tmp_path: Path) -> None:
    paths = ["../x", "/x", "a\\b", "", "a//b", ".hidden", "a/..", "a/b.", "con.onnx", "models/NUL", "é", "a\0b", "a b"]
    for name in (*paths, "x" * 241, "x" * 121):
        with pytest.raises(CaptureError, match="the name is not allowed"):
            store.save(r.Capture(attachments={name: b""}), tmp_path / "run.ortlens")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("attachments", "message"),
    [
        ({"Manifest.json": b""}, "is taken by the capture itself"),
        ({"tables/x.json": b""}, "is taken by the capture itself"),
        ({3: b""}, "the name is not text"),
        ({"models/a": "text"}, "str is not bytes"),
        ({"models/a": b"", "models/A": b""}, "occurs twice"),
        ({"models/a": b"", "models/a/b": b""}, "one of its folders is also a file"),
    ],
)
def test_ambiguous_attachments_are_not_saved(tmp_path: Path, attachments: dict[Any, Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        store.save(r.Capture(attachments=attachments), tmp_path / "run.ortlens")


def test_limits_hold_for_the_writer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, limit, message in (
        (store, "MAX_TABLE_BYTES", "table graphs: .* bytes are more than the 20"),
        (store, "MAX_MANIFEST_BYTES", "the manifest has"),
        (store, "MAX_TOTAL_BYTES", "bytes unpacked are more than the 20"),
        (store, "MAX_MEMBERS", "16 members are more than the 10"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, 10 if limit == "MAX_MEMBERS" else 20)
            with pytest.raises(CaptureError, match=message):
                store.save(small_capture(), tmp_path / "run.ortlens")
    assert not list(tmp_path.iterdir())


def test_a_model_of_zeros_can_be_saved_and_loaded(tmp_path: Path) -> None:
    # It would deflate a thousandfold, which the reader refuses, so the writer stores it plainly.
    capture = r.Capture(attachments={"models/m0.onnx": bytes(2 * store.RATIO_FREE_BYTES), "models/m1.onnx": bytes(1000)})
    path = store.save(capture, tmp_path / "run.ortlens")
    assert store.load(path) == capture
    assert path.stat().st_size > 2 * store.RATIO_FREE_BYTES


def test_a_record_that_does_not_fit_names_its_place(tmp_path: Path) -> None:
    part = r.LedgerPart(graph_id="g0", part="run", ns=2**63, share=math.inf)
    with pytest.raises(CaptureError, match=r"cannot save the capture to .*run\.ortlens: table ledger, row 0, column ns"):
        store.save(r.Capture(ledger=(part,)), tmp_path / "run.ortlens")


def test_a_source_tree_that_is_not_installed_can_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_versions, "version", missing)
    path = store.save(small_capture(), tmp_path / "run")
    assert json.loads((path / "manifest.json").read_text(encoding="utf-8"))["ortlens"] == "unknown"


def _edit(folder: Path, change: Callable[[dict[str, Any]], None], member: str = "manifest.json") -> None:
    """Change a saved folder as another writer would: with a manifest that agrees."""
    path = folder / member
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    data = json.dumps(content).encode()
    path.write_bytes(data)
    if member != "manifest.json":
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        _edit(folder, lambda manifest: manifest["members"].update({member: entry}))


def test_what_a_newer_writer_adds_within_the_schema_is_ignored(tmp_path: Path) -> None:
    path = store.save(small_capture(), tmp_path / "run")
    _edit(path, lambda manifest: manifest.update(colour="red"))
    _edit(path, lambda table: table["columns"].update(colour=["red"]), "tables/nodes.json")
    (path / "tables" / "colours.json").write_bytes(b"not even JSON")
    entry = {"bytes": 13, "sha256": "unused"}
    _edit(path, lambda manifest: manifest["members"].update({"tables/colours.json": entry}))
    assert store.load(path) == small_capture()


def test_what_an_older_writer_lacks_takes_its_default(tmp_path: Path) -> None:
    path = store.save(small_capture(), tmp_path / "run")
    _edit(path, lambda table: table["columns"].pop("line"), "tables/nodes.json")
    (path / "tables" / "ledger.json").unlink()

    def without_ledger(manifest: dict[str, Any]) -> None:
        del manifest["tables"]["ledger"], manifest["members"]["tables/ledger.json"]

    _edit(path, without_ledger)
    assert store.load(path) == replace(small_capture(), ledger=())


def test_a_newer_schema_says_who_wrote_it_and_what_to_do(tmp_path: Path) -> None:
    path = store.save(small_capture(), tmp_path / "run")
    _edit(path, lambda manifest: manifest.update(schema_version=r.SCHEMA_VERSION + 1, ortlens="9.1"))
    with pytest.raises(CaptureError, match=r"written by ortlens 9\.1 with schema 3; .* reads schemas up to 2: upgrade ortlens"):
        store.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not an ortlens capture"),
        ({"schema_version": None}, "the schema version is missing"),
        ({"schema_version": 0}, "not a positive number"),
        ({"schema_version": "2"}, "not a positive number"),
        ({"name": 3}, "name is not text"),
        ({"environment": ["a"]}, "environment is not a JSON object"),
        ({"environment": {"a": 1}}, "environment is not a JSON object of str values"),
        ({"tables": {"nodes": "1"}}, "tables is not a JSON object of int values"),
        ({"members": {"tables/nodes.json": 3}}, "members is not a JSON object"),
        ({"members": {"../x": {"bytes": 1, "sha256": ""}}}, "the name is not allowed"),
        ({"members": {"a": {"bytes": -1, "sha256": ""}}}, "the entry of 'a' has no size and digest"),
        ({"members": {"a": {"bytes": 1}}}, "the entry of 'a' has no size and digest"),
        ({"members": {"a": {"bytes": 2**40, "sha256": ""}}}, "bytes unpacked are more than"),
        ({"members": {}}, "member 'tables/graphs.json' is missing"),
        ({"tables": {}}, "its number of rows differs from the manifest"),
        ({"members": {"tables/graphs.json": {"bytes": 2**27, "sha256": ""}}}, "134217728 bytes; 67108864 are allowed"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = store.save(small_capture(), tmp_path / "run")
    _edit(path, lambda manifest: manifest.update(change))
    with pytest.raises(CaptureError, match=f"cannot load the capture .*run: .*{message}"):
        store.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 2}, "its number of rows differs"),
        ({"rows": True}, "its number of rows"),
        ({"columns": []}, "columns is not a JSON object"),
        ({"columns": {"graph_id": 3}}, "columns is not a JSON object of list values"),
        ({"columns": {}}, "table nodes: column graph_id is missing"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = store.save(small_capture(), tmp_path / "run")
    _edit(path, lambda table: table.update(change), "tables/nodes.json")
    with pytest.raises(CaptureError, match=f"member 'tables/nodes.json'.*{message}|{message}"):
        store.load(path)


@pytest.mark.parametrize("way", ["exchanged", "renamed"])
def test_a_half_removed_folder_has_no_manifest(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an old folder is removed, its manifest goes first: what a kill leaves is never taken for a capture."""
    if way == "renamed":
        monkeypatch.setattr(_files, "_exchange", lambda: None)
    store.save(small_capture(), tmp_path / "run")
    remove, gone = os.unlink, list[str]()

    def noted(path: object, **how: Any) -> None:  # noqa: ANN401 - whatever it is given
        gone.append(Path(os.fsdecode(path)).name)  # type: ignore[arg-type]  # a path
        remove(path, **how)  # type: ignore[arg-type]  # a path

    monkeypatch.setattr(os, "unlink", noted)
    store.save(r.Capture(), tmp_path / "run")
    assert gone[0] == "manifest.json"
    assert len(gone) > len(TABLES)
