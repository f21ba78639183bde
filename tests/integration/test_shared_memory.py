"""Callers who write into what they passed and got, compiled functions that share weights, and weights that move while they are in use."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ortlens import Lens, OrtBackend

if TYPE_CHECKING:
    from collections.abc import Callable


def net() -> Any:  # noqa: ANN401 - a Sequential whose layers are Linear
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).eval()


X = torch.linspace(-1, 1, 192).reshape(3, 64)


@pytest.mark.parametrize("preallocate", [False, True])
def test_results_are_not_touched_by_later_calls_nor_by_writes_to_the_input(*, preallocate: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, x.t() + 1, x.sum(0)

    compiled = torch.compile(function, backend=OrtBackend({"preallocate_output": preallocate}))
    kept = []
    for rows in (3, 4, 5, 3):  # one size, then varying ones
        x = torch.randn(rows, 8)
        kept.append((compiled(x), function(x.clone())))
        x.zero_()
    for ours, theirs in kept:
        torch.testing.assert_close(ours, theirs)
        for result in ours:
            result.fill_(7)
    torch.testing.assert_close(compiled(X), function(X))


def test_writes_to_results_that_are_constants_do_not_reach_the_model() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64, 64))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x @ self.weight, self.weight * 1, self.weight * 2 + 1, self.weight + 0

    model = Net()
    compiled = torch.compile(model, backend=OrtBackend())
    with torch.no_grad():
        for _ in range(3):
            results = compiled(X)
            torch.testing.assert_close(results, model(X))
            for result in results:
                result.mul_(5)
        assert torch.equal(model.weight, torch.ones(64, 64))


@pytest.mark.parametrize("backend", [OrtBackend, Lens])
def test_a_copy_of_a_compiled_model_has_weights_of_its_own(backend: Callable[[], Any]) -> None:
    model = net()
    compiled: Any = torch.compile(model, backend=backend())
    with torch.no_grad():
        before = compiled(X)
        other = copy.deepcopy(compiled)
        other._orig_mod[0].weight.add_(1)
        torch.testing.assert_close(other(X), other._orig_mod(X), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(compiled(X), before)


def test_the_memory_of_a_large_weight_may_go() -> None:
    layer, x = nn.Linear(1024, 1024), torch.ones(2, 1024)
    compiled = torch.compile(layer, backend=OrtBackend())
    with torch.no_grad():
        compiled(x)
        storage, size = layer.weight.untyped_storage(), layer.weight.nbytes
        for _ in range(2):
            storage.resize_(0)  # unmapped; the notes about the weight must not be read any more
            kept = torch.ones(1024, 1024)  # takes the place
            storage.resize_(size)
            layer.weight.fill_(0.01)
            torch.testing.assert_close(compiled(x), layer(x), atol=1e-4, rtol=1e-4)
            del kept


def test_an_exported_program_notices_uncounted_writes_too() -> None:
    program = torch.export.export(net(), (X,))
    compiled = OrtBackend().compile_program(program)
    compiled(X)
    program.state_dict["0.weight"].data[40, 3] = 9
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(16):
            compiled(X)
    assert any("does not count; up to 15 earlier calls" in str(warning.message) for warning in heard)
    torch.testing.assert_close(compiled(X), program.module()(X), atol=1e-4, rtol=1e-4)
