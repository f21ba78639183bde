"""One wrong answer of each class that values alone do not show: sizes, errors, state, memory, numbers beside 16-bit tensors."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from onnxscript import opset18

import ortlens
from ortlens import _torch
from ortlens.backend.api import OrtBackend
from tests.integration.planting import INSIDE, LOWERING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.integration.planting import Plant

op: Any = opset18
_aten = torch.ops.aten


def outside(name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Plant:
    """Puts something around the function that a method of the backend returns."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        plain: Any = getattr(OrtBackend, name)
        patch.setattr(OrtBackend, name, lambda *args, **settings: change(plain(*args, **settings)))

    return plant


def truncating(patch: pytest.MonkeyPatch) -> None:
    """Divides sizes towards zero."""
    plain = _torch.dispatch

    def dispatch(node: torch.fx.Node, registry: object) -> Callable[..., Any] | None:
        return op.Div if node.target is operator.floordiv else plain(node, registry)

    patch.setattr(_torch, "dispatch", dispatch)


def clamping(table: torch.Tensor, dim: int, index: torch.Tensor) -> Any:  # noqa: ANN401 - a value of ONNX Script
    """Reads the last element where an index is out of range."""
    return op.Gather(table, op.Min(index, op.Constant(value_ints=[3])), axis=dim)


def on_copies(run: Callable[..., Any]) -> Callable[..., Any]:
    """Takes arguments that are one tensor for two."""

    def call(*args: torch.Tensor) -> object:
        copies = [value.clone() for value in args]
        result = run(*copies)
        args[0].copy_(copies[0])
        return result

    return call


def writing_although_it_raises(run: Callable[..., Any]) -> Callable[..., Any]:
    """Writes the state before the check."""

    def call(*args: Any) -> object:  # noqa: ANN401 - what Dynamo passes
        try:
            return run(*args)
        except IndexError:
            next(value for value in args if isinstance(value, torch.Tensor) and value.shape == (7,)).add_(1)
            raise

    return call


def raising_another_error(run: Callable[..., Any]) -> Callable[..., Any]:
    """Raises what nobody who expects PyTorch's error catches."""

    def call(*args: object) -> object:
        try:
            return run(*args)
        except IndexError as error:
            raise ValueError from error

    return call


def with_other_gaps(run: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves memory between the elements of a view as it was."""

    def relaid(value: torch.Tensor) -> torch.Tensor:
        view = torch.ones(16, dtype=value.dtype).as_strided(value.shape, value.stride())
        return view.copy_(value)

    return lambda *args: [relaid(value) for value in run(*args)]


def half(x: torch.Tensor) -> torch.Tensor:
    return x[: -(-x.shape[0] // 2)] * 2


class Stepped(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a + b


def stepped_twice() -> tuple[torch.export.ExportedProgram, Sequence[torch.Tensor]]:
    shared = torch.zeros(3)
    return torch.export.export(Stepped(), (torch.zeros(3), torch.zeros(3))), (shared, shared)


def stored(c: torch.Tensor, e: torch.Tensor, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = e[i] * 2
    c.add_(x)
    return y.sum() + c.sum()


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A wrong answer.

    Attributes:
        program: Makes what is compiled and its arguments.
        later: Makes the arguments of `verify`; None: the same.
        rows: Scope and node of the rows that are wrong, with a piece of their notes.
        findings: Rule and subject of the errors.
        says: A piece of their evidence.
    """

    program: Callable[[], tuple[Any, Sequence[Any]]]
    plant: Plant | None = None
    later: Callable[[], Sequence[Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    rows: Mapping[tuple[str, str], str]
    findings: set[tuple[str, str]]
    says: str


CALL = ("call_differs", "call")
CLASSES = {
    "floor division of sizes truncates": Wrong(
        program=lambda: (half, (torch.rand(4),)),
        later=lambda: (torch.rand(5),),
        plant=truncating,
        dynamic=True,
        rows={
            ("value", "floordiv"): "its ONNX function is wrong",
            ("value", "neg_1"): "see floordiv",
            ("value", "slice_1"): "shape",
            ("value", "mul_1"): "shape",
            ("output", "mul_1"): "shape",
            ("call", "result"): "shape",
        },
        findings={CALL, ("numbers_differ", "floordiv")},
        says=INSIDE,
    ),
    "an exported program takes one tensor for two": Wrong(
        program=stepped_twice,
        plant=outside("compile_program", on_copies),
        rows={("call", "result"): ""},
        findings={CALL},
        says=LOWERING,
    ),
    "state is written although the call raises": Wrong(
        program=lambda: (stored, (torch.zeros(7), torch.rand(4), torch.tensor([1]), torch.ones(7))),
        later=lambda: (torch.zeros(7), torch.rand(4), torch.tensor([9]), torch.ones(7)),
        plant=outside("__call__", writing_although_it_raises),
        rows={("call", "c after the call"): "although PyTorch raises IndexError"},
        findings={CALL},
        says=LOWERING,
    ),
    "a check is lost": Wrong(
        program=lambda: (lambda e, i: torch.index_select(e, 0, i) * 2, (torch.rand(4), torch.tensor([1]))),
        later=lambda: (torch.rand(4), torch.tensor([9])),
        options={"custom_translation_table": {_aten.index_select.default: clamping}},
        rows={("value", "index_select"): "PyTorch raises IndexError", ("call", "result"): "returns, PyTorch raises IndexError"},
        findings={CALL, ("numbers_differ", "index_select")},
        says=INSIDE,
    ),
    "an error is of another class": Wrong(
        program=lambda: (lambda e, i: e[i] * 2, (torch.rand(4), torch.tensor([1]))),
        later=lambda: (torch.rand(4), torch.tensor([9])),
        plant=outside("__call__", raising_another_error),
        rows={("call", "result"): "raises ValueError: , PyTorch raises IndexError"},
        findings={CALL},
        says=LOWERING,
    ),
    "a number is rounded to float16": Wrong(
        program=lambda: (lambda x: x * 0.123, (torch.randn(2000).half(),)),
        options={"custom_translation_table": {_aten.mul.Tensor: lambda x, y: op.Mul(x, op.CastLike(op.Cast(y, to=10), x))}},
        rows={("value", "mul"): "0.123 is rounded to 16 bits"},
        findings={("numbers_differ", "mul")},
        says="in the ONNX function of aten.mul.Tensor",
    ),
    "the gaps of a view hold other memory": Wrong(
        program=lambda: (lambda x: (x > 1)[..., :3], (torch.rand(4, 4),)),
        plant=outside("__call__", with_other_gaps),
        rows={("call", "result"): "memory between its elements"},
        findings={CALL},
        says=LOWERING,
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_wrong_answer_of_each_class_is_red(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = CLASSES[name]
    target, args = wrong.program()
    if wrong.plant is not None:
        wrong.plant(monkeypatch)
    with torch.no_grad():
        lens = ortlens.explain(target, calls=1, options=wrong.options, dynamic=wrong.dynamic)(*args)
        numerics = lens.verify(*(wrong.later() if wrong.later is not None else args))
    red = {(row.scope, row.node): row.note for row in numerics[numerics.ok == False].itertuples()}  # noqa: E712 - a column with gaps
    assert set(red) == set(wrong.rows)
    assert all(wrong.rows[key] in note for key, note in red.items())
    errors = lens.findings[lens.findings.severity == "error"]
    assert set(zip(errors.rule, errors.subject, strict=True)) == wrong.findings
    assert any(wrong.says in evidence for evidence in errors.evidence)
    assert "lens_failed" not in set(lens.findings.rule)
