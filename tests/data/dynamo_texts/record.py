"""Record the texts of this folder; see README.md beside it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
NEUTRAL = "/home/ada/model.py"
NAMES = {"dynamo_graph_break_reason": "breaks", "recompile_reasons": "recompiles"}


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.heard: dict[str, list[str]] = {name: [] for name in NAMES}

    def emit(self, record: logging.LogRecord) -> None:
        artifact = (getattr(record, "metadata", None) or {}).get("artifact")
        if isinstance(artifact, dict) and artifact.get("name") in self.heard:
            self.heard[artifact["name"]].append(str(getattr(record, "payload", "")))


def explicit_in_a_call(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break(msg="on purpose")
        return y + 1

    return inner(x.sin()).cos()


def printing(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    print(end="")  # noqa: T201 - what breaks the graph
    return x.cos()


def branching(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x.sin()
    return x.cos()


def looping(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x + 1
        torch._dynamo.graph_break()
    return x


def item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def nonzero(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero() + 1


def resumed(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    x = x + 1
    print(end="")  # noqa: T201 - what breaks the graph
    return x


def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


RECOMPILED: tuple[tuple[torch.Tensor, float], ...] = (
    (torch.ones(3), 2.5),
    (torch.ones(4), 2.5),
    (torch.ones(4, dtype=torch.float64), 2.5),
    (torch.ones(4, 2), 3),
)


def main() -> None:
    listener = Listener()
    logger = logging.getLogger("torch.__trace")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(listener)
    breaks: tuple[Callable[..., Any], ...] = (explicit_in_a_call, printing, branching, looping, item, nonzero, resumed)
    kept: dict[str, dict[str, list[str]]] = {"breaks": {}, "recompiles": {}}
    for function in (*breaks, scaled):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="eager")
        for args in RECOMPILED if function is scaled else [(torch.ones(3),)]:
            compiled(*args)
        for artifact, kind in NAMES.items():
            texts = [neutral(text) for text in listener.heard[artifact]]
            if texts:
                kept[kind][function.__name__] = texts
            listener.heard[artifact].clear()
    for kind, texts_by_name in kept.items():
        (FOLDER / f"{kind}.json").write_text(json.dumps(texts_by_name, indent=1) + "\n", encoding="utf-8")


def neutral(text: str) -> str:
    packages = str(Path(torch.__file__).parents[1])
    return text.replace(__file__, NEUTRAL).replace(packages, "/usr/lib/python3/site-packages")


if __name__ == "__main__":
    main()
