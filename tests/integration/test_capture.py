"""`capture()` hears every compilation by our backend inside its block; `explain()` compiles, calls and returns a lens."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import threading
from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens, OrtBackend, UsageError, capture, explain
from ortlens.backend.api import ortlens_backend
from tests.integration.test_lens import broken, other

X = torch.linspace(-1, 1, 6)


def run(function: Any, backend: Any = "ortlens") -> None:
    with torch.no_grad():
        torch.compile(function, backend=backend)(X)


@pytest.mark.parametrize("backend", ["onnxrt", OrtBackend({"upcast": ("bfloat16",)})], ids=["onnxrt", "object"])
def test_capture_records_every_compile_by_our_backend_inside(backend: Any) -> None:
    run(torch.cos, backend)
    with capture(name="inside") as lens, torch.no_grad():
        fast = torch.compile(broken, backend=backend)
        fast(X)
        run(other, "eager")
    run(torch.tan, backend)
    with torch.no_grad():
        fast(X)
    assert (lens.output().graph_count, lens.output().graph_break_count) == (2, 1)
    assert lens.graphs.name.tolist() == ["broken", "broken"]
    assert lens.breaks.function.tolist() == ["broken"]
    assert lens.sessions.calls.tolist() == [2, 2], "calls after the block still count"
    assert lens.name == "inside"
    assert lens.captured().figures.option_upcast == (() if backend == "onnxrt" else ("bfloat16",))


def test_captures_may_overlap_without_being_nested() -> None:
    first, second = capture(), capture()
    one = first.__enter__()
    run(torch.sin)
    two = second.__enter__()
    run(torch.cos)
    first.__exit__(None, None, None)
    run(torch.tan)
    second.__exit__(None, None, None)
    run(torch.exp)
    assert (one.graphs.name.tolist(), two.graphs.name.tolist()) == (["sin"], ["cos", "tan"])


def test_a_capture_that_a_generator_another_thread_or_an_error_ends_is_over() -> None:
    def held() -> Generator[Lens, None, None]:
        with capture() as lens:
            yield lens

    def fails(lenses: list[Lens]) -> None:
        with capture() as lens:
            lenses.append(lens)
            run(torch.tan)
            raise KeyError("mine")

    generator = held()
    lenses = [next(generator)]
    run(torch.sin)
    closing = threading.Thread(target=generator.close)  # in another context than it began in
    closing.start()
    closing.join()
    with pytest.raises(KeyError, match="mine"):
        fails(lenses)
    run(torch.cos)
    assert [lens.graphs.name.tolist() for lens in lenses] == [["sin"], ["tan"]]


def test_captures_nest_and_the_innermost_or_the_own_lens_hears_and_none_of_another_thread() -> None:
    own = Lens()
    with capture() as outer:
        run(torch.sin, ortlens_backend)
        with capture() as inner:
            run(broken, ortlens_backend)
        elsewhere = threading.Thread(target=run, args=(torch.exp, ortlens_backend))
        elsewhere.start()
        elsewhere.join()
        run(torch.tan, ortlens_backend)
        run(other, own)
    assert [lens.graphs.name.tolist() for lens in (outer, inner, own)] == [["sin", "tan"], ["broken"] * 2, ["other"] * 2]
    assert [len(lens.breaks) for lens in (outer, inner, own)] == [0, 1, 1]


def test_explain_is_curried_and_isolated() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    with torch.no_grad():
        lenses = [explain(module, calls=3)(X) for _ in range(2)]
    for lens in lenses:
        assert lens.name == "Sequential"
        assert lens.graphs.coverage.tolist() == [1.0]
        assert lens.sessions.calls.tolist() == [3]
        assert lens.recompiles.empty


def test_explain_passes_keywords_and_options_and_bounds_its_calls() -> None:
    calls: list[float] = []

    def scaled(x: torch.Tensor, *, by: float) -> torch.Tensor:
        return x * by

    def slow(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        calls.append(0.0)
        return x + 1

    lens = explain(scaled, options={"min_partition_nodes": 9}, calls=1, name="named")(X, by=2.0)
    assert lens.name == "named"
    assert set(lens.fallbacks.reason_code) == {"too_small"}
    explain(slow, backend="eager")(X)
    assert 1 < len(calls) <= 262  # 160 compiled ones, 100 uncompiled ones in turns, and one of each in which operators are counted


@pytest.mark.parametrize("calls", [0, 2.5])
def test_explain_refuses_impossible_numbers_of_calls(calls: Any) -> None:
    with pytest.raises(UsageError, match="calls must be a whole number"):
        explain(torch.sin, calls=calls)
    with pytest.raises(UsageError, match="not int"):
        explain(3)  # type: ignore[call-overload]  # the mistake under test


class Awaited:
    async def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("target", [Awaited(), Awaited().__call__])
def test_explain_refuses_what_it_would_have_to_await(target: Any) -> None:
    with pytest.raises(UsageError, match="is a coroutine function; explain what it calls"):
        explain(target)
