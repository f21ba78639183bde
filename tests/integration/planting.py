"""Plants wrong answers on purpose, and checks that `verify` reports each with its scope and user line."""

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import onnx_ir as ir
import pandas as pd
import pytest
import torch

import ortlens
from ortlens.backend import planner
from ortlens.backend.compiler import GraphCompiler
from ortlens.backend.runtime import program

Plant: TypeAlias = "Callable[[pytest.MonkeyPatch], None]"
BOUNDARY, LOWERING, INSIDE = "the fault is at the boundary", "the fault is in the lowering", "The first wrong value inside is"


def instead(owner: object, name: str, planted: Callable[..., Any]) -> Plant:
    """Calls a function in the place of another, which it gets before the arguments."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        plain = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **settings: planted(plain, *args, **settings))

    return plant


def decomposing(table: Mapping[Any, Callable[..., Any]]) -> Plant:
    """Adds wrong decompositions to the backend's."""
    return instead(GraphCompiler, "decompositions", lambda plain, *args, **settings: {**plain(*args, **settings), **table})


def returning(change: Callable[[list[Any]], list[Any]]) -> Plant:
    """Changes what the generated program of a graph returns."""

    def make(plain: Callable[..., Any], *args: object, **named: object) -> Callable[[list[Any]], list[Any]]:
        run = plain(*args, **named)
        return lambda values: change(run(values))

    return instead(program, "make_program", make)


def rewriting(change: Callable[[ir.Model], None]) -> Plant:
    """Adds a wrong rewrite of the converted model to the backend's."""

    def rewritten(plain: Callable[[ir.Model], ir.Model], model: ir.Model) -> ir.Model:
        optimized = plain(model)
        change(optimized)
        return optimized

    return instead(planner, "optimize_model", rewritten)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A wrong answer.

    Attributes:
        first: Makes the arguments of the call before; None: those of `verify`.
        plant: Plants the fault; None: `options` do.
        wrong: The parts of the call that differ, with a piece of their notes.
        says: A piece of the evidence of the finding about the call, which names the cause; None: the value inside, or else the lowering.
        inside: Scope and rule of the first wrong value inside a partition; None where no value inside differs.
        because: A piece of its note, which names the cause.
        elsewhere: Parts that no line, or another one, computes from what is wrong.
        target: Makes what is compiled, where it is not the function.
    """

    function: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]] = lambda: (torch.rand(3),)
    first: Callable[[], tuple[Any, ...]] | None = None
    plant: Callable[[pytest.MonkeyPatch], None] | None = None
    options: Mapping[str, Any] | None = None
    wrong: Mapping[str, str] = field(default_factory=lambda: {"result": ""})
    says: str | None = None
    inside: tuple[str, str] | None = None
    because: str = ""
    dynamic: bool | None = None
    elsewhere: tuple[str, ...] = ()
    target: Callable[[], Any] | None = None


def with_wrong_function(
    function: Callable[..., Any], target: object, wrong: Callable[..., Any], args: Callable[[], tuple[Any, ...]]
) -> Planted:
    """A program of one line whose operator has a wrong ONNX function."""
    return Planted(
        function=function,
        args=args,
        options={"custom_translation_table": {target: wrong}},
        inside=("value", "numbers_differ"),
        because="its ONNX function is wrong",
    )


def line_of(function: Callable[..., Any]) -> int:
    """The line of a lambda, or the first one of a function's body."""
    return function.__code__.co_firstlineno + (function.__name__ != "<lambda>")


def verified(planted: Planted, patch: pytest.MonkeyPatch) -> tuple[ortlens.Lens, pd.DataFrame]:
    """Plant, compile, and compare."""
    torch.manual_seed(0)
    args = (planted.first or planted.args)()
    train = any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)
    if planted.plant is not None:
        planted.plant(patch)
    with contextlib.nullcontext() if train else torch.no_grad():
        target = planted.function if planted.target is None else planted.target()
        lens = ortlens.explain(target, calls=1, options=dict(planted.options or {}), dynamic=planted.dynamic)(*args)
        return lens, lens.verify(*planted.args())


def check_reported(planted: Planted, patch: pytest.MonkeyPatch) -> None:
    """The parts that are wrong, the cause, the first wrong value and the line are as planted."""
    lens, numerics = verified(planted, patch)
    wrong = numerics[(numerics.scope == "call") & (numerics.ok == False)]  # noqa: E712 - a column with gaps
    assert set(wrong.node) == set(planted.wrong)
    assert all(planted.wrong[node] in note for node, note in zip(wrong.node, wrong.note, strict=True))
    place = (inspect.getsourcefile(planted.function), line_of(planted.function))
    assert {(row.file, row.line) for row in wrong.itertuples() if row.node not in planted.elsewhere} <= {place}
    seen_as = "call_differs" if planted.wrong or planted.inside is None else planted.inside[1]
    (finding,) = lens.findings[lens.findings.rule == seen_as].to_dict("records")
    assert "lens_failed" not in set(lens.findings.rule)
    assert finding["severity"] == "error"
    assert (planted.says or (INSIDE if planted.inside else LOWERING)) in finding["evidence"]
    assert planted.elsewhere or (finding["file"], finding["line"]) == place
    inside = numerics[(numerics.scope != "call") & (numerics.ok == False)]  # noqa: E712 - likewise
    if planted.inside is None:
        assert inside.empty
        return
    scope, rule = planted.inside
    first = inside[inside.first_divergence].iloc[0]
    assert (first.scope, first.file, first.line) == (scope, *place)
    assert planted.because in first.note
    assert rule in set(lens.findings.rule)


def check_clean(planted: Planted, patch: pytest.MonkeyPatch) -> None:
    """Without the fault, nothing differs."""
    lens, numerics = verified(replace(planted, plant=None, options=None), patch)
    assert not (numerics.ok == False).any()  # noqa: E712 - a column with gaps
    assert set(numerics[numerics.scope == "call"].ok) == {True}
    assert lens.findings[lens.findings.severity == "error"].empty
