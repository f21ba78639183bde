"""Record the captures of this folder; see README.md beside it."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from torch import nn

import ortlens
from ortlens.views.payload import payload_from_capture
from tests.data.captures.record import neutral_capture

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
TOKENS = 100


def llama() -> ortlens.Lens:
    """The decoder with 32 layers and the sizes of its configuration, without weights and without running it."""
    config = transformers.LlamaConfig(use_cache=False, num_hidden_layers=32)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        return ortlens.explain(model, dry_run=True, name="llama")(input_ids=torch.zeros(1, 32, dtype=torch.long))


def resnet() -> ortlens.Lens:
    """A convolutional net of four stages, each with a first layer unlike the others."""
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[3, 4, 6, 3], layer_type="bottleneck")
    with torch.no_grad():
        return ortlens.explain(transformers.ResNetModel(config).eval(), calls=1, name="resnet")(torch.randn(1, 3, 64, 64))


def training() -> ortlens.Lens:
    """A training step: forward and backward graphs, dropout that stays in PyTorch."""
    config = transformers.GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=TOKENS, use_cache=False, bos_token_id=1, eos_token_id=2)
    model, lens = transformers.GPT2LMHeadModel(config), ortlens.Lens(name="training")
    fast, x = torch.compile(model, backend=lens), torch.randint(0, TOKENS, (1, 32))
    fast(input_ids=x, labels=x).loss.backward()
    return lens


class Block(nn.Module):
    """A norm, a product and a sum; every other block has an operator without ONNX function in between."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.norm, self.lin = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.gelu(self.lin(self.norm(x)))
        if self.number % 2:
            y = torch.special.bessel_j0(y)
        summed: torch.Tensor = x + y
        return summed


class Blocks(nn.Module):
    """Twenty-two blocks in one graph: twelve partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(number) for number in range(22)), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        answer: torch.Tensor = self.head(x)
        return answer


def partitions() -> ortlens.Lens:
    """One graph of twelve partitions with PyTorch in between."""
    with torch.no_grad():
        return ortlens.explain(Blocks().eval(), calls=1, name="partitions")(torch.randn(4, 32))


RECORDERS: dict[str, Callable[[], ortlens.Lens]] = {one.__name__: one for one in (llama, resnet, training, partitions)}


def main() -> None:
    for name in sys.argv[1:] or RECORDERS:
        torch.manual_seed(0)
        torch._dynamo.reset()
        capture = replace(neutral_capture(RECORDERS[name]().captured()), runs=())
        text = json.dumps(payload_from_capture(capture), separators=(",", ":"))
        (FOLDER / f"{name}.payload.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
