"""What each graph break costs per call, and what to change about it."""

import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.analysis.ledger import totals_of
from ortlens.analysis.timing import costliest_breaks
from ortlens.lens.observing import listener
from tests.integration.test_lens import broken

# Measures what breaks cost.
pytestmark = [pytest.mark.serial, pytest.mark.timed]

X = torch.linspace(-1, 1, 64)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.no_grad():
        yield


@torch.compiler.disable
def slow(milliseconds: float) -> None:
    until = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < until:
        pass


@torch.compiler.disable
def quick() -> None:
    pass


def test_breaks_of_nested_functions_have_prices_of_their_own_without_the_programs_work() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        quick()
        return x.cos()

    def outer(x: torch.Tensor) -> torch.Tensor:
        x = inner(x.tan())
        slow(3.0)
        return x.sigmoid()

    lens = ortlens.explain(outer, backend="eager", calls=24)(X)
    breaks = {item.source: item for item in lens.captured().breaks if item.between_ns}
    item = breaks["slow(3.0)"]
    assert (item.between_ns or 0) > 3_000_000
    assert 0 < (breaks["quick()"].between_ns or 0) < (item.between_ns or 0) / 4
    assert 0 < (item.overhead_ns or 0) < 1_000_000
    shown = next(shown for shown in costliest_breaks(lens.captured()) if shown.source == "slow(3.0)")
    assert (shown.cost_ns, shown.entering_ns) == (item.overhead_ns, None)


def test_a_loop_that_pytorch_gives_up_is_priced_by_the_gaps() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    def loops(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = inner(x) + 1
            slow(2.0)
        return x

    lens = ortlens.explain(loops, backend="eager", calls=24)(X)
    prices = [item.between_ns for item in lens.captured().breaks if item.between_ns]
    assert prices
    totals = totals_of(lens.captured().ledger)
    assert totals is not None
    assert totals.ns["eager"] > 6_000_000
    assert 0.5 < max(prices) / totals.ns["eager"] < 0.85, "two of the three pauses lie between graphs, the last after them"


def test_a_plain_lens_has_no_prices_until_it_measures() -> None:
    lens = Lens()
    fast = torch.compile(broken, backend=lens)
    fast(X)
    assert lens.breaks.cost_ns.isna().all()
    lens.measure(X)
    assert (lens.breaks.cost_ns > 0).all()
    price = lens.breaks.cost_ns.item()
    fast(torch.ones(3))  # heard again while it compiles anew
    assert lens.breaks.cost_ns.item() == price
    assert len(lens.captured().breaks[0].compile_ids) == 2


def test_hints_come_from_the_registry_where_dynamo_gave_none() -> None:
    lens = Lens("eager")
    watch = listener.DynamoWatch(lens._recorder, lambda _: False)
    watch.on_graph_break("0/0", "Graph break in user code at model.py:3\nGraph Break Reason: Attempted to copy.deepcopy a tensor")
    watch.on_graph_break("0/0", "Graph break in user code at model.py:4\nGraph Break Reason: Attempted to wrap sparse Tensor")
    watch.on_graph_break("0/0", "Graph break in user code at model.py:5\nGraph Break Reason: Something that no registry knows")
    copied, sparse, unknown = lens.captured().breaks
    known = [item for item in (copied, sparse) if item.gb_id]
    assert known
    for item in known:
        assert item.hints
        assert not any("{" in hint for hint in item.hints)
    assert (unknown.gb_id, unknown.hints, unknown.advice) == (None, (), None)


# Dynamo reads it of every tensor that it passes on.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_break_at_backward_costs_what_lies_before_the_backward() -> None:
    model = nn.Linear(8, 8)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().sum()
        loss.backward()
        return loss.detach() + 1

    with torch.enable_grad():
        capture = ortlens.explain(step, calls=8)(torch.randn(4, 8)).captured()
    (broken,) = capture.breaks
    gaps = {part.graph_id: part.ns for part in capture.ledger if part.part == "eager"}
    assert [graph.phase for graph in capture.graphs] == ["forward", "backward", "inference"]
    assert broken.between_ns == pytest.approx(gaps["g1"] + gaps["g2"], abs=3)
