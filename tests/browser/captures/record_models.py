"""Record `models.ortlens`, the capture that holds its ONNX models: `python -m tests.browser.captures.record_models`."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import ortlens
from ortlens.trace import store
from tests.data.captures.record import neutral_capture


class Block(nn.Module):
    """Products around a GELU, with a norm behind."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(nn.functional.gelu(self.up(x), approximate="tanh"))
        normed: torch.Tensor = self.norm(x + y)
        return normed


class Model(nn.Module):
    """Two partitions: an operator without ONNX function stands between two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        answer: torch.Tensor = self.second(torch.special.bessel_j0(y))
        return answer


def models() -> ortlens.Lens:
    torch.manual_seed(0)
    x = torch.randn(4, 32)
    with torch.no_grad():
        lens = ortlens.explain(Model().eval(), name="models")(x)
        lens.profile(x)
    return lens


if __name__ == "__main__":
    recorded = models().captured()
    neutral = neutral_capture(recorded)
    kept = replace(neutral, attachments=recorded.attachments, runs=neutral.runs[-50:])
    store.save(kept, Path(__file__).with_name("models.ortlens"))
