"""Record the captures of this folder; see README.md beside it."""

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ortlens import Lens, explain
from ortlens.demo import run_demo
from ortlens.trace import store
from ortlens.trace.records import Capture
from ortlens.trace.schema import TABLES

FOLDER = Path(__file__).parent
ROOT = str(FOLDER.parents[2])
NEUTRAL = "/home/ada/ortlens"
TRAINING_STEPS = 5
MAX_RUNS = 200


def innermost(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    return x + 2


def middle(x: torch.Tensor) -> torch.Tensor:
    return innermost(x * 3) * 4


def outermost(x: torch.Tensor) -> torch.Tensor:
    return middle(x - 5) - 6


def deep_break() -> Lens:
    lens = Lens("eager", name="deep_break")
    compiled = torch.compile(outermost, backend=lens)
    for _ in range(3):
        compiled(torch.ones(4))
    return lens


def training() -> Lens:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
    lens = Lens(name="training")
    compiled = torch.compile(model, backend=lens)
    for _ in range(TRAINING_STEPS):
        compiled(torch.randn(4, 8)).sum().backward()
    return lens


def split() -> Lens:
    """Two functions of one lens, of which one is split by an operator; measured and profiled."""
    torch.manual_seed(0)

    def splits(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.special.bessel_j0(x.sin() + 1)
        return x

    def scales(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu()

    x = torch.randn(16, 16)
    with torch.no_grad():
        lens = explain(splits, name="split")(x)
        scaled = torch.compile(scales, backend=lens)
        for _ in range(5):
            scaled(x)
        lens.profile(x)
    return lens


def dry() -> Lens:
    """A dry run that ends at a branch on a value."""

    def branches(x: torch.Tensor) -> torch.Tensor:
        x = torch.special.bessel_j0(x.sin())
        return x.cos() if x.sum() > 0 else x.tanh()

    with torch.no_grad():
        return explain(branches, name="dry", dry_run=True)(torch.ones(4))


def neutral(value: object) -> object:
    """The same value with the folder of this checkout, and of the installed packages, replaced."""
    if isinstance(value, tuple):
        return tuple(neutral(item) for item in value)
    if not isinstance(value, str):
        return value
    packages = str(Path(torch.__file__).parents[1])
    return value.replace(ROOT, NEUTRAL).replace(packages, "/usr/lib/python3/site-packages")


def neutral_capture(capture: Capture) -> Capture:
    tables: dict[str, Any] = {
        name: tuple(
            replace(record, **{item.name: neutral(getattr(record, item.name)) for item in fields(record)})
            for record in getattr(capture, name)
        )
        for name in TABLES
    }
    return replace(capture, environment={**capture.environment, "platform": "Linux"}, attachments={}, **tables)


MADE = {"demo": lambda: run_demo().lens, "training": training, "deep_break": deep_break, "split": split, "dry": dry}


def main(names: list[str]) -> None:
    for name, lens in MADE.items():
        if names and name not in names:
            continue
        made = neutral_capture(lens().captured())
        store.save(replace(made, runs=made.runs[-MAX_RUNS:]), FOLDER / f"{name}.ortlens")


if __name__ == "__main__":
    main(sys.argv[1:])
