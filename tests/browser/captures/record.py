"""Record the captures of this folder; see README.md beside it."""

import gzip
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from ortlens import Lens, explain
from ortlens.trace import store
from ortlens.trace.records import Capture
from ortlens.views.payload import payload_from_capture
from tests.data.captures.record import neutral_capture

FOLDER = Path(__file__).parent
FIXTURE = FOLDER.parents[2] / "frontend" / "test" / "pieces.payload.gz"
KEPT_RUNS = 400
TOKENS = 1000
LOGGER = logging.getLogger(__name__)


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
            y = y - y.mode(dim=-1, keepdim=True).values
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


class Stage(nn.Module):
    """Two partitions: an operator without ONNX function stands between a product and a norm."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.fc = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.fc(x))
        if self.number % 2:  # noqa: SIM108 - each has a line of its own
            y = torch.special.bessel_j0(y)
        else:
            y = y - y.mode(dim=-1, keepdim=True).values
        normed: torch.Tensor = self.norm(x + y)
        return normed


class Twelve(nn.Module):
    """Six stages of two partitions each, parted by five graph breaks of five kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Stage(number) for number in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stages[0](x)
        torch._dynamo.graph_break()
        x = self.stages[1](x)
        if x.abs().max() > 1e6:
            x = x.clamp(-1, 1)
        x = self.stages[2](x)
        print(end="")  # noqa: T201 - the graph break is the point
        x = self.stages[3](x)
        LOGGER.debug("three stages to go")
        x = self.stages[4](x)
        scale = x.mean().item()
        answer: torch.Tensor = self.stages[5](x if scale < 1e3 else x / scale)
        return answer


def twelve() -> Lens:
    return measured(Twelve(), torch.randn(32, 64), name="twelve")


def measured(model: nn.Module, *args: torch.Tensor, name: str, **kwargs: Any) -> Lens:  # noqa: ANN401 - as the model takes them
    with torch.no_grad():
        lens = explain(model.eval(), name=name)(*args, **kwargs)
        lens.profile(*args, **kwargs)
        lens.measure(*args, **kwargs)
        lens.verify(*args, **kwargs)
    return lens


def bert() -> Lens:
    config = transformers.BertConfig(vocab_size=TOKENS, hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1024)
    return measured(transformers.BertModel(config), input_ids=torch.randint(0, TOKENS, (2, 64)), name="bert")


def llama() -> Lens:
    """All 32 layers in their true sizes: a dry run has neither weights nor calls."""
    config = transformers.LlamaConfig(use_cache=False, num_hidden_layers=32)
    with torch.device("meta"):
        model: torch.nn.Module = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        return explain(model, dry_run=True, name="llama")(input_ids=torch.zeros(1, 32, dtype=torch.long))


def resnet() -> Lens:
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[3, 4, 6, 3], layer_type="bottleneck")
    return measured(transformers.ResNetModel(config), torch.randn(1, 3, 64, 64), name="resnet")


def training() -> Lens:
    """Steps of a small GPT-2 with its dropout, whose random numbers only PyTorch draws."""
    config = transformers.GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=100, use_cache=False, bos_token_id=1, eos_token_id=2)
    model, lens = transformers.GPT2LMHeadModel(config), Lens(name="training")
    fast, x = torch.compile(model, backend=lens), torch.randint(0, 100, (1, 32))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(10):
        optimizer.zero_grad()
        fast(input_ids=x, labels=x).loss.backward()
        optimizer.step()
    return lens


RECORDERS: dict[str, Callable[[], Lens]] = {one.__name__: one for one in (pieces, twelve, bert, llama, resnet, training)}


def fewer_runs(capture: Capture) -> Capture:
    return replace(capture, runs=tuple(sorted(capture.runs, key=lambda run: run.start_ns)[-KEPT_RUNS:]))


def main() -> None:
    for name in sys.argv[1:] or RECORDERS:
        torch.manual_seed(0)
        torch._dynamo.reset()
        capture = fewer_runs(neutral_capture(RECORDERS[name]().captured()))
        store.save(capture, FOLDER / f"{name}.ortlens")
        if name == "pieces":
            text = json.dumps(payload_from_capture(capture), separators=(",", ":"))
            FIXTURE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
