import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import ortlens
from ortlens import _versions, cli, doctor
from ortlens.cli import entry
from ortlens.doctor import Check
from ortlens.errors import OptionalDependencyError
from ortlens.trace import store
from ortlens.trace.records import Capture
from ortlens.trace.schema import SHOWN_TABLES, TABLES
from ortlens.views.actions import records_of
from ortlens.views.capture_view import SavedCapture
from ortlens.views.rendering import summary
from ortlens.views.wording import COMMAND
from tests.answers import answered
from tests.unit.views.sample_captures import SAMPLES


@pytest.fixture
def saved(tmp_path: Path) -> str:
    return str(store.save(SAMPLES["demo_like"], tmp_path / "run.ortlens"))


def test_version_with_the_arguments_of_the_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ortlens", "--version"])
    assert cli.main() == 0
    assert capsys.readouterr().out == f"ortlens {ortlens.__version__}\n"


def test_an_unknown_command_names_the_near_one_and_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["shwo", "x"]) == 2
    names = ", ".join(entry.commands_of(entry.parser()))
    assert capsys.readouterr().err == f"ortlens: there is no command 'shwo'. Did you mean show? The commands are: {names}.\n"
    assert cli.main(["zzz"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["show", *arguments]) == 0
    return capsys.readouterr().out


def test_show_prints_the_overview(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, saved).rstrip("\n") == summary(SAMPLES["demo_like"], hints=COMMAND)
    overview = answered(shown(capsys, saved, "--json"))
    assert (overview["graph_count"], overview["coverage"]["verdict"], len(overview["breaks"])) == (3, "part", 1)


def test_findings_are_shown_with_their_own_columns_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = str(store.save(SAMPLES["training"], tmp_path / "training.ortlens"))
    heads = shown(capsys, saved, "--table", "findings", "--wide").split("\n")[0].split()
    assert {*heads} <= {"gain", "place", *(column.name for column in TABLES["findings"].columns)}


def test_show_prints_every_table_in_every_form(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, about in SHOWN_TABLES.items():
        records, columns = records_of(SAMPLES["demo_like"], name), [column.name for column in about.columns]
        rows = answered(shown(capsys, saved, "--table", name, "--json"))["rows"]
        assert [list(row) for row in rows] == [columns] * len(records)
        table = list(csv.reader(io.StringIO(shown(capsys, saved, "--table", name, "--csv"))))
        assert (table[0], len(table)) == (columns, len(records) + 1)
        assert shown(capsys, saved, "--table", name).startswith(tuple(columns) if records else "no rows")
    (row,) = csv.DictReader(io.StringIO(shown(capsys, saved, "--table", "breaks", "--csv")))
    assert json.loads(row["hints"]) == list(SAMPLES["demo_like"].breaks[0].hints)
    assert row["function"] == ""
    assert "... and 3 more rows" in shown(capsys, saved, "--table", "sessions", "--rows", "1")
    assert "more row" not in shown(capsys, saved, "--table", "sessions", "--rows", "0")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ORTLENS_DEBUG", "1")
    assert cli.main(["show", "gone.ortlens"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (ValueError("odd"), 2)])
def test_what_nobody_expected_is_told_in_a_sentence(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(doctor, "examine", fail)
    assert cli.main(["doctor"]) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert ("unexpected ValueError: odd" in err) is (code == 2)


def test_a_terminal_gets_its_own_width_and_one_without_unicode_ascii(
    saved: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert max(map(len, shown(capsys, saved).split("\n"))) <= 70
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert cli.main(["show", saved]) == 0
    assert b"###################. 27 of 28" in raw.getvalue()


@pytest.mark.skipif(os.name == "nt", reason="pipes of another kind")
def test_a_closed_pipe_is_no_error(saved: str) -> None:
    program = "import sys; from ortlens.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "show", saved, "--table", "graphs", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("difference", [1e-7, 0.5])
def test_demo_compares_saves_and_says_what_is_next(
    difference: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_match = difference < 1e-4
    result = SimpleNamespace(is_match=is_match, calls=20, max_abs_difference=difference, lens=SavedCapture(SAMPLES["demo_like"]))
    monkeypatch.setitem(sys.modules, "ortlens.demo", SimpleNamespace(run_demo=lambda: result))
    path = tmp_path / "demo.ortlens"
    assert cli.main(["demo", "--save", str(path)]) == (0 if is_match else 1)
    out = capsys.readouterr().out
    assert ("Results match" in out) is is_match
    assert f"{difference:.1e}" in out
    assert summary(SAMPLES["demo_like"], hints=COMMAND) in out
    assert f"ortlens show {path} --table fallbacks" in out
    assert "ortlens demo --html demo.html" in out
    assert store.load(path) == SAMPLES["demo_like"]
    assert cli.main(["demo", "--json"]) == (0 if is_match else 1)
    assert answered(capsys.readouterr().out)["is_match"] is is_match
    page = tmp_path / "demo.html"
    cli.main(["demo", "--html", str(page)])
    assert f"open {page} in a browser" in capsys.readouterr().out
    assert page.is_file()


def test_demo_without_a_package_says_which(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: str) -> None:
        raise OptionalDependencyError("torch is not installed: pip install torch")

    monkeypatch.setattr(_versions, "check_supported", refuse)
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == "ortlens: torch is not installed: pip install torch\n"


@pytest.mark.parametrize("status", ["ok", "error"])
def test_doctor_exits_1_when_the_main_job_cannot_run(
    status: doctor.Status, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = (Check(name="torch", status=status, found="2.13", advice="pip install torch"), Check(name="a", status="warning", found="x"))
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    code = 0 if status == "ok" else 1
    assert cli.main(["doctor"]) == code
    out = capsys.readouterr().out
    assert "torch  2.13" in out
    assert "-> pip install torch" in out
    assert cli.main(["doctor", "--json"]) == code
    answer = answered(capsys.readouterr().out)
    assert answer["ready"] is (status == "ok")
    assert answer["checks"][1] == {"name": "a", "status": "warning", "found": "x", "advice": ""}


RECORDED = Path(__file__).parents[2] / "data" / "captures" / "demo.ortlens"


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
    assert written_in(folder) == {*(f"{table}.{form}" for table in SHOWN_TABLES), *capture.attachments}
    for name, data in capture.attachments.items():
        assert (folder / name).read_bytes() == data
    assert str(folder) in capsys.readouterr().out
    for name, table in SHOWN_TABLES.items():
        columns, count = rows_of(folder / f"{name}.{form}")
        assert columns == [column.name for column in table.columns] or (form, count) == ("json", 0)
        assert count == len(records_of(capture, name)), "those of the rules, too"


def test_some_tables_alone(tmp_path: Path) -> None:
    assert cli.main(["export", str(RECORDED), str(tmp_path / "x"), "--table", "runs", "sessions", "--table", "runs"]) == 0
    assert written_in(tmp_path / "x") == {"runs.csv", "sessions.csv"}


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
        "runs.csv",
    ]
    hostile = Capture(attachments=dict.fromkeys([*names, "models/\x1b[2J.onnx"], b"x"))
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
