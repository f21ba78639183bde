"""A lens watches a frozen callable, and checks it against its source."""

from __future__ import annotations

import torch

import ortlens
from tests.integration.test_freeze import mixed, mlp, same


def test_a_lens_sees_the_calls_of_a_frozen_callable() -> None:
    model = mlp()
    x = torch.randn(5, 16)
    with torch.no_grad():
        frozen = ortlens.freeze(model, torch.randn(3, 16), dynamic=True)
        lens = ortlens.explain(frozen, calls=3)(x)
        same(lens.result, model(x))
        assert len(lens.runs) == 3
        assert {"guards", "bind", "run", "output"} <= set(lens.ledger.part)
        assert set(lens.profile(x).op_type) >= {"LayerNormalization"}
        assert lens.verify(x).ok.all()


def test_a_frozen_callable_with_pytorch_in_between() -> None:
    args = torch.randn(4, 8), torch.randn(8, 8)
    with torch.no_grad():
        lens = ortlens.explain(ortlens.freeze(mixed, *args), calls=2)(*args)
        same(lens.result, mixed(*args))
        assert len(lens.sessions) >= 2
        assert lens.verify(*args).ok.all()
