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
