"""The function written for a session: what it binds, allocates, checks and hands back."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import gc
import linecache
import traceback
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch

import ortlens
from ortlens.backend.runtime import call, generated, weights
from ortlens.backend.runtime.binding import BoundInput, Output
from ortlens.backend.runtime.generated import function_from_source
from tests.unit.backend.conversion.test_converter import as_partition, converted


class Session:
    """A session over a function, and the calls that came back from it."""

    def __init__(self, function: Callable[..., Any], *args: Any, symbolic: bool = False, preallocate: bool = False) -> None:
        module = as_partition(function, *args, symbolic=symbolic)
        proto, made = converted(module)
        self.session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        taken = {value.name for value in self.session.get_inputs()}
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        (output,) = (node for node in module.graph.nodes if node.op == "output")
        self.inputs = [BoundInput(name=node.name, meta=node.meta["val"], bound=node.name in taken) for node in placeholders]
        names = [value.name for value in self.session.get_outputs()]
        self.outputs = [
            Output(name=name, meta=node.meta["val"], permutation=permutation)
            for name, node, permutation in zip(names, output.args[0], made.output_permutations, strict=True)
        ]
        self.counted = 0
        self.failures: list[Exception] = []
        self.run = self.made(preallocate=preallocate)

    def made(self, *, preallocate: bool) -> Callable[..., tuple[Any, ...]]:
        spec = call.CallSpec(
            inputs=self.inputs,
            outputs=self.outputs,
            on_stale=lambda _: ("stale",),
            on_failure=self._on_failure,
            count=self._count,
            preallocate=preallocate,
        )
        return call.make_call(self.session, spec)

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


def test_results_live_longer_than_their_session() -> None:
    session = Session(lambda x: torch.cat([x, x + 1]), torch.rand(4), symbolic=True)
    kept = [session.run(torch.full((n,), float(n)))[0] for n in (2, 3, 500)]
    del session
    gc.collect()
    for n, result in zip((2, 3, 500), kept, strict=True):
        torch.testing.assert_close(result, torch.cat([torch.full((n,), float(n)), torch.full((n,), n + 1.0)]))


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
        session.inputs = [inputs[0], *(BoundInput(name=f"w{at}", meta=inputs[1].meta, frozen=note) for at, note in enumerate(notes))]
        session.made(preallocate=True)
    assert lengths[1] < 11 * lengths[0]


SOURCE = "def call(a0):\n    b = a0 + one\n    return b / zero\n"


def test_a_traceback_shows_the_line_that_raised_and_the_source_goes_with_the_function() -> None:
    function, other = (function_from_source("call", SOURCE, {"one": 1, "zero": 0}) for _ in range(2))
    file = function.__code__.co_filename
    assert file != other.__code__.co_filename
    linecache.checkcache()
    try:
        function(1)
    except ZeroDivisionError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        assert (frame.name, frame.lineno, frame.line) == ("call", 3, "return b / zero")
        error.__traceback__ = None
    assert file in linecache.cache
    del function
    assert file not in linecache.cache


def test_an_operator_that_raises_in_a_graph_shows_its_line() -> None:
    """The check stays in PyTorch, between partitions, and is a line of the generated program."""

    def checked(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        torch._assert_async((index < 2).all(), "index out of range")
        return x.sin()

    compiled = torch.compile(checked, backend=ortlens.Lens(), fullgraph=True)
    with torch.no_grad():
        compiled(torch.ones(2), torch.tensor([1]))
        with pytest.raises(RuntimeError) as raised:
            compiled(torch.ones(2), torch.tensor([3]))
    (frame,) = [frame for frame in traceback.extract_tb(raised.value.__traceback__) if frame.filename.startswith("<ortlens program ")]
    assert frame.line is not None
    assert frame.line.startswith("v")
    assert "= c" in frame.line
