"""Four ranks of gloo under `torchrun`, each recorded by `ortlens run`, merged: planted differences are named, and equal ranks have none."""

from __future__ import annotations

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
RANK_RULES = {"rank_break", "rank_recompiles", "rank_graphs", "rank_sessions", "straggler"}
FAULTY = 2


def merged(folder: Path, fault: str) -> ortlens.SavedCapture:
    command = [sys.executable, "-m", "ortlens", "run", "--quiet", "--backend", "ortlens", "-o", str(folder / "t.ortlens")]
    command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", rank_script.__file__, fault, str(FAULTY)]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    files = sorted(folder.glob("t.rank*.ortlens"))
    assert len(files) == 4
    return ortlens.merge(files)


def findings_in(view: ortlens.SavedCapture) -> list[Any]:
    return [row for row in view.findings.itertuples() if row.rule in RANK_RULES]


def test_equal_ranks_have_no_finding(tmp_path: Path) -> None:
    view = merged(tmp_path, "none")
    assert set(view.graphs["rank"]) == {0, 1, 2, 3}
    assert set(view.runs["rank"]) == {0, 1, 2, 3}
    assert findings_in(view) == []


def test_a_break_on_one_rank_is_named_with_its_rank_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = merged(tmp_path, "break")
    before, _, _ = Path(rank_script.__file__).read_text(encoding="utf-8").partition("graph_break()")
    line = before.count("\n") + 1
    (row,) = findings_in(view)
    assert (row.rule, Path(row.file).name, row.line) == ("rank_break", "rank_script.py", line)
    assert f"rank {FAULTY} only" in row.title
    assert list(view.breaks["rank"]) == [FAULTY]

    files = [str(file) for file in sorted(tmp_path.glob("t.rank*.ortlens"))]
    assert cli.main(["merge", *files, "-o", str(tmp_path / "all.ortlens"), "--html", str(tmp_path / "all.html")]) == 0
    assert f"rank {FAULTY} only" in capsys.readouterr().out
    assert ortlens.load(tmp_path / "all.ortlens").captured() == view.captured()
    assert (tmp_path / "all.html").is_file()


def test_a_straggler_is_named(tmp_path: Path) -> None:
    (row,) = findings_in(merged(tmp_path, "delay"))
    assert (row.rule, row.subject) == ("straggler", f"rank {FAULTY}")
    assert "the delay is outside compiled code" in row.evidence
    assert row.gain_ns > 50_000_000
