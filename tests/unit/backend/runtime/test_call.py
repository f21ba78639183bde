"""The function written for a session: what it binds, allocates, checks and hands back."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import onnxruntime
import pytest
import torch

from ortlens.backend.runtime import call, generated, weights
from ortlens.backend.runtime.binding import Binding, Input, Output
from ortlens.trace.runlog import RunLog
from tests.unit.backend.conversion.test_converter import as_partition, converted

if TYPE_CHECKING:
    from collections.abc import Callable


class Session:
    """A session over a function, and the calls that came back from it."""

    def __init__(
        self, function: Callable[..., Any], *args: Any, symbolic: bool = False, preallocate: bool = False, log: RunLog | None = None
    ) -> None:
        module = as_partition(function, *args, symbolic=symbolic)
        proto, made = converted(module)
        self.session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        self.taken = {value.name for value in self.session.get_inputs()}
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        (output,) = (node for node in module.graph.nodes if node.op == "output")
        self.inputs = [Input(name=node.name, meta=node.meta["val"], bound=node.name in self.taken) for node in placeholders]
        names = [value.name for value in self.session.get_outputs()]
        self.outputs = [
            Output(name=name, meta=node.meta["val"], permutation=permutation)
            for name, node, permutation in zip(names, output.args[0], made.output_permutations, strict=True)
        ]
        self.counted = 0
        self.failures: list[Exception] = []
        self.stale = 0
        self.run = self.made(preallocate=preallocate, log=log)

    def made(self, *, preallocate: bool, log: RunLog | None) -> Callable[..., tuple[Any, ...]]:
        return call.make_call(
            self.session,
            self.inputs,
            self.outputs,
            on_stale=self._on_stale,
            on_failure=self._on_failure,
            count=self._count,
            log=log,
            preallocate=preallocate,
        )

    def _on_stale(self, _args: tuple[Any, ...]) -> tuple[Any, ...]:
        self.stale += 1
        return ("stale",)

    def _on_failure(self, args: tuple[Any, ...], error: Exception) -> tuple[Any, ...]:
        self.failures.append(error)
        return ("failed", *args)

    def _count(self) -> None:
        self.counted += 1


@pytest.mark.parametrize("preallocate", [True, False])
def test_symbolic_sizes_any_number_of_times(preallocate: bool) -> None:  # noqa: FBT001 - a parameter of the test
    session = Session(
        lambda x, y: (torch.cat([x, y * 2]), x.t().sin()), torch.rand(5, 3), torch.rand(2, 3), symbolic=True, preallocate=preallocate
    )
    for rows, more, columns in ((4, 7, 2), (2, 2, 9), (5, 3, 3)):
        x, y = torch.rand(rows, columns), torch.rand(more, columns)
        joined, turned = session.run(x, y)
        torch.testing.assert_close(joined, torch.cat([x, y * 2]))
        torch.testing.assert_close(turned, x.t().sin())
        assert turned.stride() == x.t().sin().stride()
    assert session.counted == 3
    assert not session.failures


@pytest.mark.parametrize("preallocate", [True, False])
def test_no_elements(preallocate: bool) -> None:  # noqa: FBT001 - a parameter of the test
    session = Session(lambda x: (x * 2, x.sum()), torch.rand(5, 3), symbolic=True, preallocate=preallocate)
    doubled, total = session.run(torch.empty(0, 3))
    assert doubled.shape == (0, 3)
    torch.testing.assert_close(total, torch.tensor(0.0))
    fixed = Session(lambda x: x + 1, torch.empty(0, 4), preallocate=preallocate)
    assert fixed.run(torch.empty(0, 4))[0].shape == (0, 4)
    assert not session.failures + fixed.failures


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("symbolic", [True, False])
def test_element_types_come_back_as_they_went(dtype: torch.dtype, symbolic: bool) -> None:  # noqa: FBT001 - a parameter of the test
    value = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    session = Session(lambda x: (x.t(), torch.cat([x, x])), value, symbolic=symbolic)
    turned, joined = session.run(value)
    torch.testing.assert_close(turned, value.t())
    torch.testing.assert_close(joined, torch.cat([value, value]))
    assert not session.failures


def test_results_are_fresh_memory_every_time() -> None:
    session = Session(lambda x: x + 1, torch.rand(4), preallocate=True)
    first = session.run(torch.zeros(4))[0]
    second = session.run(torch.ones(4))[0]
    torch.testing.assert_close((first, second), (torch.ones(4), torch.full((4,), 2.0)))


@pytest.mark.parametrize("symbolic", [True, False])
def test_results_in_another_memory_order_are_no_views(symbolic: bool) -> None:  # noqa: FBT001 - a parameter of the test
    x = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    session = Session(lambda x: x * 2, x, symbolic=symbolic)
    (made,) = session.run(x)
    torch.testing.assert_close(made, x * 2)
    assert made.stride() == x.stride()
    assert not made._is_view()
    assert not session.failures


def test_results_live_longer_than_their_session() -> None:
    session = Session(lambda x: torch.cat([x, x + 1]), torch.rand(4), symbolic=True)
    kept = [session.run(torch.full((n,), float(n)))[0] for n in (2, 3, 500)]
    del session
    gc.collect()
    for n, result in zip((2, 3, 500), kept, strict=True):
        torch.testing.assert_close(result, torch.cat([torch.full((n,), float(n)), torch.full((n,), n + 1.0)]))


def test_inputs_of_any_layout() -> None:
    session = Session(lambda x: x * 2, torch.rand(3, 4))
    for x in (torch.rand(4, 3).t(), torch.rand(6, 8)[::2, ::2], torch.rand(1, 4).expand(3, 4), torch.rand(4, 4)[1:]):
        torch.testing.assert_close(session.run(x)[0], x * 2)


def test_numbers_in_and_out() -> None:
    meta = {"rows": 4, "flag": True}
    model = _model_of_numbers()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    run = call.make_call(
        session,
        [
            Input(name="rows", meta=meta["rows"]),
            Input(name="flag", meta=meta["flag"]),
            Input(name="unused", meta=3, bound=False),
        ],
        [Output(name="more", meta=5), Output(name="other", meta=False)],
        on_stale=lambda args: args,
        on_failure=_reraise,
        count=lambda: None,
        log=None,
        preallocate=False,
    )
    for number, flag in ((41, True), (-7, False), (2**40, False)):
        result = run(number, flag, 0)
        assert result == (number + 1, not flag)
        assert [type(item) for item in result] == [int, bool]


def _reraise(_args: tuple[Any, ...], error: Exception) -> tuple[Any, ...]:
    raise error


def _model_of_numbers() -> bytes:
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Add", ["rows", "one"], ["more"]), helper.make_node("Not", ["flag"], ["other"])],
        "numbers",
        [helper.make_tensor_value_info("rows", TensorProto.INT64, []), helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("more", TensorProto.INT64, []), helper.make_tensor_value_info("other", TensorProto.BOOL, [])],
        [helper.make_tensor("one", TensorProto.INT64, [], [1])],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    data: bytes = model.SerializeToString()
    return data


def test_a_failing_run_is_handed_over_with_the_arguments_and_not_counted() -> None:
    session = Session(lambda x, y: x + y, torch.rand(3), torch.rand(3))
    wrong = torch.rand(3), torch.rand(5)
    assert session.run(*wrong) == ("failed", *wrong)
    assert (session.counted, len(session.failures)) == (0, 1)
    torch.testing.assert_close(session.run(torch.ones(3), torch.ones(3))[0], torch.full((3,), 2.0))
    assert session.counted == 1


def test_calls_are_logged_when_somebody_watches() -> None:
    log = RunLog("s0", "g0")
    session = Session(lambda x: x + 1, torch.rand(4), log=log)
    for _ in range(3):
        session.run(torch.rand(4))
    rows = list(log.rows())
    assert [row[0] for row in rows] == [0, 1, 2]
    assert all(start <= bound <= ran <= done for _, start, bound, ran, done, _ in rows)


def test_a_changed_weight_is_noticed_before_the_run() -> None:
    session = Session(lambda x, w: x * w, torch.rand(3), torch.rand(3))
    weight = torch.rand(3)
    note = weights.freeze("w", weight)
    assert note is not None
    session.inputs[1] = Input(name=session.inputs[1].name, meta=session.inputs[1].meta, frozen=note)
    bound = Binding(session.session, session.inputs, session.outputs)
    bound.bind_input  # noqa: B018 - it must exist as long as the binding does
    run = session.made(preallocate=True, log=None)
    for other in (weight.clone(), weight.detach(), torch.rand(3)):
        assert run(torch.rand(3), other) == ("stale",)
    weight.add_(1)
    assert run(torch.rand(3), weight) == ("stale",)
    assert session.stale == 4


@pytest.mark.parametrize("name", ["real", "imag"])
def test_padded_strides_that_follow_from_a_half_of_a_size(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        part: torch.Tensor = getattr(torch.fft.rfft(x).conj(), name)
        return part

    compiled = torch.compile(function, backend="ortlens", dynamic=True)
    with torch.no_grad():
        for columns in (4, 7, 10):
            x = torch.linspace(-1, 1, 3 * columns).reshape(3, columns)
            torch.testing.assert_close(compiled(x), function(x))
            assert compiled(x).stride() == function(x).stride()


def test_the_source_of_a_call_grows_with_its_weights_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def written(name: str, source: str, scope: dict[str, Any]) -> Callable[..., Any]:
        lengths.append(len(source))
        return generated.function_from_source(name, source, scope)

    monkeypatch.setattr(call, "function_from_source", written)
    session = Session(lambda x, w: x * w, torch.rand(3), torch.rand(3))
    inputs = session.inputs
    for count in (20, 200):
        notes = [weights.freeze(f"w{at}", torch.rand(3)) for at in range(count)]
        session.inputs = [inputs[0], *(Input(name=f"w{at}", meta=inputs[1].meta, frozen=note) for at, note in enumerate(notes))]
        session.made(preallocate=True, log=None)
    assert lengths[1] < 11 * lengths[0]
