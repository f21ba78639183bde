"""Recompiles name their values; constant sizes, functions of libraries and the recompile limit have advice of their own."""

# ruff: noqa: ANN401 - what is called takes anything

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ortlens import Lens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ortlens.trace.records import Recompile

X = torch.ones(3)


def recompiles(function: Callable[..., Any], *calls: tuple[Any, ...], dynamic: bool | None = None) -> tuple[Recompile, ...]:
    """What is told of these calls; every one of them must give the right answer."""
    lens = Lens("eager")
    compiled = torch.compile(function, backend=lens, dynamic=dynamic)
    for args in calls:
        torch.testing.assert_close(compiled(*args), function(*args))
    return lens.captured().recompiles


def times(x: torch.Tensor, n: Any) -> torch.Tensor:
    return torch.mul(x, n)


TABLES = {size: torch.arange(float(size)) for size in (3, 4, 5, 6)}


def looked_up(x: torch.Tensor) -> torch.Tensor:
    """Adds what a dictionary holds for the size, which makes the size a constant."""
    return x + TABLES[x.shape[0]]


@pytest.mark.parametrize("dynamic", [None, True])
def test_nobody_is_told_to_mark_a_size_that_the_code_makes_a_constant(*, dynamic: bool | None) -> None:
    sizes = [torch.ones(size) for size in TABLES]
    rows = recompiles(looked_up, *((x,) for x in sizes), dynamic=dynamic)
    assert len(rows) == 3
    for row in rows:
        assert (row.advice or "").startswith("Keep dimension 0 of `x` to few sizes: the code makes each a constant of its graph")
    torch._dynamo.mark_dynamic(sizes[0], 0)
    with pytest.raises(Exception, match="specialized it to be a constant"):  # what marking does
        recompiles(looked_up, (sizes[0],))


def test_after_a_reset_the_constants_of_another_function_do_not_count() -> None:
    lens = Lens("eager")
    for function, advice in ((looked_up, "Keep dimension 0 of `x` to few sizes"), (torch.nn.functional.silu, "Call `torch._dynamo.mark_")):
        torch._dynamo.reset()

        def applied_once(x: torch.Tensor, function: Callable[..., Any] = function) -> torch.Tensor:
            made: torch.Tensor = function(x)
            return made

        compiled = torch.compile(applied_once, backend=lens)
        for size in (3, 4):
            compiled(torch.ones(size))
        assert (lens.captured().recompiles[-1].advice or "").startswith(advice)


def test_a_limit_that_sizes_reached_which_are_constants_does_not_say_mark() -> None:
    sizes = [(torch.ones(size),) for size in TABLES]
    lens = Lens("eager")
    with torch._dynamo.config.patch(recompile_limit=2):
        compiled = torch.compile(looked_up, backend=lens)
        for args in sizes:
            torch.testing.assert_close(compiled(*args), looked_up(*args))
    advice = [item.advice or "" for item in lens.captured().breaks]
    assert any("to few sizes" in said for said in advice)
    assert not any("Call `torch._dynamo.mark_dynamic" in said for said in advice)


@pytest.mark.parametrize(
    ("folder", "advice"),
    [("site-packages", "Remove the graph break in the code that calls this function of a library"), ("mine", "Convert `x` to one dtype")],
)
def test_of_a_librarys_function_that_was_compiled_by_itself_the_graph_break_before_it_is_named(
    folder: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / folder
    package.mkdir()
    name = f"helper_{folder[:4]}"
    (package / f"{name}.py").write_text("def double(x):\n    return x * 2\n", encoding="utf-8")
    monkeypatch.syspath_prepend(package)
    helper = importlib.import_module(name)

    def breaks_in_a_loop(*tensors: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for x in tensors:
            torch._dynamo.graph_break()
            made.append(helper.double(x))
        return made

    (row,) = recompiles(breaks_in_a_loop, (X, X.double()))
    assert (row.function, (row.advice or "")[: len(advice)]) == ("double", advice)
    (row,) = recompiles(helper.double, (X,), (X.double(),))  # the user calls it
    assert (row.advice or "").startswith("Convert `x` to one dtype")


@pytest.mark.parametrize(
    ("function", "calls", "dynamic", "values"),
    [
        (torch.sin, [(torch.ones(n),) for n in (3, 4, 5)], False, ("3", "4", "5")),
        (times, [(X, n) for n in (2, 3, 4)], False, ("2", "3", "4")),
        (times, [(X, n) for n in (2.5, 3.5, 4.5)], False, ("2.5", "3.5", "4.5")),
        (times, [(X, 2), (X, 3.5)], False, ("2", "3.5")),
        (lambda x, sizes: x * len(sizes), [(X, [2, 3]), (X, [2, 3, 4])], None, ("2", "3")),
        (torch.cos, [(X,), (X.double(),)], None, ("Float", "Double")),
    ],
    ids=["sizes", "numbers", "floats", "number and float", "items", "dtypes"],
)
def test_values_that_came_are_read_from_the_frame(
    function: Callable[..., Any],
    calls: list[tuple[Any, ...]],
    dynamic: bool | None,  # noqa: FBT001 - a case
    values: tuple[str, ...],
) -> None:
    rows = recompiles(function, *calls, dynamic=dynamic)
    assert [row.values for row in rows] == [values[:count] for count in range(2, len(values) + 1)]


def test_a_size_of_one_is_a_constant_and_dynamic_is_not_advised() -> None:
    first, *_ = recompiles(lambda x, n: x + torch.zeros(n, 3), (X, 1), (X, 2), dynamic=True)
    assert (first.values, (first.advice or "").partition(",")[0]) == (("1", "2"), "Pass `n` as a tensor")


def test_values_of_modules_are_their_classes_and_modes() -> None:
    (row,) = recompiles(lambda x, f: f(x) + 1, (X, nn.ReLU()), (X, nn.Tanh()))
    assert row.values[-1] == "<class 'Tanh'>"
    model, lens = nn.Sequential(nn.Dropout(0.0)), Lens("eager")
    compiled = torch.compile(model, backend=lens)
    for _ in range(2):
        compiled(X)
        model.eval()
    (row,) = lens.captured().recompiles
    assert row.values == ("True", "False")


class Counting(nn.Module):
    """Planted: a guard that fails with every call."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        self.steps = start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps = self.steps + 1
        return torch.mul(x, self.steps)


def test_a_guard_that_always_fails_is_named_with_its_values_and_remedy() -> None:
    model, lens = Counting(0), Lens("eager")
    compiled = torch.compile(model, backend=lens)
    for call in range(11):
        torch.testing.assert_close(compiled(X), X * (call + 1))
    rows = lens.captured().recompiles
    assert len(rows) == torch._dynamo.config.recompile_limit - 1
    for number, row in enumerate(rows, start=1):
        assert row.guard == f"self.steps == {number - 1}"
        assert row.values == tuple(str(n) for n in range(number + 1))
        assert (row.advice or "").startswith("Make `self.steps` a tensor, as a buffer of the module")
    (limit,) = lens.captured().breaks
    assert "limit" in limit.reason
    assert (limit.file, limit.function) == (__file__, "forward")
    assert "Make `self.steps` a tensor" in (limit.advice or "")
    assert "seen: 0, 1, 2, 3, 4, 5, 6, 7, 8)" in (limit.advice or "")


def test_two_functions_at_the_limit_are_two_breaks() -> None:
    def longer(x: torch.Tensor, key: str) -> torch.Tensor:
        return x + len(key)

    def shorter(x: torch.Tensor, key: str) -> torch.Tensor:
        return x - len(key)

    lens = Lens("eager")
    for function in (longer, shorter):
        compiled = torch.compile(function, backend=lens)
        for number in range(10):
            compiled(X, "a" * number)
    assert lens.breaks.function.tolist() == ["longer", "shorter"]
    assert lens.breaks.advice.str.contains("`key == 'aaaaaaa'`").all()


def test_the_recompile_limit_is_placed_where_the_guard_was_read() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = ["0"]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.seen[0] != "none":  # read here
                self.seen[0] = str(int(self.seen[0]) + 1)
            return x + 1

    lens = Lens("eager")
    fast = torch.compile(Counts(), backend=lens)
    for _ in range(12):
        fast(torch.rand(3))
    (row,) = lens.captured().breaks
    assert "limit" in row.reason
    assert (row.source or "").endswith("# read here")
