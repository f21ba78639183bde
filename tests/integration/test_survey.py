"""Surveys of real models: what ends one case leaves the others alone, nothing runs twice, and a lost worker loses nothing."""

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

import ortlens
from ortlens import cli
from ortlens.errors import UsageError
from ortlens.studies.child import VARIABLE
from tests.answers import answered
from tests.integration import survey_cases

HERE = survey_cases.__name__
CRASHES = {"target": survey_cases.crashes, "calls": 1}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line per model that a case made, with its process and the one that started it."""
    file = tmp_path / "notes"
    file.touch()
    monkeypatch.setenv("SURVEY_TEST_NOTES", str(file))
    return file


def made(notes: Path) -> Counter[str]:
    return Counter(line.split(" ")[0] for line in notes.read_text(encoding="utf-8").splitlines())


def statuses(frame: pd.DataFrame) -> dict[str, str]:
    return dict(zip(frame.case, frame.status, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(27, marks=pytest.mark.soak)])
def test_what_ends_a_case_leaves_the_others_alone_and_only_what_is_missing_runs_again(count: int, tmp_path: Path, notes: Path) -> None:
    folder = tmp_path / "out"
    cases = {**survey_cases.quick(survey_cases.many(count)), "crashes": CRASHES}
    frame = ortlens.survey(cases, folder=folder, reports=False, workers=2)
    assert statuses(frame) == {name: "crashed" if name == "crashes" else "ok" for name in cases}
    good = frame[frame.status == "ok"]
    assert (good.coverage == 1.0).all()
    assert (good.partitions == 1).all()
    assert "SIGSEGV" in frame.reason.iloc[-1]
    assert all(len(ortlens.load(path).sessions) == 1 for path in good.capture)
    first = made(notes)
    assert sum(first.values()) == count

    (Path(frame.capture.iloc[0]).parent / "row.json").write_text("{", encoding="utf-8")
    slow = {"target": survey_cases.waits, "args": (1.0, 0), "calls": 1}
    limited = {**cases, "slow": {**slow, "time_limit": 1.0}}
    again = ortlens.survey(limited, folder=folder, reports=False)
    assert list(again.kept) == [False, *[True] * count, False]
    assert statuses(again) == {**statuses(frame), "slow": "timeout"}
    assert made(notes) - Counter({"waits-0": 1}) == first + Counter({again.case.iloc[0].replace(" ", "-"): 1})
    lower = ortlens.survey({**cases, "slow": {**slow, "time_limit": 0.5}}, folder=folder, reports=False)
    assert lower.kept.all()
    raised = ortlens.survey({"slow": slow}, folder=folder, reports=False)
    assert (list(raised.kept), list(raised.status)) == ([False], ["ok"])


@pytest.mark.slow
def test_the_command_runs_models_under_options_and_writes_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["survey", f"{HERE}:CASES", "-o", str(out), "--only", "broken", "--options", "min_partition_nodes=1"]
    arguments += ["--options", "min_partition_nodes=50", "--verify", "--json", "--workers", "1"]
    assert cli.main(arguments) == 0
    streams = capsys.readouterr()
    rows = answered(streams.out)["rows"]
    assert [(row["case"], row["options"], row["status"]) for row in rows] == [
        ("broken", "min_partition_nodes=1", "ok"),
        ("broken", "min_partition_nodes=50", "ok"),
    ]
    assert [row["coverage"] > 0 for row in rows] == [True, False]
    assert (rows[0]["breaks"], rows[0]["fallbacks"], rows[0]["wrong"]) == (1, ["aten._linalg_svd.default (1)"], 0)
    assert min(rows[0]["call_ns"], rows[0]["eager_ns"]) > 0
    assert all(Path(row["report"]).is_file() for row in rows)
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count('<tbody data-status="ok"') == 2
    assert "broken (min_partition_nodes=50): ok, " in streams.err


def test_a_case_that_surveys_while_it_is_imported_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(UsageError, match="below `if __name__ == '__main__':`"):
        ortlens.survey(["torch:relu"])


@pytest.mark.slow
def test_ctrl_c_ends_the_cases_and_keeps_what_was_done(tmp_path: Path, notes: Path) -> None:
    def interrupt() -> None:
        while "waits-1" not in notes.read_text(encoding="utf-8"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    cases = {str(number): {"target": survey_cases.waits, "args": (60.0 * number, number), "calls": 1} for number in range(3)}
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        ortlens.survey(cases, folder=tmp_path / "out", workers=1, reports=False)
    assert made(notes) == {"waits-0": 1, "waits-1": 1}
    assert '<tbody data-status="ok"' in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    again = ortlens.survey({"0": cases["0"]}, folder=tmp_path / "out", reports=False)
    assert list(again.kept) == [True]


@pytest.mark.slow
def test_a_killed_worker_of_a_cluster_loses_nothing(tmp_path: Path, notes: Path) -> None:
    distributed = pytest.importorskip("distributed")
    cases = {
        "other": {"target": survey_cases.waits, "args": (0.1, 0), "calls": 1},
        "victim": {"target": survey_cases.waits_for_release, "calls": 1},
        "crashes": CRASHES,
    }
    killed: list[int] = []

    def kill() -> None:
        while not (lines := [line for line in notes.read_text(encoding="utf-8").splitlines() if line.startswith("victim ")]):
            time.sleep(0.02)
        killed.extend(map(int, lines[0].split(" ")[1:]))
        os.kill(killed[1], signal.SIGKILL)
        Path(f"{notes}.release").touch()

    threading.Thread(target=kill).start()
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        frame = ortlens.survey(cases, client, folder=tmp_path / "out", reports=False)
        assert statuses(frame) == {"other": "ok", "victim": "ok", "crashes": "crashed"}
        before = made(notes)
        assert before["victim"] == 2, "what the worker was at ran again"
        assert not Path(f"/proc/{killed[0]}").exists(), "the case ended with its worker"
        assert ortlens.survey(cases, client, folder=tmp_path / "out", reports=False).kept.all()
        assert made(notes) == before
