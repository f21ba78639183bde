"""The cases of the tests of `survey`: small models, and one that ends its process."""

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

_ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid", "softplus", "elu", "leaky_relu", "hardtanh")


def perceptron(activation: str, width: int) -> tuple[nn.Module, torch.Tensor]:
    """A model of two layers and its input; notes that it was made, where a test asks for it."""
    note(f"{activation}-{width}")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(width, 8), nn.Linear(8, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.down(getattr(nn.functional, activation)(self.up(x)))
            return made

    return Net(), torch.randn(2, width)


def broken_graph() -> tuple[Any, tuple[torch.Tensor]]:
    """A function with one graph break and one operator that stays in PyTorch."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        sizes: torch.Tensor = torch.linalg.svdvals(y.cos())
        return sizes

    return function, (torch.randn(3, 3),)


class Crash(nn.Module):
    """Crashes when it is called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Reads at address 0."""
        ctypes.string_at(0)
        return x


def crashes() -> tuple[nn.Module, torch.Tensor]:
    return Crash(), torch.ones(1)


def note(text: str) -> None:
    """Add a line to the file that the environment names, if it names one."""
    if file := os.environ.get("SURVEY_TEST_NOTES"):
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(f"{text} {os.getpid()} {os.getppid()}\n")


def waits(seconds: float, number: int) -> tuple[nn.Module, torch.Tensor]:
    """A model that takes a while to be made."""
    note(f"waits-{number}")
    time.sleep(seconds)
    return nn.Linear(2, 2), torch.ones(1, 2)


def waits_for_release() -> tuple[nn.Module, torch.Tensor]:
    """A model that is not made before a file is there."""
    note("victim")
    while not Path(os.environ["SURVEY_TEST_NOTES"] + ".release").exists():
        time.sleep(0.01)
    return nn.Linear(2, 2), torch.ones(1, 2)


def many(count: int) -> dict[str, object]:
    """Distinct small models by name."""
    pairs = [(activation, width) for width in (4, 6, 8) for activation in _ACTIVATIONS]
    return {f"{activation} {width}": (perceptron, (activation, width)) for activation, width in pairs[:count]}


def quick(cases: dict[str, object]) -> dict[str, object]:
    """The same, each called once."""
    return {name: {"target": case[0], "args": case[1], "calls": 1} for name, case in cases.items() if isinstance(case, tuple)}


CASES = {**many(2), "broken": broken_graph}
