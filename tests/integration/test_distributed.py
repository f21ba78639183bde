"""DDP and FSDP2 on two ranks of gloo train like one process without compilation, and their graph breaks get advice that helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.integration import two_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("wrapping", ["ddp", "fsdp2"])
@pytest.mark.parametrize("compiled", ["inside", "outside"])
def test_two_ranks_train_like_one_process(wrapping: two_ranks.Wrapping, compiled: two_ranks.Compiled, tmp_path: Path) -> None:
    result = two_ranks.run(two_ranks.Setting(folder=tmp_path, wrapping=wrapping, compiled=compiled))
    losses, weights = two_ranks.alone(32)
    torch.testing.assert_close(torch.tensor(result["losses"]), torch.tensor(losses), atol=1e-6, rtol=1e-6)
    for got, want in zip(result["weights"], weights, strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
    assert sorted(result["phases"]) == ["backward", "forward"]
    assert result["coverage"] == [1.0, 1.0]
    if compiled == "inside":
        assert result["advice"] == [], "what the advice says leaves no graph break"
    else:
        said = "DistributedDataParallel(torch.compile(" if wrapping == "ddp" else "Compile each module that `fully_shard` shards"
        assert result["advice"]
        assert all(said in advice for advice in result["advice"])
