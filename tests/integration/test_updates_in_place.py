"""Programs that update tensors in place: the session writes over the old values, and nothing is copied back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ortlens import Lens
from ortlens.lens.watching import around_runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.backend.runtime.runner import PartitionRunner


def stepped(
    kind: Callable[..., torch.optim.Optimizer], options: dict[str, Any], compiled: Callable[..., Any]
) -> tuple[nn.Module, Callable[[], Any]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    optimiser = kind(net.parameters(), lr=0.1, **options)
    for weight in net.parameters():
        weight.grad = torch.randn(weight.shape)
    optimiser.step()  # makes the state
    return net, compiled(optimiser.step)


def reused(runner: PartitionRunner, call: Callable[[], object]) -> int:
    """How many outputs of a run lie where an input does."""
    found: list[int] = []

    def around(inner: Callable[..., tuple[Any, ...]], args: tuple[Any, ...]) -> tuple[Any, ...]:
        outputs = inner(*args)
        found.append(len({output.data_ptr() for output in outputs} & {arg.data_ptr() for arg in args}))
        return outputs

    with contextlib.ExitStack() as stack:
        stack.enter_context(around_runs(runner, around))
        call()
    (count,) = found
    return count


@pytest.mark.parametrize(
    ("kind", "options", "state"),
    [(torch.optim.SGD, {"momentum": 0.9}, 2), (torch.optim.AdamW, {"weight_decay": 0.1}, 4), (torch.optim.Adam, {"foreach": True}, 4)],
    ids=["SGD", "AdamW", "Adam of lists"],
)
@pytest.mark.slow
def test_an_optimiser_updates_weights_and_state_in_place(
    kind: Callable[..., torch.optim.Optimizer], options: dict[str, Any], state: int
) -> None:
    lens = Lens()
    plain, plain_step = stepped(kind, options, lambda step: step)
    net, step = stepped(kind, options, lambda step: torch.compile(step, backend=lens))
    for _ in range(4):
        plain_step()
        step()
        torch.testing.assert_close(list(net.parameters()), list(plain.parameters()))
    (runner,) = (runner for graph in lens.live_graphs() for runner in graph.runners)
    assert reused(runner, step) == len(runner.partition.outputs) == 4 * state


class Counter(nn.Module):
    """Keeps a running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.total: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.mul_(0.5).add_(x)
        return self.total * 3


class Before(Counter):
    """Reads the sum before it changes, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.total * 7
        self.total.add_(x)
        return before


class Returned(Counter):
    """Returns the sum itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.mul_(0.5).add_(x)
        return self.total


@pytest.mark.parametrize(("kind", "in_place"), [(Counter, 1), (Before, 0), (Returned, None)])
def test_a_buffer_is_updated_where_it_lies_if_nothing_reads_the_old_value(kind: type[Counter], in_place: int | None) -> None:
    lens, plain, module = Lens(), kind(), kind()
    fast = torch.compile(module, backend=lens)
    kept = []
    for number in range(3):
        x = torch.full((4,), float(number))
        expected, made = plain(x), fast(x)
        torch.testing.assert_close((made, module.total), (expected, plain.total))
        kept.append((made, made.clone()))
    assert all(torch.equal(*pair) for pair in kept) == (in_place is not None)  # what is the buffer changes with it
    (runner,) = (runner for graph in lens.live_graphs() for runner in graph.runners)
    if in_place is not None:
        assert reused(runner, lambda: fast(torch.ones(4))) == in_place


def test_a_frozen_weight_that_a_session_updates_in_place_is_noticed() -> None:
    layer = nn.Linear(4, 4, bias=False).eval().requires_grad_(False)  # noqa: FBT003 - torch's name
    fast = torch.compile(layer, backend="ortlens")
    update = torch.compile(lambda weight: weight.mul_(2).add_(1), backend="ortlens")
    x = torch.rand(2, 4)
    for _ in range(2):
        torch.testing.assert_close(fast(x), layer(x))
        update(layer.weight)


def test_timing_and_checking_take_no_step() -> None:
    lens, module = Lens(), Counter()
    fast = torch.compile(module, backend=lens)
    x = torch.ones(4)
    fast(x)
    before = module.total.clone()
    lens.verify(x)
    torch.testing.assert_close(module.total, before)
    assert lens.numerics.ok.all()


def test_a_trial_of_speed_takes_no_step() -> None:
    plain, module = Counter(), Counter()
    fast = torch.compile(module, backend="ortlens", options={"on_slow": "fallback"})
    for _ in range(8):
        torch.testing.assert_close(fast(torch.ones(4)), plain(torch.ones(4)))
