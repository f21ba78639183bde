"""Operators that stay in PyTorch until they are supported. `python -m tests.integration.what_ifs [NAME...]` holds `what_if` against that.

Half of them are operators of the user's, which a conversion function then supports; the others are operators of PyTorch, whose
conversion function is taken away for the first of two compilations. Both programs are timed in turns.
"""

# ruff: noqa: ANN401 - operators are Any in torch and in onnxscript

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

import torch
from onnxscript import opset18 as op
from torch import nn

import ortlens
from ortlens import _torch
from ortlens.analysis.whatif import Candidate, ranking
from ortlens.units import time_from_ns
from tests.integration.small_models import SMALL_MODELS

Program: TypeAlias = tuple[Callable[..., Any], dict[str, Any]]

_ROUNDS, _WARM_UP = 60, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A program with an operator that is not supported at first.

    Attributes:
        name: Its name.
        make: Makes the program and its arguments.
        target: The operator, as in `fallbacks.target`.
        table: Conversion functions that support it; empty for an operator of PyTorch, whose function is only taken away.
    """

    name: str
    make: Callable[[], Program]
    target: str
    table: dict[Any, Any] = field(default_factory=dict)


@torch.library.custom_op("what_ifs::twist", mutates_args=())
def twist(a: torch.Tensor) -> torch.Tensor:
    return a + a.sin()


@torch.library.custom_op("what_ifs::passed", mutates_args=())
def passed(a: torch.Tensor) -> torch.Tensor:
    return a.clone()


@torch.library.custom_op("what_ifs::mixed", mutates_args=())
def mixed(a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return a @ weight


@torch.library.custom_op("what_ifs::ranked", mutates_args=())
def ranked(a: torch.Tensor) -> torch.Tensor:
    return a.softmax(-1)


@torch.library.custom_op("what_ifs::summed", mutates_args=())
def summed(a: torch.Tensor) -> torch.Tensor:
    return a.cumsum(-1)


for each in (twist, passed, ranked, summed):
    each.register_fake(torch.empty_like)
mixed.register_fake(lambda a, weight: a.new_empty(a.shape[0], weight.shape[1]))


def _twist(a: Any) -> Any:
    return op.Add(a, op.Sin(a))


def _passed(a: Any) -> Any:
    return op.Identity(a)


def _mixed(a: Any, weight: Any) -> Any:
    return op.MatMul(a, weight)


def _ranked(a: Any) -> Any:
    return op.Softmax(a, axis=-1)


def _summed(a: Any) -> Any:
    return op.CumSum(a, op.Constant(value_int=1))  # type: ignore[type-var]  # onnxscript reads the source


def _between(step: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], times: int) -> Program:
    def model(x: torch.Tensor) -> object:
        for _ in range(times):
            x = step((x * 0.5).tanh()) + 1
        return x

    return model, {"x": torch.randn(*shape)}


def _between_products(step: Callable[[torch.Tensor], torch.Tensor], rows: int, width: int, times: int) -> Program:
    layers = nn.ModuleList(nn.Linear(width, width) for _ in range(times + 1))

    def model(x: torch.Tensor) -> object:
        for layer in list(layers)[:-1]:
            x = step(layer(x))
        return layers[-1](x)

    return model, {"x": torch.randn(rows, width)}


def _weighted(rows: int, width: int) -> Program:
    weight = torch.randn(width, width) / width
    return _between_products(lambda x: mixed(x, weight), rows, width, 4)


def _model(name: str, batch: int) -> Callable[[], Program]:
    def make() -> Program:
        small = SMALL_MODELS[name]
        return small.build().eval(), small.inputs(batch)

    return make


_OPS = torch.ops.what_ifs
WHAT_IFS = (
    WhatIf(name="tiny", make=lambda: _between(twist, (3, 4), 2), target="what_ifs.twist.default", table={_OPS.twist.default: _twist}),
    WhatIf(
        name="tiny, 24", make=lambda: _between(passed, (8, 8), 24), target="what_ifs.passed.default", table={_OPS.passed.default: _passed}
    ),
    WhatIf(name="large", make=lambda: _between(twist, (512, 1024), 2), target="what_ifs.twist.default", table={_OPS.twist.default: _twist}),
    WhatIf(
        name="copies",
        make=lambda: _between(passed, (1024, 1024), 6),
        target="what_ifs.passed.default",
        table={_OPS.passed.default: _passed},
    ),
    WhatIf(
        name="among products",
        make=lambda: _between_products(twist, 64, 256, 6),
        target="what_ifs.twist.default",
        table={_OPS.twist.default: _twist},
    ),
    WhatIf(name="products", make=lambda: _weighted(64, 256), target="what_ifs.mixed.default", table={_OPS.mixed.default: _mixed}),
    WhatIf(
        name="softmax",
        make=lambda: _between_products(ranked, 128, 512, 4),
        target="what_ifs.ranked.default",
        table={_OPS.ranked.default: _ranked},
    ),
    WhatIf(
        name="sums", make=lambda: _between(summed, (256, 256), 4), target="what_ifs.summed.default", table={_OPS.summed.default: _summed}
    ),
    WhatIf(name="bert gelu", make=_model("bert", 2), target="aten.gelu.default"),
    WhatIf(name="bert norm", make=_model("bert", 8), target="aten.native_layer_norm.default"),
    WhatIf(name="gpt2 tanh", make=_model("gpt2", 4), target="aten.tanh.default"),
    WhatIf(name="llama silu", make=_model("llama", 4), target="aten.silu.default"),
    WhatIf(name="llama mul", make=_model("llama", 2), target="aten.mul.Tensor"),
    WhatIf(name="t5 relu", make=_model("t5", 4), target="aten.relu.default"),
    WhatIf(name="vit norm", make=_model("vit", 8), target="aten.native_layer_norm.default"),
    WhatIf(name="resnet relu", make=_model("resnet", 2), target="aten.relu.default"),
)


@contextlib.contextmanager
def unsupported(case: WhatIf) -> Iterator[None]:
    """Take the conversion function of PyTorch's own operator away."""
    known = _torch.dispatch

    def dispatch(node: Any, registry: Any) -> Any:
        return None if str(node.target) == case.target else known(node, registry)

    _torch.dispatch = dispatch
    try:
        yield
    finally:
        _torch.dispatch = known


def predicted(case: WhatIf) -> tuple[Candidate, float]:
    """What a capture says that supporting the operator would save."""
    torch.manual_seed(0)
    target, given = case.make()
    with torch.no_grad(), unsupported(case):
        capture = ortlens.explain(target)(**given).captured()
    return next(row for row in ranking(capture) if row.ops == (case.target,)), sum(part.ns for part in capture.ledger)


def saved_ns(case: WhatIf) -> tuple[int, int, int]:
    """What supporting the operator saves per call."""
    with torch.no_grad(), _torch.isolated_compilations() as apart:
        sides: list[Program] = []
        supporting: dict[str, Any] = {"custom_translation_table": case.table}
        plain: dict[str, Any] = {}
        for options, around in ((plain, unsupported(case)), (supporting, contextlib.nullcontext())):
            torch.manual_seed(0)
            target, given = case.make()
            fast = torch.compile(target, backend="ortlens", options=options, **apart)
            with around:
                fast(**given)
            sides.append((fast, given))
        spent: list[list[tuple[int, int]]] = [[], []]
        for turn in range(_ROUNDS + _WARM_UP):
            for side in (0, 1) if turn % 2 else (1, 0):
                fast, given = sides[side]
                cpu, wall = time.process_time_ns(), time.perf_counter_ns()
                result = fast(**given)
                spent[side].append((time.process_time_ns() - cpu, time.perf_counter_ns() - wall))
                del result
    slow, quick = (side[_WARM_UP:] for side in spent)
    least = [min(row[clock] for row in slow) - min(row[clock] for row in quick) for clock in (0, 1)]
    return least[0], least[1], round(median(one[1] - other[1] for one, other in zip(slow, quick, strict=True)))


def main(names: list[str]) -> None:
    """Print a table: what was predicted, and what supporting the operator brought."""
    torch.set_num_threads(1)
    sys.stdout.write(
        f"{'what if':18}{'call':>10}{'nodes':>6}{'fewer':>6}{'about':>11}{'at most':>11}{'CPU':>11}{'wall':>11}{'median':>11}  held\n"
    )
    for case in WHAT_IFS:
        if names and case.name not in names:
            continue
        torch._dynamo.reset()
        gc.collect()
        row, call_ns = predicted(case)
        made = saved_ns(case)
        most = row.saved_at_most_ns or 0
        shown = "".join(f"{time_from_ns(ns):>11}" for ns in (row.saved_ns or 0, most, *made))
        held = made[1] <= most
        sys.stdout.write(f"{case.name:18}{time_from_ns(round(call_ns)):>10}{row.node_count:>6}{row.partitions_saved:>6}{shown}  {held}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
