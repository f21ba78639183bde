"""Graphs that stay in PyTorch as they are: those that only update tensors in place, and loops that tracing unrolled."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens, UsageError, freeze
from ortlens.backend.compiler import GraphCompiler
from ortlens.backend.lowering import entry
from tests.integration.against_eager import same_as_eager

X, Y = torch.ones(3), torch.ones(3)


def _of_lists(x: torch.Tensor, y: torch.Tensor) -> None:
    torch._foreach_add_([x, y], 2.0)


UPDATES: dict[str, Callable[..., Any]] = {
    "methods": lambda x, y: (x.add_(y, alpha=-0.1), y.zero_()),
    "an operator": operator.iadd,
    "lists": _of_lists,
    "twice": lambda x, y: x.mul_(0.9).add_(y),
    "twice by name, and with what was updated": lambda x, y: (x.mul_(0.9), x.add_(y), y.sub_(x)),
}
MORE: dict[str, Callable[..., Any]] = {
    "a computation": lambda x, y: x.add_(y * 2),
    "something made": lambda x, y: (x + y).mul_(2),
    "a view": lambda x, y: x[1:].add_(y[1:]),
    "nothing in place": torch.add,
}


@pytest.mark.parametrize("name", [*UPDATES, *MORE])
def test_updates_alone_stay_in_pytorch(name: str) -> None:
    function, lens, ours, theirs = {**UPDATES, **MORE}[name], Lens(), (X.clone(), Y.clone()), (X.clone(), Y.clone())
    torch.compile(function, backend=lens)(*ours)
    function(*theirs)
    torch.testing.assert_close(ours, theirs)
    assert lens.partitions.empty == (name in UPDATES)


def test_they_load_no_onnx_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(GraphCompiler, "tables", asked.append)
    torch.compile(UPDATES["lists"], backend="ortlens")(X.clone(), Y.clone())
    assert not asked


def test_they_run_as_recorded_and_the_lens_says_why() -> None:
    lens = Lens()
    layer = nn.Linear(3, 2)
    grads = [torch.ones_like(weight) for weight in layer.parameters()]
    expected = [weight - grad * 0.5 for weight, grad in zip(layer.parameters(), grads, strict=True)]

    def step() -> None:
        for weight, grad in zip(layer.parameters(), grads, strict=True):
            weight.add_(grad, alpha=-0.5)

    with torch.no_grad():
        torch.compile(step, backend=lens)()
    torch.testing.assert_close(list(layer.parameters()), expected)
    assert lens.partitions.empty
    assert set(lens.fallbacks.reason_code) == {"policy"}
    assert lens.fallbacks.reason.str.contains("updates tensors in place and computes nothing else").all()


def test_a_function_of_the_users_takes_them_to_onnx_runtime() -> None:
    from onnxscript import opset18

    table = {torch.ops.aten.add.Tensor: lambda x, y, alpha=1.0: opset18.Add(x, y)}  # noqa: ARG005 - the operator's schema
    lens, x = Lens(options={"custom_translation_table": table}), X.clone()
    torch.compile(lambda x, y: x.add_(y), backend=lens)(x, Y)
    torch.testing.assert_close(x, X + Y)
    assert len(lens.partitions) == 1


class Loop(nn.Module):
    """Forty steps, of which each has two operations, and a few operations before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sin().cos()
        for _ in range(40):
            x = x * 0.9 + 0.1
        return x


def test_a_loop_that_was_unrolled_beyond_the_bound_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "_MOST_OPERATIONS", 60)
    monkeypatch.setattr(entry, "_MOST_OF_A_LINE", 100)
    assert not same_as_eager(nn.Sequential(Loop(), Loop()), [X]).fallbacks, "80 of the line in each module"
    monkeypatch.setattr(entry, "_MOST_OF_A_LINE", 60)
    capture = same_as_eager(Loop(), [X])
    said = "tracing unrolled a loop: 80 of the 82 operators of the graph are from "
    assert (capture.partitions, {row.reason_code for row in capture.fallbacks}) == ((), {"policy"})
    assert all(said in row.reason and f"{__file__.rpartition('/')[2]}:" in row.reason for row in capture.fallbacks)
    with pytest.raises(UsageError, match="unrolled a loop: 80 of the 82 operators"):
        freeze(Loop(), X)
