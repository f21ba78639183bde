"""A lens sees its own compilations and no others, wraps any backend, and leaves nothing behind."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import copy
import pickle
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens, OrtBackend, UsageError
from ortlens.analysis.ledger import time_base
from ortlens.analysis.timing import call_time, call_times
from ortlens.backend.api import ortlens_backend
from ortlens.lens.observing import listener
from ortlens.lens.process import ProcessBackends

X = torch.linspace(-1, 1, 6)


def broken(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def other(x: torch.Tensor) -> torch.Tensor:
    x = x * 3
    torch._dynamo.graph_break()
    return x.tan() + 1


def test_compiling_takes_no_capture_of_the_lens(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch.compile asks a backend for its name. Without one it takes the object's text, for which a lens draws up what it recorded.
    taken: list[Lens] = []

    def captured(lens: Lens) -> None:
        taken.append(lens)

    monkeypatch.setattr(Lens, "captured", captured)
    torch.compile(torch.cos, backend=Lens())(X)
    assert taken == []


def test_two_lenses_and_an_unrelated_compile_never_mix() -> None:
    first, second = Lens(name="first"), Lens("eager", name="second")
    one, two, three = torch.compile(broken, backend=first), torch.compile(other, backend=second), torch.compile(other, backend="eager")
    for shape in (3, 4, 5):
        for compiled in (one, two, three):
            compiled(torch.ones(shape))
    assert set(first.graphs.name) == {"broken"}
    assert set(second.graphs.name) == {"other"}
    assert set(first.breaks.function) == {"broken"}
    assert set(second.breaks.function) == {"other"}
    assert len(first.breaks) == len(second.breaks) == 1
    assert set(first.recompiles.function) == {"broken"}
    assert set(second.recompiles.function) == {"other"}
    assert len(second.runs) == 6  # two graphs a call, three calls
    assert second.sessions.empty
    for function in (broken, lambda x: x * 3):
        torch.compile(function, backend=second)(X)
    assert second.breaks.function.tolist() == ["other", "broken"]
    assert second.breaks.occurrences.tolist() == [1, 1]


def mine(module: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
    return module.forward


class BackendObject:
    def __call__(self, module: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
        return module.forward


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("eager", "eager"),
        ("aot_eager", "aot_eager"),
        pytest.param("inductor", "inductor", marks=[pytest.mark.inductor, pytest.mark.slow]),
        (mine, "mine"),
        (BackendObject(), "BackendObject"),
    ],
)
def test_foreign_backends_are_timed_and_have_no_partitions(backend: Any, name: str) -> None:
    lens = Lens(backend)
    compiled = torch.compile(lambda x: x.sin() + 1, backend=lens, dynamic=True)
    with torch.no_grad():
        for size in (4, 5, 6):
            torch.testing.assert_close(compiled(torch.ones(size)), torch.ones(size).sin() + 1)
    (graph,) = lens.captured().graphs
    assert (graph.phase, graph.dynamic_shapes, graph.op_count) == ("inference", True, 2)
    assert (graph.node_count, graph.partition_count, graph.coverage) == (None, None, None)
    assert lens.captured().backend == name
    assert len(lens.runs) == 3
    assert lens.runs.session_id.isna().all()
    assert (lens.runs.total_ns > 0).all()
    for table in ("nodes", "partitions", "fallbacks", "models", "sessions"):
        assert getattr(lens, table).empty


def test_a_foreign_backend_in_training_is_told_as_forward() -> None:
    lens = Lens("aot_eager")
    torch.compile(nn.Linear(3, 2), backend=lens)(torch.ones(1, 3)).sum().backward()
    assert lens.graphs.phase.tolist() == ["forward"]


@pytest.mark.parametrize("backend", ["ortlens", "onnxrt", ortlens_backend, OrtBackend()], ids=["ortlens", "onnxrt", "function", "object"])
def test_our_backend_under_every_name(backend: Any) -> None:
    lens = Lens(backend)
    with torch.no_grad():
        torch.compile(torch.sin, backend=lens)(X)
    assert lens.captured().backend == "ortlens"
    assert lens.sessions.calls.tolist() == [1]


def test_what_cannot_be_a_backend_is_refused() -> None:
    with pytest.raises(UsageError, match="no_such_backend"):
        Lens("no_such_backend")
    with pytest.raises(UsageError, match="options are for the ortlens backend"):
        Lens("eager", options={"min_partition_nodes": 2})


LET_GO = """
import gc, logging, weakref
import torch
from ortlens import Lens
model, lens = torch.nn.Linear(6, 2), Lens()
torch.compile(model, backend=lens)(torch.randn(4, 6)).sum().backward()
log = logging.getLogger("torch.__trace")
listening = any("TraceListener" in type(handler).__name__ for handler in log.handlers)
gone = weakref.ref(lens), weakref.ref(lens._recorder), weakref.ref(lens._watch)
del lens
torch.compiler.reset()
gc.collect()
print(listening, [reference() for reference in gone], [type(handler).__name__ for handler in log.handlers])
"""


@pytest.mark.slow
def test_a_lens_that_is_let_go_leaves_nothing(run_python: Callable[..., str]) -> None:
    # In an interpreter of its own: a failed compilation in an earlier test may live on in the traceback of a log record.
    assert run_python(LET_GO).splitlines()[-1] == "True [None, None, None] []"


def test_a_failure_inside_the_listener_becomes_a_finding_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def tripping(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(listener.DynamoWatch, "on_graph_break", tripping)
    monkeypatch.setattr(listener.DynamoWatch, "heard_metrics", tripping)
    lens = Lens()
    compiled = torch.compile(broken, backend=lens)
    with warnings.catch_warnings(record=True) as heard, torch.no_grad():
        warnings.simplefilter("always")
        for size in (3, 4, 5):
            torch.testing.assert_close(compiled(torch.ones(size)), broken(torch.ones(size)))
    said = [str(warning.message) for warning in heard if "ortlens" in str(warning.message)]
    assert len(said) == 1
    assert "ZeroDivisionError: planted" in said[0]
    assert {finding.rule for finding in lens.captured().findings} == {"lens_failed"}
    assert "planted" in lens.captured().findings[0].evidence
    assert lens.sessions.calls.sum() >= 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(torch.compile(torch.sin, backend=(lens := Lens("eager")))(X), X.sin())
    assert len(lens.findings) >= 1


def stage(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1)[:, 1:]


def stages(x: torch.Tensor) -> torch.Tensor:
    """PyTorch gives up on the loop, and compiles each stage by itself: versions of one code."""
    for number in range(3):
        if number == 0 and x.abs().mean() > 5:
            x = x * 0.5
        x = stage(x)
    return x


@torch.no_grad()
@pytest.mark.parametrize("calls", [1, 4])
def test_a_call_is_a_call_of_what_is_explained_and_else_a_run(calls: int) -> None:
    lens = ortlens.explain(stages, calls=calls)(x := torch.ones(2, 8))
    call = call_time(lens.captured())
    assert (call.calls, call.is_call, sum(call.entries.values()), lens.sessions.calls.sum()) == (calls, True, 3, 3 * calls)
    with ortlens.capture() as lens:
        fast = torch.compile(stages, backend="ortlens")
        for _ in range(4):
            fast(x)
    assert "median of 12 runs of compiled code" in " ".join(lens.summary().split())
    lens.measure(x)
    assert time_base(lens.captured()) == "call"
    assert call_time(lens.captured()).calls == round(lens.sessions.calls.sum() / 3)


def test_each_compiled_function_of_a_lens_has_its_own_time_per_call() -> None:
    lens = ortlens.Lens()
    encode, decode = torch.compile(nn.Linear(8, 8), backend=lens), torch.compile(nn.Linear(8, 4), backend=lens)
    wide = torch.compile(torch.sin, backend=lens)
    with torch.no_grad():
        encode(torch.ones(2, 8))
        for _ in range(5):
            decode(torch.ones(2, 8))
        for _ in range(3):
            wide(torch.ones(4))
    assert [graph.target for graph in lens.captured().graphs] == ["Linear", "Linear (2)", "sin"]
    assert [(call.function, call.calls) for call in call_times(lens.captured())] == [("Linear", 1), ("Linear (2)", 5), ("sin", 3)]
    assert [call.total_ns for call in call_times(lens.captured())] == lens.sessions.p50_ns.tolist()


@torch.no_grad()
def test_measurements_compare_with_the_uncompiled_target_unless_calls_are_counted() -> None:
    called = []

    def target(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            called.append(x)
        return x.sin() + 1

    x = torch.rand(4)
    counted = ortlens.explain(target, calls=20)(x)
    assert not called
    assert counted.captured().figures.uncompiled_ns is None
    lens = ortlens.explain(target)(x)
    assert called
    assert (lens.captured().figures.uncompiled_ns or 0) > 0

    lens = ortlens.Lens()
    fast = torch.compile(target, backend=lens)
    called.clear()
    fast(x)
    assert not called
    lens.measure(x)
    assert called
    assert (lens.captured().figures.uncompiled_ns or 0) > 0
    sessions = int(lens.sessions.calls.sum())
    called.clear()
    fast(x)
    assert not called
    assert int(lens.sessions.calls.sum()) == sessions + 1


@pytest.mark.parametrize("calls", [None, 1])
def test_explain_says_how_often_it_called_the_target(calls: int | None) -> None:
    model = nn.BatchNorm1d(4).train()
    lens = ortlens.explain(model, calls=calls)(torch.randn(8, 4))
    figures = lens.captured().figures
    made, plain = figures.explain_calls or 0, figures.explain_uncompiled_calls or 0
    assert int(model.num_batches_tracked or 0) == made + plain, "what a call changes, nothing else changed"
    assert calls in (None, made)
    assert ("calls=1 calls it once" in " ".join(lens.summary().split())) == (calls is None)


def test_a_slow_target_is_called_few_times() -> None:
    made: list[float] = []

    @torch.compiler.disable
    def waits() -> None:
        made.append(time.perf_counter())
        time.sleep(0.05)

    def slow(x: torch.Tensor) -> torch.Tensor:
        waits()
        return x * 2 + 1

    lens = ortlens.explain(slow)(torch.randn(4))
    figures = lens.captured().figures
    assert len(made) == (figures.explain_calls or 0) + (figures.explain_uncompiled_calls or 0)
    assert len(made) <= 40  # two seconds of calls, where a second is promised


ROWS = torch.linspace(-1, 1, 8).reshape(2, 4)
BACKENDS = {
    "name": lambda: "ortlens",
    "OrtBackend": lambda: OrtBackend({"min_partition_nodes": 2}),
    "Lens": lambda: Lens(options={"min_partition_nodes": 2}, name="mine"),
    "Lens over another": lambda: Lens("eager"),
    "process": lambda: ProcessBackends().watched("ortlens"),
}


def pickled(held: Any) -> Any:
    return pickle.loads(pickle.dumps(held))  # noqa: S301 - our own


@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_a_compiled_module_is_copied_and_pickled(make: Callable[[], Any]) -> None:
    model = nn.Linear(4, 3)
    with torch.no_grad():
        compiled = torch.compile(model, backend=make())
        uncalled = copy.deepcopy(compiled)
        torch.testing.assert_close(compiled(ROWS), model(ROWS))
        for each in (uncalled, copy.copy(compiled), pickled(compiled), compiled):
            torch.testing.assert_close(each(ROWS), model(ROWS))


def test_a_pickled_lens_is_a_new_one_over_the_same_backend() -> None:
    lens = Lens(options={"min_partition_nodes": 2}, name="mine")
    with torch.no_grad():
        compiled = pickled(torch.compile(nn.Linear(4, 3), backend=lens))
        compiled(ROWS)
    made = pickled(lens)
    assert (made.name, made.captured().environment.get("option_min_partition_nodes", "2")) == ("mine", "2")
    assert lens.graphs.empty
