import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from ortlens import _versions
from ortlens.errors import CaptureError
from ortlens.trace import journal, store
from ortlens.trace import records as r
from ortlens.trace.schema import TABLES, frame_from_records
from tests.unit.trace.strategies import captures, entries_in, journal_of, small_capture


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
        frame = frame_from_records(TABLES[name], getattr(again, name))
        assert len(frame) == len(getattr(capture, name))
        frame.to_csv().encode("utf-8")
        repr(frame).encode("utf-8")


def test_equal_captures_give_equal_bytes(tmp_path: Path) -> None:
    one = replace(small_capture(), environment={"a": "1", "b": "2"}, attachments={"models/a.onnx": b"a", "models/b.onnx": b"b"})
    two = replace(small_capture(), environment={"b": "2", "a": "1"}, attachments={"models/b.onnx": b"b", "models/a.onnx": b"a"})
    first, second = (store.save(capture, tmp_path / f"{n}.ortlens").read_bytes() for n, capture in enumerate((one, two)))
    assert first == second


def test_a_file_is_a_finished_journal(tmp_path: Path) -> None:
    data = store.save(small_capture(), tmp_path / "run.ortlens").read_bytes()
    assert data.startswith(b"ortlens-capture 3\n")
    (head, _), (figures, _), *tables, (model, held), (end, _) = entries_in(data)
    assert head["head"].keys() == {"name", "backend", "environment"}
    assert "figures" in figures
    assert [entry["table"] for entry, _ in tables] == sorted(TABLES)
    assert ((model["attach"], held), end["entries"]) == (next(iter(small_capture().attachments.items())), len(TABLES) + 4)
    runs = json.loads(next(text for entry, text in tables if entry["table"] == "runs"))
    assert list(runs) == [column.name for column in TABLES["runs"].columns]
    assert (runs["call"], runs["session_id"]) == ([3], [None])


def test_an_earlier_capture_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    store.save(small_capture(), tmp_path / "run")
    store.save(r.Capture(name="second"), tmp_path / "run")
    assert store.load(tmp_path / "run") == r.Capture(name="second")
    assert os.listdir(tmp_path) == ["run"]  # noqa: PTH208 - names only


def test_folders_are_refused_and_never_touched(tmp_path: Path) -> None:
    (tmp_path / "folder" / "empty").mkdir(parents=True)
    for name in ("folder", "new" + os.sep):
        with pytest.raises(CaptureError, match="this names a folder, and a capture is a file, such as run"):
            store.save(r.Capture(), os.path.join(tmp_path, name))  # noqa: PTH118 - pathlib drops the separator at the end
    with pytest.raises(CaptureError, match=r"cannot save the capture to .*missing"):
        store.save(r.Capture(), tmp_path / "missing" / "run.ortlens")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "empty"]


def test_a_file_is_replaced_in_one_step_not_rewritten(tmp_path: Path) -> None:
    path = store.save(small_capture(), tmp_path / "run.ortlens")
    (tmp_path / "held.ortlens").hardlink_to(path)
    store.save(r.Capture(), path)
    # Whoever holds the old file still has the whole of it: no byte of it was written over.
    assert store.load(tmp_path / "held.ortlens") == small_capture()
    assert store.load(path) == r.Capture()


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
        ({3: b""}, "the name is not text"),
        ({"models/a": "text"}, "str is not bytes"),
        ({"models/a": b"", "models/A": b""}, "occurs twice"),
        ({"models/a": b"", "models/a/b": b""}, "one of its folders is also a file"),
    ],
)
def test_ambiguous_attachments_are_not_saved(tmp_path: Path, attachments: dict[Any, Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        store.save(r.Capture(attachments=attachments), tmp_path / "run.ortlens")


@pytest.mark.parametrize(
    ("limit", "said", "read"),
    [
        ("MAX_TEXT_BYTES", "table breaks: .* bytes are more than the 20", "more than 20"),
        ("MAX_TOTAL_BYTES", "bytes are more than the 20", "damaged, or cut off, after 0"),
        ("MAX_ATTACHMENTS", "1 attachments are more than 0", "there are more than 0 attachments"),
    ],
)
def test_limits_hold_for_writer_and_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, said: str, read: str) -> None:
    path = store.save(small_capture(), tmp_path / "run.ortlens")
    monkeypatch.setattr(journal, limit, 0 if limit == "MAX_ATTACHMENTS" else 20)
    with pytest.raises(CaptureError, match=said):
        store.save(small_capture(), tmp_path / "other.ortlens")
    with pytest.raises(CaptureError, match=read):
        store.load(path)
    assert os.listdir(tmp_path) == ["run.ortlens"]  # noqa: PTH208 - names only


def test_a_model_of_zeros_can_be_saved_and_loaded(tmp_path: Path) -> None:
    # It would deflate a thousandfold, which the reader refuses, so the writer stores it plainly.
    capture = r.Capture(attachments={"models/m0.onnx": bytes(2 * journal.RATIO_FREE_BYTES), "models/m1.onnx": bytes(1000)})
    path = store.save(capture, tmp_path / "run.ortlens")
    assert store.load(path) == capture
    assert path.stat().st_size > 2 * journal.RATIO_FREE_BYTES


def test_a_record_that_does_not_fit_names_its_place(tmp_path: Path) -> None:
    part = r.LedgerPart(graph_id="g0", part="run", ns=2**63, share=math.inf)
    with pytest.raises(CaptureError, match=r"cannot save the capture to .*run\.ortlens: table ledger, row 0, column ns"):
        store.save(r.Capture(ledger=(part,)), tmp_path / "run.ortlens")


def test_a_source_tree_that_is_not_installed_can_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_versions, "version", missing)
    assert entries_in(store.save(small_capture(), tmp_path / "run").read_bytes())[0][0]["ortlens"] == "unknown"


def _edited(path: Path, kind: str, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
    """Change a saved capture as another writer would: an entry, and the JSON of a table behind it."""
    made = []
    for entry, held in entries_in(store.save(small_capture(), path).read_bytes()):
        content = json.loads(held) if held and "table" in entry else {}
        if kind in entry or entry.get("table") == kind:
            change(entry, content)
        if entry:
            made.append((entry, json.dumps(content).encode() if content or entry.get("table") == kind else held))
    path.write_bytes(journal_of(made))
    return path


def test_what_a_newer_writer_adds_within_the_version_is_ignored(tmp_path: Path) -> None:
    path = _edited(tmp_path / "run", "nodes", lambda _, columns: columns.update(colour=["red"]))
    *entries, (end, _) = entries_in(path.read_bytes())
    more = [({"table": "colours", "rows": 1}, b"not even JSON"), ({"music": "loud"}, b""), ({**end, "entries": end["entries"] + 2}, b"")]
    path.write_bytes(journal_of([*entries, *more]))
    assert store.load(path) == small_capture()


def test_what_an_older_writer_lacks_takes_its_default(tmp_path: Path) -> None:
    path = _edited(tmp_path / "run", "nodes", lambda _, columns: columns.pop("line"))
    kept = [(entry, held) for entry, held in entries_in(path.read_bytes()) if entry.get("table") != "ledger"]
    kept[-1][0]["entries"] -= 1
    path.write_bytes(journal_of(kept))
    assert store.load(path) == replace(small_capture(), ledger=())


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("head", lambda entry, _: entry["head"].update(name=3), "its name or backend is not text"),
        ("head", lambda entry, _: entry["head"].update(environment={"a": 1}), "its environment is not a JSON object of texts"),
        ("end", lambda entry, _: entry.update(entries=2), "damaged, or cut off, after"),
        ("end", lambda entry, _: entry.pop("entries"), "damaged, or cut off, after"),
        ("nodes", lambda entry, _: entry.update(rows=2), "has 1 values for 2 rows"),
        ("nodes", lambda entry, _: entry.update(rows=True), "has no number of rows"),
        ("nodes", lambda _, columns: columns.update(graph_id=3), "column graph_id is 3, not a list"),
        ("nodes", lambda _, columns: columns.clear(), "table nodes: column graph_id is missing"),
    ],
)
def test_a_wrong_entry_is_refused(tmp_path: Path, kind: str, change: Any, message: str) -> None:  # noqa: ANN401 - a function
    path = _edited(tmp_path / "run", kind, change)
    with pytest.raises(CaptureError, match=f"cannot load the capture .*run: .*{message}"):
        store.load(path)
