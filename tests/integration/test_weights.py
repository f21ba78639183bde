"""Frozen weights: constants of a session, not copied, and of one model each. That changes are seen is in tests/fuzz/claims.py."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens, OrtBackend


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 3)).eval()


def inputs() -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def test_unchanged_weights_make_one_session_and_changing_ones_stop_being_frozen() -> None:
    model, x, lens = net(), inputs(), Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        for _ in range(5):
            compiled(x)
        assert lens.sessions.input_signature.tolist() == ["f32[4,6]"]
        for _ in range(8):
            model[0].weight.add_(1)
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    signatures = lens.sessions.input_signature.tolist()
    assert 2 <= len(signatures) <= 4, "a session per change would be worse than no freezing at all"
    assert signatures[:2] == ["f32[4,6]"] * 2
    assert len(signatures[-1].split()) > 5
    assert int(lens.sessions.calls.sum()) == 13
    assert lens.graphs.coverage.tolist() == [1.0]
    assert not lens.captured().findings


def test_frozen_weights_are_not_copied() -> None:
    model = nn.Linear(2048, 1024).eval()
    backend = OrtBackend()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        compiled(torch.ones(1, 2048))
    ((info,),) = backend.sessions_by_graph.values()
    assert {weight.contiguous.data_ptr() for weight in info.frozen} == {p.data_ptr() for p in model.parameters()}


def test_one_weight_in_two_modules_made_in_inference_mode_or_not() -> None:
    for inference in (False, True):
        torch.compiler.reset()
        lens = Lens()
        with torch.inference_mode(inference), torch.no_grad():
            first, second, x = nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(2, 4)
            second.weight = first.weight
            model = nn.Sequential(first, nn.Tanh(), second).eval()
            compiled = torch.compile(model, backend=lens)
            torch.testing.assert_close(compiled(x), model(x))
            second.weight.mul_(3)
            torch.testing.assert_close(compiled(x), model(x))
        assert lens.fallbacks.empty
    assert len(lens.sessions) == 1, "weights of inference mode, whose writes nothing counts, are not frozen"


@pytest.mark.parametrize("backend", [OrtBackend, Lens])
def test_a_copy_of_a_compiled_model_has_weights_of_its_own(backend: Callable[[], Any]) -> None:
    model, x = net(), inputs()
    compiled: Any = torch.compile(model, backend=backend())
    with torch.no_grad():
        before = compiled(x)
        other = copy.deepcopy(compiled)
        other._orig_mod[0].weight.add_(1)
        torch.testing.assert_close(other(x), other._orig_mod(x), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(compiled(x), before)


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
    x = torch.ones(3, 64)
    program = torch.export.export(nn.Linear(64, 64), (x,))
    compiled = OrtBackend().compile_program(program)
    compiled(x)
    program.state_dict["weight"].data[40, 3] = 9
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(16):
            compiled(x)
    assert any("does not count; up to" in str(warning.message) for warning in heard)
    torch.testing.assert_close(compiled(x), program.module()(x), atol=1e-4, rtol=1e-4)
