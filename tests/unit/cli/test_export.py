import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ortlens import cli
from ortlens.trace import store
from ortlens.trace.records import Capture
from ortlens.trace.schema import TABLES
from tests.unit.views.sample_captures import SAMPLES

RECORDED = Path(__file__).parents[2] / "data" / "captures" / "demo.ortlens"


@pytest.fixture
def saved(tmp_path: Path) -> str:
    return str(store.save(SAMPLES["demo_like"], tmp_path / "run.ortlens"))


def written_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def rows_of(path: Path) -> tuple[list[str], int]:
    """The columns and the number of rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file)) if path.suffix == ".csv" else json.load(file)
    return (rows[0], len(rows) - 1) if path.suffix == ".csv" else (list(rows[0]) if rows else [], len(rows))


@pytest.mark.parametrize("form", ["csv", "json"])
def test_every_table_and_model_is_a_file_with_every_row_and_column(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    capture = replace(store.load(RECORDED), attachments={"models/m0.onnx": b"as written", "models/m0.optimized.onnx": b"as run"})
    assert cli.main(["export", str(store.save(capture, tmp_path / "run.ortlens")), str(folder), "--format", form]) == 0
    assert written_in(folder) == {*(f"{table}.{form}" for table in TABLES), *capture.attachments}
    for name, data in capture.attachments.items():
        assert (folder / name).read_bytes() == data
    assert str(folder) in capsys.readouterr().out
    for name, table in TABLES.items():
        columns, count = rows_of(folder / f"{name}.{form}")
        assert columns == [column.name for column in table.columns] or (form, count) == ("json", 0)
        assert count >= len(getattr(capture, name)), "and those of the rules"


def test_some_tables_alone(tmp_path: Path) -> None:
    assert cli.main(["export", str(RECORDED), str(tmp_path / "x"), "--table", "runs", "sessions", "--table", "runs"]) == 0
    assert written_in(tmp_path / "x") == {"runs.csv", "sessions.csv"}
    assert cli.main(["export", str(RECORDED), str(tmp_path / "y"), "--format", "json", "--table", "findings"]) == 0
    assert len(json.loads((tmp_path / "y" / "findings.json").read_text())) > len(store.load(RECORDED).findings), "those of the rules"


def test_nothing_is_replaced_without_force(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "runs.csv").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    assert cli.main(["export", saved, str(folder)]) == 2
    assert "runs.csv would be replaced" in capsys.readouterr().err
    assert written_in(folder) == {"runs.csv", "notes.txt"}
    assert (folder / "runs.csv").read_text() == "mine"
    assert cli.main(["export", saved, str(folder), "--force"]) == 0
    assert (folder / "runs.csv").read_text() != "mine"
    assert (folder / "notes.txt").read_text() == "mine"


def test_places_that_cannot_be_written_to(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["export", saved, str(tmp_path / "file")]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err
    assert cli.main(["export", saved, str(tmp_path / "file" / "below")]) == 2
    assert "cannot write" in capsys.readouterr().err
    (tmp_path / "z" / "runs.csv").mkdir(parents=True)
    assert cli.main(["export", saved, str(tmp_path / "z"), "--force"]) == 2
    assert "runs.csv is a folder" in capsys.readouterr().err
    assert written_in(tmp_path / "z") == set()
    assert cli.main(["export", saved, str(tmp_path / "y"), "--format", "trace", "--table", "runs"]) == 2
    assert "the format trace contains no tables" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["empty", "foreign", "training", "hostile", "measured", "told"])
def test_every_capture_exports(name: str, tmp_path: Path) -> None:
    path = str(store.save(SAMPLES[name], tmp_path / "run.ortlens"))
    for form in ("csv", "json", "trace"):
        assert cli.main(["export", path, str(tmp_path / "x"), "--format", form]) == 0
    for file in written_in(tmp_path / "x"):
        if file.endswith(".json"):
            json.loads((tmp_path / "x" / file).read_text(encoding="utf-8"), parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))


def test_attachments_stay_inside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses such names; whoever finds a way around it does not get out of the folder here."""
    names = [
        "models/m0.onnx",
        "../up.onnx",
        "/abs.onnx",
        "a/../../up.onnx",
        "C:\\up.onnx",
        "a\\..\\up.onnx",
        "models/../up.onnx",
        "models/\x1b[2J.onnx",
        "runs.csv",
    ]
    hostile = Capture(attachments=dict.fromkeys(names, b"x"))
    monkeypatch.setattr(store, "load", lambda _: hostile)
    assert cli.main(["export", "any", str(tmp_path / "x" / "y")]) == 0
    assert {file for file in written_in(tmp_path) if file.endswith(".onnx")} == {"x/y/models/m0.onnx"}
    assert (tmp_path / "x" / "y" / "runs.csv").read_bytes() != b"x"


def test_the_report_of_a_saved_capture(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", saved, "-o", str(tmp_path / "out.html"), "--title", "Nightly <run>"]) == 0
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "Nightly &lt;run&gt;" in page
    assert "Nightly <run>" not in page.partition("</head>")[0]
    assert str(tmp_path / "out.html") in capsys.readouterr().out
    assert cli.main(["report", saved, "-o", str(tmp_path / "out.html"), "--redact"]) == 0


def test_the_report_goes_beside_the_capture_and_replaces_only_what_was_named(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", saved]) == 0
    before = (tmp_path / "run.html").stat().st_mtime_ns
    assert cli.main(["report", saved]) == 2
    assert "use -o" in capsys.readouterr().err
    assert (tmp_path / "run.html").stat().st_mtime_ns == before
    assert cli.main(["report", saved, "-o", str(tmp_path / "gone" / "x.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err
