"""Record the capture of this folder; see README.md beside it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ortlens import Lens
from ortlens.trace import store
from ortlens.views.payload import payload_from_capture
from tests.data.captures.record import neutral_capture

if TYPE_CHECKING:
    from ortlens.trace.records import Capture

FOLDER = Path(__file__).parent
FIXTURE = FOLDER.parents[2] / "frontend" / "test" / "pieces.payload.gz"
KEPT_RUNS = 400


class Block(nn.Module):
    """A product and a norm; every other block has an operator without ONNX function in between."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.fc = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.fc(x))
        if self.number % 2 == 0:
            y = y - y.median(dim=-1, keepdim=True).values
        if self.number % 3 == 1:
            y = torch.special.bessel_j0(y)
        normed: torch.Tensor = self.norm(x + y)
        return normed


class Pieces(nn.Module):
    """Five graph breaks of five kinds, ten partitions or more, recompiles by size and by flag."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(32, 64)
        self.layers = nn.ModuleList(Block(number) for number in range(6))
        self.head = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor, *, logits: bool = True) -> torch.Tensor:
        x = self.layers[0](self.embed(x))
        torch._dynamo.graph_break()
        x = self.layers[1](x)
        if x.abs().max() > 1e6:
            x = x.clamp(-1, 1)
        x = self.layers[2](x)
        print(end="")  # noqa: T201 - the graph break is the point
        x = self.layers[3](x)
        kept = x[x[:, 0] > -100]
        x = self.layers[4](kept)
        scale = x.mean().item()
        x = self.layers[5](x * (2.0 if scale > 0 else 1.0))
        answer: torch.Tensor = self.head(x) if logits else x
        return answer


def pieces() -> Lens:
    torch.manual_seed(0)
    lens = Lens(name="pieces")
    model = Pieces().eval()
    fast = torch.compile(model, backend=lens)
    with torch.no_grad():
        for rows in (4,) * 20 + (6, 9) * 5:
            fast(torch.randn(rows, 32))
        fast(torch.randn(4, 32), logits=False)
        lens.profile(torch.randn(4, 32))
        lens.measure(torch.randn(4, 32))
        lens.verify(torch.randn(4, 32))
    return lens


def fewer_runs(capture: Capture) -> Capture:
    return replace(capture, runs=tuple(sorted(capture.runs, key=lambda run: run.start_ns)[-KEPT_RUNS:]))


def main() -> None:
    capture = fewer_runs(neutral_capture(pieces().captured()))
    store.save(capture, FOLDER / "pieces.ortlens")
    text = json.dumps(payload_from_capture(capture), separators=(",", ":"))
    FIXTURE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
