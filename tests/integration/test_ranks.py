"""Ranks of gloo under `torchrun`, each recorded by `ortlens run`, merged: planted differences are named, and nothing else of them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ortlens
from ortlens import cli
from tests.integration import rank_script

pytestmark = pytest.mark.slow
RANK_RULES = ("rank_break", "rank_recompiles", "rank_graphs", "rank_sessions")


def recorded(folder: Path, fault: str) -> list[Path]:
    command = [sys.executable, "-m", "ortlens", "run", "--quiet", "--backend", "ortlens", "-o", str(folder / "t.ortlens")]
    command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", rank_script.__file__, fault]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    files = sorted(folder.glob("t.rank*.ortlens"))
    assert len(files) == 2
    return files


def findings_in(view: ortlens.SavedCapture, *rules: str) -> list[Any]:
    return [row for row in view.findings.itertuples() if row.rule in rules]


def test_a_break_on_one_rank_is_named_with_its_rank_and_line_and_explains_its_other_graphs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = recorded(tmp_path, "break")
    view = ortlens.merge(files)
    before, _, _ = Path(rank_script.__file__).read_text(encoding="utf-8").partition("graph_break()")
    (row,) = findings_in(view, *RANK_RULES)
    assert (row.rule, Path(row.file).name, row.line) == ("rank_break", "rank_script.py", before.count("\n") + 1)
    assert list(view.breaks["rank"]) == [1]

    assert cli.main(["merge", *map(str, files), "-o", str(tmp_path / "all.ortlens"), "--html", str(tmp_path / "all.html")]) == 0
    assert "rank 1 only" in capsys.readouterr().out
    assert ortlens.load(tmp_path / "all.ortlens").captured() == view.captured()
    assert (tmp_path / "all.html").is_file()


def test_a_straggler_is_named_and_nothing_of_ranks_that_are_equal_but_for_time(tmp_path: Path) -> None:
    view = ortlens.merge(recorded(tmp_path, "delay"))
    assert set(view.graphs["rank"]) == set(view.runs["rank"]) == {0, 1}
    (row,) = findings_in(view, *RANK_RULES, "straggler")
    assert (row.rule, row.subject) == ("straggler", "rank 1")
    assert "the delay is outside compiled code" in row.evidence
    assert row.gain_ns > 50_000_000
