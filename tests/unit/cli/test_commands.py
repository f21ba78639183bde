import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import ortlens
from ortlens import _versions, cli, doctor
from ortlens.cli import entry
from ortlens.doctor import Check
from ortlens.errors import OptionalDependencyError
from ortlens.trace import store
from ortlens.trace.schema import TABLES
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
    for name, about in TABLES.items():
        records, columns = getattr(SAMPLES["demo_like"], name), [column.name for column in about.columns]
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
