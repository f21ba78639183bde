"""Frozen weights: constants of a session. That changes are seen is in tests/fuzz/claims.py and test_random_lives.py."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

from typing import Any

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
