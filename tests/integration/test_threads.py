"""Several threads, one compiled model: every answer is the caller's own, every call is counted once."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens
from tests.threads import in_threads

# Measures calls from threads that must interleave.
pytestmark = pytest.mark.serial

THREADS, CALLS = 4, 60


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).eval()


def test_every_thread_gets_its_own_answers() -> None:
    net, lens = model(), Lens()
    compiled = torch.compile(net, backend=lens)
    with torch.no_grad():
        compiled(torch.zeros(3, 8))

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(CALLS):
            x = torch.randn(3, 8, generator=generator)
            torch.testing.assert_close(compiled(x), net(x))

    in_threads(torch.no_grad()(work), THREADS)
    assert lens.sessions.calls.tolist() == [THREADS * CALLS + 1]
    assert len(lens.runs) == THREADS * CALLS + 1
    assert lens.runs.groupby("thread").size().tolist().count(CALLS) == THREADS
    assert sorted(lens.runs.call) == list(range(THREADS * CALLS + 1))


def test_the_first_call_may_come_from_all_threads_at_once() -> None:
    net, lens = model(), Lens()
    compiled = torch.compile(net, backend=lens)

    def work(seed: int) -> None:
        x = torch.full((3, 8), float(seed))
        torch.testing.assert_close(compiled(x), net(x))

    in_threads(torch.no_grad()(work), THREADS)
    assert lens.fallbacks.empty
    assert not lens.captured().findings
    assert lens.sessions.calls.sum() == THREADS


@pytest.mark.parametrize(("dynamic_shapes", "sizes"), [(True, (3,)), (False, (2, 3, 4, 5))])
def test_threads_ask_for_new_sizes_at_once_and_weights_change(*, dynamic_shapes: bool, sizes: tuple[int, ...]) -> None:
    net = model()
    lens = Lens(options={"export_options": {"dynamic_shapes": dynamic_shapes}})
    compiled = torch.compile(net, backend=lens, dynamic=not dynamic_shapes)
    with torch.no_grad():
        compiled(torch.ones(3, 8))
    for step in range(3):
        with torch.no_grad():
            net[0].weight.add_(0.1 * (step + 1))

        def work(_: int) -> None:
            for rows in sizes:
                torch.testing.assert_close(compiled(torch.ones(rows, 8)), net(torch.ones(rows, 8)))

        in_threads(torch.no_grad()(work), THREADS)
    assert lens.fallbacks.empty
    assert not lens.captured().findings
    if dynamic_shapes:
        assert len(lens.sessions) <= 4, "threads that notice the same change make one session, not one each"
        assert lens.sessions.calls.sum() == 3 * THREADS + 1


def test_captures_can_be_taken_while_threads_call() -> None:
    net, lens = model(), Lens()
    compiled = torch.compile(net, backend=lens)
    with torch.no_grad():
        compiled(torch.zeros(3, 8))
    seen: list[int] = []

    def work(number: int) -> None:
        for _ in range(CALLS):
            if number:
                compiled(torch.ones(3, 8))
            else:
                capture = lens.captured()
                seen.append(capture.sessions[0].calls)
                assert all(run.total_ns == run.bind_ns + run.run_ns + run.output_ns >= 0 for run in capture.runs)

    in_threads(torch.no_grad()(work), THREADS)
    assert seen == sorted(seen)
    assert lens.sessions.calls.tolist() == [(THREADS - 1) * CALLS + 1]
