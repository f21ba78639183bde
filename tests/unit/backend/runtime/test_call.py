"""The function written for a session: what it binds, allocates, checks and hands back."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import gc
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch

from ortlens.backend.runtime import call, generated, weights
from ortlens.backend.runtime.binding import BoundInput, Output
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
