"""What makes a program slow on purpose is among the first things that a report names, with its line. Costs are not asserted.

Recompiles are in test_recompile_kinds.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch
from torch import nn

import ortlens
from ortlens.analysis.overview import overview_of
from ortlens.analysis.recommendations import looks_of
from tests.integration.marked_lines import line_of

# Each compiles, measures and perhaps profiles a program, which takes a second or more.
pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.timed]

Program: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]


def layers(count: int, width: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(width, width) for _ in range(count))


def transposed() -> Program:
    pool = nn.AvgPool1d(3, stride=1, padding=1)  # cheap, so that the copies stand out on any machine
    norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(4))

    def model(x: torch.Tensor) -> object:
        for norm in norms:
            x = norm(pool(x.transpose(1, 2)).transpose(1, 2))  # a transposed layout
        return x

    return model, (torch.randn(2, 1024, 128),)


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


kept.register_fake(torch.empty_like)


def fallbacks() -> Program:
    stack = layers(6, 64)

    def model(x: torch.Tensor) -> object:
        for layer in stack:
            x = kept(layer(x).relu())  # a fallback per layer
        return x

    return model, (torch.randn(64, 64),)


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


def huge_output() -> Program:
    layer = nn.Linear(64, 64)

    def model(x: torch.Tensor) -> object:
        x = layer(x)
        return x, x[:, None, :] * x[None, :, :]  # a huge output

    return model, (torch.randn(512, 64),)


class Planted(NamedTuple):
    """A program with one main cause, whose line ends in the name of the cause.

    Attributes:
        program: Makes the program.
        names: What the report must contain, at least one of them.
        profiles: Whether the kernels are profiled, as the docs advise where the summary does not name them.
    """

    program: Callable[[], Program]
    names: tuple[str, ...]
    profiles: bool = False


CAUSES = {
    "a transposed layout": Planted(transposed, ("Transpose",), profiles=True),
    "a break in a loop": Planted(broken, ("graph_break",)),
    "a fallback per layer": Planted(fallbacks, ("slow_causes.kept",)),
    "reloaded weights": Planted(reloaded, ("weights of p", "disable")),
    "a huge output": Planted(huge_output, ("returns 64.1 MiB", "writes 64.0 MiB")),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_is_named_with_its_line(cause: str) -> None:
    planted = CAUSES[cause]
    torch.manual_seed(0)
    target, args = planted.program()
    with torch.no_grad():
        lens = ortlens.explain(target)(*args)
        if planted.profiles:
            lens.profile(*args)
    looks = looks_of(overview_of(lens.captured()))
    lines = [look.line for look in looks if any(name in look.what for name in planted.names)]
    assert line_of(cause, __file__) in lines, [(look.what, look.line) for look in looks]
