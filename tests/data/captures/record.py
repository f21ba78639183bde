"""Record the captures of this folder; see README.md beside it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ortlens import Lens
from ortlens.demo import run_demo
from ortlens.trace import store
from ortlens.trace.schema import TABLES

if TYPE_CHECKING:
    from ortlens.trace.records import Capture

FOLDER = Path(__file__).parent
ROOT = str(FOLDER.parents[2])
NEUTRAL = "/home/ada/ortlens"
TRAINING_STEPS = 5


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


def main() -> None:
    for name, lens in {"demo": run_demo().lens, "training": training(), "deep_break": deep_break()}.items():
        store.save(neutral_capture(lens.captured()), FOLDER / f"{name}.ortlens")


if __name__ == "__main__":
    main()
