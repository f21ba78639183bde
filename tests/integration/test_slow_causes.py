"""What makes a program slow on purpose is among the first things that a report names, with its line. Costs are not asserted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import onnxruntime
import pytest
import torch
from torch import nn

import ortlens
from ortlens.analysis.overview import overview_of
from ortlens.analysis.recommendations import looks_of

# Each compiles, measures and perhaps profiles a program, which takes a second or more.
pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.timed]

Program: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
HERE = Path(__file__)


def layers(count: int, width: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(width, width) for _ in range(count))


def bags() -> Program:
    bag = nn.EmbeddingBag(1000, 64)

    def model(ids: torch.Tensor, offsets: torch.Tensor) -> object:
        return bag(ids, offsets).relu()  # a loop operator

    return model, (torch.randint(0, 1000, (2048,)), torch.arange(0, 2048, 8))


class Cache(nn.Module):
    kept: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(256, 256), nn.Linear(256, 256)
        self.register_buffer("kept", torch.zeros(8, 16384, 256))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> object:
        x = self.into(x)
        for layer in range(8):
            self.kept[layer].index_copy_(0, position, x)  # a state copied in and out
        return self.out(x)


def cache() -> Program:
    return Cache(), (torch.randn(1, 256), torch.tensor([5]))


def float64_island() -> Program:
    into, out = nn.Linear(512, 512), nn.Linear(512, 512)
    weight = torch.randn(512, 512).double()

    def model(x: torch.Tensor) -> object:
        return out((into(x).double() @ weight).float())  # a float64 island

    return model, (torch.randn(128, 512),)


def casts() -> Program:
    into = nn.Linear(32, 256)

    def model(x: torch.Tensor) -> object:
        x = into(x)
        for _ in range(32):
            x = x.to(torch.int32).to(torch.float32)  # casts
            x = (x - 0.5).relu()  # twice the same in a row would be one
        return x

    return model, (torch.randn(2048, 32) * 100,)


def transposed() -> Program:
    pool = nn.AvgPool1d(3, stride=1, padding=1)  # cheap, so that the copies stand out on any machine
    norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(4))

    def model(x: torch.Tensor) -> object:
        for norm in norms:
            x = norm(pool(x.transpose(1, 2)).transpose(1, 2))  # a transposed layout
        return x

    return model, (torch.randn(2, 1024, 128),)


def chain() -> Program:
    into = nn.Linear(16, 256)

    def model(x: torch.Tensor) -> object:
        x = into(x)
        for step in range(24):
            x = (x * 0.5 + step).abs()  # an elementwise chain
        return x

    return model, (torch.randn(2048, 16),)


class Part(nn.Module):
    def __init__(self, settings: list[tuple[str, int]]) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, x: torch.Tensor) -> object:
        return x + sum(value for _, value in self.settings)


def guarded() -> Program:
    """Two hundred modules with sixty settings each."""
    settings = [[(f"option {each}", each + number % 2) for each in range(60)] for number in range(200)]
    return nn.Sequential(nn.Linear(64, 64), *map(Part, settings)), (torch.randn(4, 64),)


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> object:
        return self.layer(x)


def broken() -> Program:
    stack = nn.ModuleList(Step() for _ in range(8))

    def model(x: torch.Tensor) -> object:
        for layer in stack:
            x = layer(x).relu()
            torch._dynamo.graph_break()  # a break in a loop
        return x

    return model, (torch.randn(8, 128),)


@torch.library.custom_op("slow_causes::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    shifted: torch.Tensor = x + torch.linalg.svdvals(x).sum()
    return shifted


@torch.library.custom_op("slow_causes::cheap", mutates_args=())
def cheap(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


kept.register_fake(torch.empty_like)
cheap.register_fake(torch.empty_like)


def fallbacks() -> Program:
    stack = layers(6, 64)

    def model(x: torch.Tensor) -> object:
        for layer in stack:
            x = kept(layer(x).relu())  # a fallback per layer
        return x

    return model, (torch.randn(64, 64),)


def tiny_partitions() -> Program:
    def model(x: torch.Tensor) -> object:
        for _ in range(24):
            x = cheap(x.sin() + 1)  # tiny partitions
        return x

    return model, (torch.randn(8, 8),)


def threads() -> Program:
    return nn.Sequential(*(module for layer in layers(12, 512) for module in (layer, nn.ReLU()))), (torch.randn(64, 512),)


def eight_threads() -> dict[str, Any]:
    given = onnxruntime.SessionOptions()
    given.intra_op_num_threads = 8
    return {"ort_session_options": given}


def reloaded() -> Program:
    net = nn.Sequential(*layers(4, 256))
    fresh = {name: value.clone() for name, value in net.state_dict().items()}

    @torch.compiler.disable
    def reload() -> None:
        net.load_state_dict(fresh)

    def model(x: torch.Tensor) -> object:
        reload()  # reloaded weights
        return net(x)

    return model, (torch.randn(8, 256),)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.seen = ["0"]

    def forward(self, x: torch.Tensor) -> object:
        if self.seen[0] != "none":  # recompiles
            self.seen[0] = str(int(self.seen[0]) + 1)
        return self.layer(x)


def recompiled() -> Program:
    return Counts(), (torch.randn(8, 64),)


def huge_output() -> Program:
    layer = nn.Linear(64, 64)

    def model(x: torch.Tensor) -> object:
        x = layer(x)
        return x, x[:, None, :] * x[None, :, :]  # a huge output

    return model, (torch.randn(512, 64),)


def strided() -> Program:
    layer = nn.Linear(512, 64)

    def model(x: torch.Tensor) -> object:
        return layer(x).relu()  # a strided input

    return model, (torch.randn(4096, 1024)[:, ::2],)


def data_dependent() -> Program:
    into, out = nn.Linear(128, 128), nn.Linear(128, 128)

    def model(x: torch.Tensor) -> object:
        x = into(x)
        for bound in range(4):
            rows = torch.nonzero(x[:, bound] > -1e9)  # a data-dependent size
            x = x[rows[:, 0]]
        return out(x)

    return model, (torch.randn(64, 128),)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack, self.drop = layers(6, 256), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> object:
        for layer in self.stack:
            x = self.drop(layer(x).relu())  # dropout left on
        return x


def dropout() -> Program:
    return Dropped(), (torch.randn(256, 256),)


def half() -> Program:
    net = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)).half()

    def model(x: torch.Tensor) -> object:
        for convolution in net:
            x = convolution(x).relu()  # convolutions in float16
        return x

    return model, (torch.randn(1, 16, 64, 64).half(),)


class Planted(NamedTuple):
    """A program with one main cause, whose line ends in the name of the cause.

    Attributes:
        program: Makes the program.
        names: What the report must contain, at least one of them.
        has_line: Whether a line of the program is to blame.
        profiles: Whether the kernels are profiled, as the docs advise where the summary does not name them.
        options: Makes options of the backend.
    """

    program: Callable[[], Program]
    names: tuple[str, ...]
    has_line: bool = True
    profiles: bool = False
    options: Callable[[], dict[str, Any]] = dict


CAUSES = {
    "a loop operator": Planted(bags, ("becomes a Loop", "_embedding_bag")),
    "a state copied in and out": Planted(cache, ("of it are copied", "index_put_", "select_scatter_")),
    "a float64 island": Planted(float64_island, ("float64",), profiles=True),
    "casts": Planted(casts, ("Cast",), profiles=True),
    "a transposed layout": Planted(transposed, ("Transpose",), profiles=True),
    "an elementwise chain": Planted(chain, ("elementwise",), profiles=True),
    "many guards": Planted(guarded, ("guards",), has_line=False),
    "a break in a loop": Planted(broken, ("graph_break",)),
    "a fallback per layer": Planted(fallbacks, ("slow_causes.kept",)),
    "too many threads": Planted(threads, ("threads",), has_line=False, options=eight_threads),
    "reloaded weights": Planted(reloaded, ("weights of p", "disable")),
    "recompiles": Planted(recompiled, ("recompile limit", "seen")),
    "tiny partitions": Planted(tiny_partitions, ("partitions", "slow_causes.cheap")),
    "a huge output": Planted(huge_output, ("returns 64.1 MiB", "writes 64.0 MiB")),
    "a strided input": Planted(strided, ("copies its input",)),
    "a data-dependent size": Planted(data_dependent, ("Dynamic shape operator",)),
    "dropout left on": Planted(dropout, ("native_dropout",)),
    "convolutions in float16": Planted(half, ("float16",), profiles=True),
}


def line_of(cause: str) -> int:
    (line,) = (at for at, text in enumerate(HERE.read_text(encoding="utf-8").splitlines(), 1) if text.endswith(f"# {cause}"))
    return line


@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_is_named_with_its_line(cause: str) -> None:
    planted = CAUSES[cause]
    torch.manual_seed(0)
    target, args = planted.program()
    with torch.no_grad():
        lens = ortlens.explain(target, options=planted.options())(*args)
        if planted.profiles:
            lens.profile(*args)
    looks = looks_of(overview_of(lens.captured()))
    lines = [look.line for look in looks if any(name in look.what for name in planted.names)]
    assert (line_of(cause) if planted.has_line else None) in lines, [(look.what, look.line) for look in looks]
