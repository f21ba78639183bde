"""One graph, from FX to a function, without Dynamo around it."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ortlens import OrtBackendOptions, _torch
from ortlens.backend import graph
from ortlens.backend.basis import error_text
from ortlens.backend.compile_context import CompileContext
from ortlens.backend.lowering.entry import LoweredGraph
from tests.unit.backend.graphs import traced


def compiled_from(lowered: LoweredGraph, **options: Any) -> graph.CompiledGraph:
    return graph.CompiledGraph(lowered, CompileContext(options=OrtBackendOptions(**options), registry=_torch.shared_registry()))


def lowered_from(function: Callable[..., Any], *args: Any, static: frozenset[int] = frozenset(), symbolic: bool = False) -> LoweredGraph:
    table = _torch.decomposition_table(_torch.shared_registry())
    return LoweredGraph(
        module=traced(function, *args, symbolic=symbolic, decomposition_table=table),
        phase="inference",
        static_inputs=static,
        compile_id=None,
        op_count=0,
        aot_ns=0,
    )


def two_pieces(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.special.bessel_j0(x.sin() * 2).cos(),)


def test_a_refusal_at_a_weight_change_goes_back_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiled_from(lowered_from(lambda x, w: (x * w,), torch.rand(3), torch.rand(3), static=frozenset({1})))
    x, w = torch.rand(3), torch.rand(3)
    compiled.run([x, w])

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no more sessions")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    w.add_(1)
    with pytest.warns(RuntimeWarning, match="no more sessions"):
        torch.testing.assert_close(compiled.run([x, w]), [x * w])
    w.add_(1)
    torch.testing.assert_close(compiled.run([x, w]), [x * w])


def test_our_own_mistakes_are_not_blamed_on_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug between the session and the call must be heard, not filed as a refusal."""

    def broken(*_: Any, **__: Any) -> None:
        raise TypeError("a mistake in ortlens")

    monkeypatch.setattr("ortlens.backend.runtime.call.make_call", broken)
    compiled = compiled_from(lowered_from(two_pieces, torch.rand(4)))
    x = torch.rand(4)
    with pytest.warns(RuntimeWarning, match="a mistake in ortlens"):
        torch.testing.assert_close(tuple(compiled.run([x])), two_pieces(x))


def test_texts_of_errors_are_one_short_line_of_the_first_cause() -> None:
    for error, text in ((ValueError("a\n  b"), "ValueError: a b"), (KeyError(), "KeyError")):
        outer = RuntimeError("outer")
        outer.__cause__ = error
        assert error_text.short_text(error) == error_text.short_text(outer) == text
    assert len(error_text.short_text(RuntimeError("x" * 999))) <= 300
