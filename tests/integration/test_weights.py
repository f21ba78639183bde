"""Frozen weights: constants of a session, noticed when they change, never stale."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ortlens import Lens, OrtBackend

if TYPE_CHECKING:
    from collections.abc import Callable


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 3)).eval()


def inputs() -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def optimizer_step(model: Any) -> None:
    with torch.enable_grad():
        loss = model(inputs()).square().mean()
        loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    model.zero_grad()


def changed_state(model: Any) -> dict[str, torch.Tensor]:
    return {name: value * 2 + 1 if value.is_floating_point() else value.clone() for name, value in model.state_dict().items()}


CHANGES: dict[str, Callable[[Any], object]] = {
    "in_place": lambda model: model[0].weight.add_(1),
    "in_place_on_a_view": lambda model: model[0].weight[1:3].mul_(-2),
    "through_data": lambda model: setattr(model[0].weight, "data", torch.randn(5, 6)),
    "load_state": lambda model: model.load_state_dict(changed_state(model)),
    "load_state_assigned": lambda model: model.load_state_dict(changed_state(model), assign=True),
    "other_parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.randn(5, 6))),
    "other_module": lambda model: model.__setitem__(3, nn.Linear(5, 3)),
    "buffer_in_place": lambda model: model[2].running_mean.add_(0.5),
    "other_buffer": lambda model: setattr(model[2], "running_var", torch.rand(5) + 0.5),
    "not_contiguous": lambda model: setattr(model[0], "weight", nn.Parameter(torch.randn(6, 5).t())),
    "optimizer_step": optimizer_step,
}


@pytest.mark.parametrize(("change", "freeze"), [*((change, "auto") for change in CHANGES), ("through_data", True), ("through_data", False)])
def test_a_change_is_seen_by_the_very_next_call(change: str, freeze: object) -> None:
    model, x = net(), inputs()
    lens = Lens(options={"freeze_weights": freeze})
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        before = model(x)
        CHANGES[change](model)
        assert not torch.allclose(model(x), before)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
    assert not lens.captured().findings
    assert lens.fallbacks.empty
    assert (lens.graphs.coverage == 1.0).all()


def test_unchanged_weights_make_one_session_and_changing_ones_stop_being_frozen() -> None:
    model, x, lens = net(), inputs(), Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        for _ in range(5):
            compiled(x)
        assert lens.sessions.input_signature.tolist() == ["f32[4,6]"]
        for _ in range(8):
            CHANGES["in_place"](model)
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    signatures = lens.sessions.input_signature.tolist()
    assert 2 <= len(signatures) <= 4, "a session per change would be worse than no freezing at all"
    assert signatures[:2] == ["f32[4,6]"] * 2
    assert len(signatures[-1].split()) > 5
    assert int(lens.sessions.calls.sum()) == 13


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


def test_bool_half_and_double_weights() -> None:
    class Masked(nn.Module):
        mask: torch.Tensor
        scale: torch.Tensor
        bias: torch.Tensor
        nothing: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([True, False, True]))
            self.register_buffer("scale", torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64))
            self.register_buffer("bias", torch.tensor([1.0, 2.0, 3.0]).half())
            self.register_buffer("nothing", torch.empty(0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(self.mask, x * self.scale, x + self.bias) + self.nothing.sum()

    model, lens = Masked(), Lens()
    compiled, x = torch.compile(model, backend=lens), torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        model.mask.logical_not_()
        torch.testing.assert_close(compiled(x), model(x))
    assert lens.fallbacks.empty
    assert not lens.captured().findings
