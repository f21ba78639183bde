"""The pieces of comparing a whole call: its state, what it gave, and the run in double precision beside it."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from ortlens.lens.verify.call_state import CallState, Reachable, outcome_of
from ortlens.lens.verify.float64 import Float64Run, Missing


class Stateful(torch.nn.Module):
    """Changes what a module can change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("total", torch.zeros(()))
        self.seen: torch.Tensor
        self.total: torch.Tensor
        self.cache: list[torch.Tensor] = []
        self.latest: torch.Tensor | None = None
        self.kept = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum(0)
        self.total = self.total + x.sum()
        self.cache.append(x)
        self.latest = x * 2
        self.kept.add_(1)
        x[0] = 7.0
        return self.linear(x) + torch.rand(3) + random.random()  # type: ignore[no-any-return]  # noqa: S311 - that is what is restored


def test_every_tensor_that_a_call_changes_is_put_back() -> None:
    model, x = Stateful(), torch.ones(2, 3)
    state, total = CallState(model, (x,), {}), model.total
    versions = [weight._version for weight in model.parameters()]
    results = []
    for _ in range(2):
        results.append(model(x).detach().clone())
        (model.linear.weight * 2).sum().backward()
        with torch.no_grad():
            model.linear.bias.add_(1)
        state.restore()
    assert torch.equal(*results), "both calls start alike, random numbers included"
    assert model.total is total
    assert (float(total), model.latest) == (0, None)
    assert torch.equal(model.seen, torch.zeros(3))
    assert torch.equal(model.kept, torch.zeros(3))
    assert torch.equal(x, torch.ones(2, 3))
    assert model.linear.weight.grad is None
    assert versions[0] == model.linear.weight._version, "putting back is no write that a session would notice"
    assert len(model.cache) == 2, "a list of the module is the user's"


def test_a_generator_that_a_function_holds_is_put_back() -> None:
    generator = torch.Generator().manual_seed(1)

    def draw() -> tuple[float, float]:
        return float(torch.rand((), generator=generator)), random.random()  # noqa: S311 - that is what is restored

    state = CallState(draw, (), {})
    assert not state.drew()
    first = draw()
    assert state.drew()
    state.restore(random=False)
    assert set(draw()).isdisjoint(first), "the next numbers"
    state.restore()
    assert draw() == first


@dataclass
class Cache:
    """Grows by a tensor per call, and replaces one."""

    layers: list[torch.Tensor] = field(default_factory=list)
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    last: torch.Tensor | None = None


def test_what_an_argument_holds_is_put_back() -> None:
    def grow(cache: Cache, x: torch.Tensor) -> None:
        cache.layers.append(x * 2)
        cache.sums["x"] = x.sum()
        cache.last = x
        cache.sums["y"].add_(1)

    cache = Cache(sums={"y": torch.zeros(())})
    layers, sums = cache.layers, cache.sums
    state = CallState(grow, (cache, torch.ones(2)), {})
    grow(cache, torch.ones(2))
    assert set(state.written()) == {"cache.layers[0]", "cache.sums['x']", "cache.sums['y']", "cache.last"}
    state.restore()
    assert cache.layers is layers
    assert cache.sums is sums
    assert cache == Cache(sums={"y": torch.zeros(())})


def test_what_was_written_is_listed_by_name() -> None:
    model, x = Stateful(), torch.ones(2, 3)
    state = CallState(model, (x,), {})
    model(x)
    assert set(state.written()) == {"x", "seen", "total", "latest", "kept"}
    state.restore()
    assert state.written() == {}


def test_metadata_and_gradients_are_put_back() -> None:
    x, y = torch.rand(4, requires_grad=True), torch.rand(4)
    y.grad = torch.ones(4)
    state = CallState(lambda: None, (x, y), {})
    with torch.no_grad():
        y.resize_(2, 1)
    y.requires_grad_()
    x.grad = torch.ones(4)
    state.restore()
    assert list(y.shape) == [4]
    assert not y.requires_grad
    assert x.grad is None
    assert y.grad is not None


def test_functions_are_followed_through_closures_globals_and_wrappers() -> None:
    import functools

    weight, module = torch.rand(2), torch.nn.Linear(2, 2)

    def inner(x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return module(x * weight) * scale  # type: ignore[no-any-return]

    found = Reachable([("", functools.partial(inner, scale=torch.ones(1)))]).tensors
    assert {"weight", "module.weight", "module.bias"} <= set(found)
    assert any("scale" in name for name in found)


def test_the_state_of_an_optimizer_is_put_back_for_every_parameter() -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters())

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()

    step(torch.rand(3, 2))
    before = [optimizer.state[weight]["step"].clone() for weight in layer.parameters()]
    x = torch.rand(3, 2)
    state = CallState(step, (x,), {})
    step(x)
    written = state.written()
    state.restore()
    assert sum("exp_avg_sq" in name for name in written) == 2
    assert before == [optimizer.state[weight]["step"] for weight in layer.parameters()]


def test_a_data_set_is_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortlens.lens.verify import call_state

    monkeypatch.setattr(call_state, "_MAX_OBJECTS", 10)
    found = Reachable([("data", [[] for _ in range(1000)]), ("x", torch.ones(1))])
    assert list(found.tensors) == ["x"]


def _outcome(function: Any, *args: Any) -> dict[str, Any]:  # noqa: ANN401 - any function
    state = CallState(function, args, {})
    return outcome_of(lambda: function(*args), state).parts


def test_shared_memory_is_overlap_not_neighbourhood() -> None:
    x = torch.rand(3, 8)
    halves = _outcome(lambda x: x.chunk(2, -1), x)
    assert [halves[f"result[{n}]"].shares for n in (0, 1)] == [{"x"}, {"x"}]
    of_copy = _outcome(lambda x: (x * 2).chunk(2, -1), x)
    assert of_copy["result[1]"].shares == frozenset()
    windows = _outcome(lambda x: ((y := x * 2)[:2], y[1:]), x)
    assert windows["result[1]"].shares == {"result[0]"}
    twice = _outcome(lambda x: ((y := x * 2), y), x)
    assert twice["result[1]"].shares == {"result[0]"}


def test_gradients_are_of_what_needs_them_and_leave_none_behind() -> None:
    layer, x = torch.nn.Linear(3, 2), torch.rand(4, 3)
    state = CallState(layer, (x,), {})
    parts = outcome_of(lambda: torch.softmax(layer(x), -1), state).parts
    assert {"gradient of weight", "gradient of bias"} <= set(parts)
    assert float(parts["gradient of weight"].value.abs().max()) > 1e-3, "not the gradient of a sum that is always 1"
    assert layer.weight.grad is None
    with torch.no_grad():
        assert all(part.kind == "result" for part in outcome_of(lambda: layer(x), state).parts.values())


def _in_double(x: torch.Tensor) -> torch.Tensor:
    y = x.float().sin()
    y[:, 1:].mul_(3)
    return torch.cat([y, y.t().contiguous().t()], 1).mean(dtype=torch.float32) + torch.ones((), dtype=torch.float32)


def test_the_run_beside_it_is_in_double_precision_through_views_writes_and_casts() -> None:
    torch.manual_seed(0)
    x = torch.rand(5, 4)
    with Float64Run() as run:
        made = _in_double(x)
    exact = x.double().sin()
    exact[:, 1:] *= 3
    double = run.double_of(made)
    assert not isinstance(double, Missing)
    assert double.dtype is torch.float64
    torch.testing.assert_close(double, exact.mean() + 1, rtol=1e-14, atol=0)
    assert made.dtype is torch.float32
    torch.testing.assert_close(made, _in_double(x))


def test_backward_and_random_numbers_are_covered() -> None:
    weight, x = torch.nn.Parameter(torch.rand(3, 3)), torch.rand(2, 3)
    torch.manual_seed(1)
    with Float64Run() as run:
        loss = ((x @ weight).tanh() * torch.rand(2, 3)).sum()
        (grad,) = torch.autograd.grad(loss, [weight])
    torch.manual_seed(1)
    wide = weight.detach().double().requires_grad_()
    noise = torch.rand(2, 3).double()
    (expected,) = torch.autograd.grad(((x.double() @ wide).tanh() * noise).sum(), [wide])
    double = run.double_of(grad)
    assert not isinstance(double, Missing)
    torch.testing.assert_close(double, expected, rtol=1e-13, atol=1e-15)


def test_whole_numbers_are_those_of_double_precision() -> None:
    with Float64Run() as run:
        place = ((torch.tensor([1.0, 1.5]) + 2.0**25) - 2.0**25).argmax() + 1
    assert (int(place), run.double_of(place)) == (1, torch.tensor(2))


def test_lines_are_those_that_made_wrote_or_first_read() -> None:
    x, unread = torch.rand(3), torch.rand(3)
    with Float64Run() as run:
        made = x * 2
        first = _line()
        made[1:] = 0.5
        later = _line()
    found = run.line_of(made)
    assert found is not None
    assert (found.file, found.line) == (__file__, later - 1)
    read = run.line_of(x, read=True)
    assert read is not None
    assert read.line == first - 1
    assert run.line_of(unread) is None


def _line() -> int:
    import sys

    return sys._getframe(1).f_lineno
