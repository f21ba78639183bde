"""One graph, from FX to a function, without Dynamo around it."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ortlens import OrtBackendOptions, SessionError, _torch
from ortlens.backend import error_text, graph
from ortlens.backend.context import CompileContext
from ortlens.backend.lowering.lowered import LoweredGraph
from ortlens.backend.runtime import session_info
from tests.unit.backend.graphs import traced

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_sessions_come_with_the_first_call_and_stay() -> None:
    compiled = compiled_from(lowered_from(two_pieces, torch.rand(4)))
    assert [len(runner.sessions) for runner in compiled.runners] == [0, 0]
    x = torch.rand(4)
    for calls in (1, 2, 3):
        args = [x]
        torch.testing.assert_close(tuple(compiled.run(args)), two_pieces(x))
        assert args == []
        assert compiled.session_calls() == 2 * calls
    assert [len(runner.sessions) for runner in compiled.runners] == [1, 1]


@pytest.mark.parametrize(("given", "used"), [(("a", "b"), ["a", "b"]), (("a", "a"), None), (("a",), None)])
def test_names_of_the_users_inputs_serve_when_they_are_distinct(given: tuple[str, ...], used: list[str] | None) -> None:
    work = lowered_from(lambda x, y: (x + y,), torch.rand(3), torch.rand(3))
    compiled = compiled_from(replace(work, input_names=given))
    assert compiled.outer_input_names() == (used or [node.name for node in compiled.placeholders()])


def test_first_calls_from_many_threads_make_one_session_per_partition() -> None:
    compiled = compiled_from(lowered_from(two_pieces, torch.rand(4)))
    barrier = threading.Barrier(6)

    def call(number: int) -> None:
        barrier.wait(timeout=30)
        x = torch.full((4,), float(number))
        torch.testing.assert_close(tuple(compiled.run([x])), two_pieces(x))

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(call, number) for number in range(6)]:
            done.result(timeout=60)
    assert [len(runner.sessions) for runner in compiled.runners] == [1, 1]
    assert compiled.session_calls() == 12


def test_the_graph_as_it_came_is_left_alone() -> None:
    work = lowered_from(lambda x, i: (x + i,), torch.rand(3), torch.arange(3))
    before = str(work.module.graph)
    compiled_from(work).run([torch.rand(3), torch.arange(3)])
    assert str(work.module.graph) == before


def test_a_graph_and_its_sessions_go_together() -> None:
    compiled = compiled_from(lowered_from(two_pieces, torch.rand(4)))
    compiled.run([torch.rand(4)])
    gone = [weakref.ref(compiled), weakref.ref(compiled.runners[0].sessions[0].session)]
    del compiled
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_static_inputs_are_frozen_and_noticed_when_they_change() -> None:
    compiled = compiled_from(lowered_from(lambda x, w: (x * w,), torch.rand(3), torch.rand(3), static=frozenset({1})))
    x, w = torch.rand(3), torch.rand(3)
    frozen = []
    for _ in range(5):
        torch.testing.assert_close(compiled.run([x, w]), [x * w])
        w.add_(1)
        ((info,),) = (runner.sessions for runner in compiled.runners)
        frozen.append([note.name for note in info.frozen])
    assert frozen == [["w_1"], ["w_1"], ["w_1"], [], []], "a weight that changes often is being trained"


def test_every_session_is_refused_and_pytorch_runs_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no sessions today")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    compiled = compiled_from(lowered_from(two_pieces, torch.rand(4)))
    x = torch.rand(4)
    torch.testing.assert_close(tuple(compiled.run([x])), two_pieces(x))
    assert compiled.session_calls() == 0
    strict = compiled_from(lowered_from(two_pieces, torch.rand(4)), on_error="raise")
    with pytest.raises(SessionError, match="refused partition 0: no sessions today"):
        strict.run([x])


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


def test_signatures() -> None:
    def function(x: torch.Tensor, n: int, flags: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.cat([x, x]) * n + flags.sum() + w,)

    args = (torch.rand(4, 3), 5, torch.tensor([True]), torch.rand(3).double())
    compiled = compiled_from(lowered_from(function, *args, symbolic=True, static=frozenset({3})))
    compiled.run(list(args))
    (runner,) = compiled.runners
    text = session_info.signature_text(runner.sessions[0], runner.partition)
    kinds = sorted(part.partition("[")[0] for part in text.split())
    assert kinds.count("f32") == 1
    assert kinds.count("bool") == 1
    assert "f64" not in kinds
    assert "[1]" in text


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("a\n  b"), "ValueError: a b"), (KeyError(), "KeyError"), (RuntimeError("x" * 999), None)],
)
def test_short_texts(error: Exception, said: str | None) -> None:
    text = error_text.short_text(error)
    assert len(text) <= 300
    assert "\n" not in text
    assert text == said or said is None
    outer = RuntimeError("outer")
    outer.__cause__ = error
    assert error_text.short_text(outer) == text
