"""DDP and FSDP2 on two ranks of gloo train like one process without compilation, and what is recorded of each rank."""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

import ortlens
from tests.integration import rank_script, two_ranks

ADVICE = {"ddp": "DistributedDataParallel(torch.compile(", "fsdp2": "Compile each module that `fully_shard` shards"}


@pytest.mark.slow
def test_two_ranks_train_like_one_process(tmp_path: Path) -> None:
    settings = [
        two_ranks.Setting(folder=tmp_path / wrapping / compiled, wrapping=wrapping, compiled=compiled)
        for wrapping in get_args(two_ranks.Wrapping)
        for compiled in ("inside", "outside")
    ]
    losses, weights = two_ranks.alone(32)
    for setting, result in zip(settings, two_ranks.run_each(*settings), strict=True):
        torch.testing.assert_close(torch.tensor(result["losses"]), torch.tensor(losses), atol=1e-6, rtol=1e-6)
        for got, want in zip(result["weights"], weights, strict=True):
            torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
        assert sorted(result["phases"]) == ["backward", "forward"]
        assert result["coverage"] == [1.0, 1.0]
        assert bool(result["advice"]) is (setting.compiled == "outside"), "what the advice says leaves no graph break"
        assert all(ADVICE[setting.wrapping] in advice for advice in result["advice"])


@pytest.mark.slow
def test_each_rank_records_a_capture_and_two_are_compared(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ortlens", "run", "--quiet", "-o", "t.ortlens", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", rank_script.__file__]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    views = [ortlens.load(path) for path in sorted(tmp_path.glob("t.rank[01]-*.ortlens"))]
    assert [view.captured().figures.rank for view in views] == [0, 1]
    changes = views[0].compare(views[1]).to_dict()["changes"]
    assert [(change["change"], change["count"]) for change in changes if change["kind"] == "break"] == [("added", 1)]
