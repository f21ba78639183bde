"""Frozen weights: constants of a session, noticed when they change, never stale."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ortlens import Lens, OrtBackend
from ortlens.backend.runtime import weights

if TYPE_CHECKING:
    from collections.abc import Callable


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 3)).eval()


def inputs() -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def in_place(model: Any) -> None:
    with torch.no_grad():
        model[0].weight.add_(1)


def in_place_on_a_view(model: Any) -> None:
    with torch.no_grad():
        model[0].weight[1:3].mul_(-2)


def through_data(model: Any) -> None:
    model[0].weight.data = torch.randn(5, 6)


def load_state(model: Any) -> None:
    model.load_state_dict({name: value * 2 if value.is_floating_point() else value for name, value in model.state_dict().items()})


def load_state_assigned(model: Any) -> None:
    model.load_state_dict({name: value.clone() + 1 for name, value in model.state_dict().items()}, assign=True)


def other_parameter(model: Any) -> None:
    model[0].weight = nn.Parameter(torch.randn(5, 6))


def other_module(model: Any) -> None:
    model[3] = nn.Linear(5, 3)


def buffer_in_place(model: Any) -> None:
    model[2].running_mean.add_(0.5)


def other_buffer(model: Any) -> None:
    model[2].running_var = torch.rand(5) + 0.5


def not_contiguous(model: Any) -> None:
    model[0].weight = nn.Parameter(torch.randn(6, 5).t())


def optimizer_step(model: Any) -> None:
    with torch.enable_grad():
        loss = model(inputs()).square().mean()
        loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    model.zero_grad()


CHANGES: tuple[Callable[[Any], None], ...] = (
    in_place,
    in_place_on_a_view,
    through_data,
    load_state,
    load_state_assigned,
    other_parameter,
    other_module,
    buffer_in_place,
    other_buffer,
    not_contiguous,
    optimizer_step,
)


@pytest.mark.parametrize("freeze", ["auto", *(pytest.param(always, marks=pytest.mark.slow) for always in (True, False))])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_seen_by_the_very_next_call(change: Callable[[Any], None], freeze: object) -> None:
    model, x = net(), inputs()
    lens = Lens(options={"freeze_weights": freeze})
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        before = model(x)
        change(model)
        assert not torch.allclose(model(x), before)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
    assert not lens.captured().findings
    assert lens.fallbacks.empty
    assert (lens.graphs.coverage == 1.0).all()


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(st.sampled_from([None, *CHANGES]), max_size=8))
def test_never_stale_whatever_the_order(changes: list[Callable[[Any], None] | None]) -> None:
    torch.compiler.reset()
    model, x, lens = net(), inputs(), Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        for change in changes:
            if change is not None:
                change(model)
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    assert not lens.captured().findings
    assert int(lens.sessions.calls.sum()) == len(changes) + 1


def test_a_dtype_move_and_back() -> None:
    model, x = net(), inputs()
    compiled = torch.compile(model, backend=Lens())
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        model.double()
        torch.testing.assert_close(compiled(x.double()), model(x.double()))
        model.float()
        torch.testing.assert_close(compiled(x), model(x))


def test_unchanged_weights_make_one_session_and_changing_ones_stop_being_frozen() -> None:
    model, x, lens = net(), inputs(), Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        for _ in range(5):
            compiled(x)
        assert lens.sessions.input_signature.tolist() == ["f32[4,6]"]
        for _ in range(8):
            in_place(model)
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    signatures = lens.sessions.input_signature.tolist()
    assert 2 <= len(signatures) <= 4, "a session per change would be worse than no freezing at all"
    assert signatures[:2] == ["f32[4,6]"] * 2
    assert len(signatures[-1].split()) > 5
    assert int(lens.sessions.calls.sum()) == 13


def test_without_freezing_the_weights_are_inputs() -> None:
    model, x, lens = net(), inputs(), Lens(options={"freeze_weights": False})
    with torch.no_grad():
        torch.compile(model, backend=lens)(x)
    (signature,) = lens.sessions.input_signature
    assert sorted(signature.split()) == sorted(["f32[4,6]", "f32[5,6]", "f32[3,5]", "f32[3]", *["f32[5]"] * 5])


def test_bytes_of_weights_and_of_constants() -> None:
    model, x, lens = net(), inputs(), Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        compiled(x)
    used = sum(t.nbytes for t in model.state_dict().values() if t.is_floating_point())
    (partition,), (record,) = lens.captured().partitions, lens.captured().models
    assert partition.weight_bytes == used
    assert (partition.input_bytes, partition.output_bytes) == (4 * 6 * 4, 4 * 3 * 4)
    assert used <= record.initializer_bytes < used + 500
    assert record.size_bytes < 10_000


def test_frozen_weights_are_not_copied() -> None:
    model = nn.Linear(2048, 1024).eval()
    backend = OrtBackend()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        compiled(torch.ones(1, 2048))
    ((info,),) = backend.sessions_by_graph.values()
    assert {weight.contiguous.data_ptr() for weight in info.frozen} == {p.data_ptr() for p in model.parameters()}


def test_one_weight_in_two_modules() -> None:
    first = nn.Linear(4, 4)
    second = nn.Linear(4, 4)
    second.weight = first.weight
    model, lens = nn.Sequential(first, nn.Tanh(), second).eval(), Lens()
    compiled, x = torch.compile(model, backend=lens), torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        second.weight.mul_(3)
        torch.testing.assert_close(compiled(x), model(x))
    assert lens.fallbacks.empty


def test_weights_made_in_inference_mode_work_unfrozen() -> None:
    lens = Lens()
    with torch.inference_mode():
        model, x = nn.Linear(4, 4), torch.randn(2, 4)
        compiled = torch.compile(model, backend=lens)
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.add_(1)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(lens.sessions) == 1


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


def test_training_weights_are_never_frozen() -> None:
    model, lens = net(), Lens()
    compiled = torch.compile(model, backend=lens)
    compiled(inputs()).sum().backward()
    sessions = lens.sessions.merge(lens.partitions, on="partition_id").merge(lens.graphs, on="graph_id")
    (signature,) = sessions[sessions.phase == "forward"].input_signature
    assert len(signature.split()) > 5


def test_one_element_that_no_sample_shows_is_noticed_by_torchs_count() -> None:
    layer = torch.nn.Linear(64, 64, bias=False)
    x = torch.ones(1, 64)
    with torch.no_grad():
        compiled = torch.compile(layer, backend="ortlens")
        compiled(x)
        place = 1  # the sample begins with element 0
        note = weights.freeze("w", layer.weight)
        assert note is not None
        layer.weight.view(-1)[place] += 100
        assert note.sample == note.sampled
        torch.testing.assert_close(compiled(x), layer(x))
