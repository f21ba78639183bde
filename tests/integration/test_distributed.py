"""DDP and FSDP2 on two ranks of gloo train like one process without compilation, and their graph breaks get advice that helps."""

from pathlib import Path
from typing import get_args

import pytest
import torch

from tests.integration import two_ranks

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
