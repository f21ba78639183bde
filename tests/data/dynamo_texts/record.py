"""Record the texts of this folder; see README.md beside it."""

# ruff: noqa: ANN401, FBT003 - what is called takes anything, and flags are what is guarded

from __future__ import annotations

import contextlib
import copy
import json
import logging
import random
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = Path(__file__).parent
NEUTRAL = "/home/ada/model.py"
NAMES = {"dynamo_graph_break_reason": "breaks", "recompile_reasons": "recompiles"}
LOG = logging.getLogger("model")
LSTM = nn.LSTM(3, 3)
SCRIPTED: Any = torch.jit.script(nn.Linear(3, 3))
RNG = random.Random(0)  # noqa: S311 - what breaks the graph, not a secret
X = torch.ones(3)


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.heard: dict[str, list[str]] = {name: [] for name in NAMES}

    def emit(self, record: logging.LogRecord) -> None:
        artifact = (getattr(record, "metadata", None) or {}).get("artifact")
        if isinstance(artifact, dict) and artifact.get("name") in self.heard:
            self.heard[artifact["name"]].append(str(getattr(record, "payload", "")))


@torch.compiler.disable
def kept_out(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def logging_info(x: torch.Tensor) -> torch.Tensor:
    LOG.info("seen")
    return x.sin()


def warning(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("careful", stacklevel=2)
    return x.sin()


def printing(x: torch.Tensor) -> torch.Tensor:
    print(end="")  # noqa: T201 - what breaks the graph
    return x.sin()


def sleeping(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0)
    return x.sin()


def reading_the_clock(x: torch.Tensor) -> torch.Tensor:
    time.perf_counter()
    return x.sin()


def opening(x: torch.Tensor) -> torch.Tensor:
    file = open("/dev/null")  # noqa: SIM115, PTH123 - what breaks the graph
    file.close()
    return x.sin()


def entering(x: torch.Tensor) -> torch.Tensor:
    with HELD:
        return x.sin()


HELD = contextlib.closing(contextlib.ExitStack())


def disabled(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(kept_out(x))


def listed(x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, x.tolist()[0])


def floated(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.sum())


def item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def numpy_only(x: torch.Tensor) -> torch.Tensor:
    np.savetxt("/dev/null", x.numpy())
    return x.sin()


def numpy_random(x: torch.Tensor) -> torch.Tensor:
    np.random.default_rng(0)
    return x.sin()


def looping(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 10:
        x = x + 1
    return x


def branching(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x.sin()
    return x.cos()


def copying(x: torch.Tensor) -> torch.Tensor:
    return copy.deepcopy(x).sin()


def saving(x: torch.Tensor) -> torch.Tensor:
    torch.save(x, "/dev/null")
    return x.sin()


def masked(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sin()


def unique(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.unique(x))


def as_text(x: torch.Tensor) -> torch.Tensor:
    str(x)
    return x.sin()


def recurrent(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = LSTM(x.reshape(1, 1, 3))[0]
    return out


def scripted(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = SCRIPTED(x)
    return out


def python_random(x: torch.Tensor) -> torch.Tensor:
    return x * RNG.random()


def allclose(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if torch.allclose(x, x) else x.cos()


def gradient(x: torch.Tensor) -> torch.Tensor:
    y = x.detach().requires_grad_().sin().sum()
    y.backward()
    return y


def flushing(x: torch.Tensor) -> torch.Tensor:
    sys.stdout.flush()
    return x.sin()


def on_purpose(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x.sin()


@dataclass
class Config:
    scale: int


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.drop = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return x * self.steps


class Dropping(Counting):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.drop(x)
        return out


FACTOR = 1


def by_global(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


def args(*values: Any) -> Callable[[Any], object]:
    return lambda compiled: compiled(*values)


def under(context: Any, *values: Any) -> Callable[[Any], object]:
    def call(compiled: Any) -> object:
        with context:
            return compiled(*values)

    return call


def after(change: Callable[[], object], *values: Any) -> Callable[[Any], object]:
    def call(compiled: Any) -> object:
        change()
        return compiled(*values)

    return call


def added(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    return x if y is None else x + y


def times(x: torch.Tensor, n: Any) -> torch.Tensor:
    out: torch.Tensor = x * n
    return out


def chosen(x: torch.Tensor, mode: Any) -> torch.Tensor:
    return x.sin() if mode in ("a", True) else x.cos()


def summed(x: torch.Tensor, items: Any) -> torch.Tensor:
    values = items.values() if isinstance(items, dict) else items
    return x * sum(values)


def mapped(x: torch.Tensor, f: Any) -> torch.Tensor:
    return torch.add(f(x), 1)


def scaled(x: torch.Tensor, config: Any) -> torch.Tensor:
    return torch.mul(x, config.scale)


def halved(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] % 2 == 0 else x + 2


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def calls() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any], list[Callable[[Any], object]]]]:
    """Name, function, options of torch.compile, and calls of it, the second or third of which compiles anew."""
    dropping = Dropping()
    doubles, wide = X.double(), torch.ones(4, 5)
    with torch.inference_mode():
        inference = torch.ones(3)
    static: dict[str, Any] = {"dynamic": False}
    yield "size", plain, {}, [args(X), args(torch.ones(4))]
    yield "size_again", plain, static, [args(torch.ones(n)) for n in (3, 4, 5)]
    yield "batch_of_one", plain, {}, [args(torch.ones(n, 2)) for n in (4, 5, 1)]
    yield "rank", plain, {}, [args(X), args(torch.ones(3, 2))]
    yield "dtype", plain, {}, [args(X), args(doubles)]
    yield "stride", plain, {}, [args(wide), args(torch.ones(5, 4).t())]
    yield "requires_grad", plain, {}, [args(X), args(torch.ones(3, requires_grad=True))]
    yield "grad_mode", plain, {}, [args(X), under(torch.no_grad(), X)]
    yield "autocast", plain, {}, [args(X), under(torch.autocast("cpu"), X)]
    yield "inference_tensor", plain, {}, [args(X), args(inference)]
    yield "device", plain, {}, [args(X), args(torch.empty(3, device="meta"))]
    yield "int", times, static, [args(X, n) for n in (2, 3, 4)]
    yield "float", times, static, [args(X, n) for n in (2.5, 3.5)]
    yield "one", times, {}, [args(X, n) for n in (2, 1)]
    yield "str", chosen, {}, [args(X, "a"), args(X, "b")]
    yield "bool", chosen, {}, [args(X, True), args(X, False)]
    yield "none", added, {}, [args(X, X + 1), args(X, None)]
    yield "length", summed, {}, [args(X, [1, 2]), args(X, [1, 2, 3])]
    yield "dict_length", summed, {}, [args(X, {"a": 1}), args(X, {"a": 1, "b": 2})]
    yield "dict_keys", summed, {}, [args(X, {"a": 1}), args(X, {"b": 1})]
    yield "function", mapped, {}, [args(X, torch.sin), args(X, torch.cos)]
    yield "lambda", mapped, {}, [args(X, lambda x: x + 1), args(X, lambda x: x + 1)]
    yield "class", mapped, {}, [args(X, nn.ReLU()), args(X, nn.Tanh())]
    yield "attribute", scaled, static, [args(X, Config(2)), args(X, Config(3))]
    yield "same_tensor", added, {}, [args(X, X + 1), args(X, X)]
    yield "two_tensors", added, {}, [args(X, X), args(X, X + 1)]
    yield "condition", halved, {"dynamic": True}, [args(torch.ones(n)) for n in (4, 5)]
    yield "equal_sizes", added, {"dynamic": True}, [args(torch.ones(4), torch.ones(4)), args(torch.ones(4), torch.ones(1))]
    yield "counter", Counting(), {}, [args(X)] * 3
    yield "training", dropping, {}, [args(X), after(dropping.eval, X)]
    yield "global", by_global, {}, [args(X), after(lambda: globals().update(FACTOR=2), X)]


BREAKING: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    *(logging_info, warning, printing, sleeping, reading_the_clock, opening, entering, disabled, listed, floated, item),
    *(numpy_only, numpy_random, looping, branching, copying, saving, masked, unique, as_text, recurrent, scripted),
    *(python_random, allclose, gradient, flushing, on_purpose),
)


def explicit_in_a_call(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break(msg="on purpose")
        return y + 1

    return inner(x.sin()).cos()


def repeating(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x + 1
        torch._dynamo.graph_break()
    return x


def nonzero(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero() + 1


def resumed(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    x = x + 1
    print(end="")  # noqa: T201 - what breaks the graph
    return x


WHOLE: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (explicit_in_a_call, printing, branching, repeating, item, nonzero, resumed)


def main() -> None:
    listener = Listener()
    logger = logging.getLogger("torch.__trace")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(listener)
    warnings.simplefilter("ignore")
    breaks: dict[str, list[str]] = {}
    for function in (*BREAKING, *WHOLE):
        torch._dynamo.reset()
        torch.compile(function, backend="eager")(X)
        breaks[function.__name__] = drained(listener, "dynamo_graph_break_reason")
    recompiles: dict[str, list[str]] = {}
    for name, target, options, made in calls():
        torch._dynamo.reset()
        compiled = torch.compile(target, backend="eager", **options)
        for call in made:
            call(compiled)
        recompiles[name] = drained(listener, "recompile_reasons")
    version = ".".join(torch.__version__.split(".")[:2])
    # Without torch's own traceback, which is long.
    short = {row.__name__: [text.partition("\nTraceback (most recent call last):")[0] for text in breaks[row.__name__]] for row in BREAKING}
    whole = {row.__name__: breaks[row.__name__] for row in WHOLE}
    for file, kept in ((f"advice-{version}", {"breaks": short, "recompiles": recompiles}), ("breaks", whole)):
        (FOLDER / f"{file}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def drained(listener: Listener, artifact: str) -> list[str]:
    texts = [neutral(text) for text in listener.heard[artifact]]
    for heard in listener.heard.values():
        heard.clear()
    return texts


def neutral(text: str) -> str:
    packages = str(Path(torch.__file__).parents[1])
    library = str(Path(copy.__file__).parent)
    shortened = "/".join(Path(__file__).parts[-5:])  # as behind a guard
    for found, put in (
        (__file__, NEUTRAL),
        (shortened, NEUTRAL[1:]),
        (packages, "/usr/lib/python3/site-packages"),
        (library, "/usr/lib/python3"),
    ):
        text = text.replace(found, put)
    return text


if __name__ == "__main__":
    main()
