"""What is slower than PyTorch is the first finding, with its cause; healthy models have none."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.analysis.problems.stream import findings_of, problems_of
from ortlens.backend.operators import basics
from ortlens.trace.records import Finding
from tests.threads import torch_threads

# Compares times.
pytestmark = [pytest.mark.serial, pytest.mark.timed]

RULE = "slower_than_torch"
BAG = torch.ops.aten._embedding_bag.default
LOOP = {"custom_translation_table": {BAG: basics.registered(BAG)}}
"""A Loop over bags: torchlib's function, in place of PyTorch's kernel."""
PUT = torch.ops.aten.index_put.default
COPIES = {"custom_translation_table": {PUT: basics.registered(PUT)}}
"""Writes that copy the buffer: torchlib's function, in place of PyTorch's write in place."""


class CachedAttention(nn.Module):
    """One step of decoding with a static key-value cache."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, length: int = 2048, heads: int = 8, size: int = 64) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.into, self.out = nn.Linear(heads * size, 3 * heads * size), nn.Linear(heads * size, heads * size)
        self.register_buffer("keys", torch.zeros(1, heads, length, size))
        self.register_buffer("values", torch.zeros(1, heads, length, size))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        batch, steps, _ = x.shape
        query, key, value = self.into(x).view(batch, steps, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        mask = torch.arange(self.keys.shape[2]) <= position
        attended = nn.functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask[None, None, None, :])
        result: torch.Tensor = self.out(attended.transpose(1, 2).reshape(batch, steps, -1))
        return result


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Have PyTorch compute with one thread: beside other work, a pool of several waits for milliseconds in a call, and is slower indeed."""
    with torch_threads(1):
        yield


def explained(target: Callable[..., object], *args: torch.Tensor, **given: Any) -> Lens:  # noqa: ANN401 - options of explain
    with torch.no_grad():
        return ortlens.explain(target, **given)(*args)


def slow_findings(lens: Lens) -> list[Finding]:
    return [finding for finding in findings_of(lens.captured()) if finding.rule == RULE]


@pytest.mark.slow
def test_a_cache_that_is_copied_is_named_first_with_its_line_and_its_cost_and_one_written_in_place_is_not() -> None:
    lens = explained(CachedAttention().eval(), torch.randn(1, 1, 512), torch.tensor([5]), calls=9)
    assert [finding.title for finding in slow_findings(lens) if "copied" in finding.title] == []
    lens = explained(CachedAttention().eval(), torch.randn(1, 1, 512), torch.tensor([5]), options=COPIES)
    first = findings_of(lens.captured())[0]
    assert (first.rule, first.severity, first.measured) == (RULE, "warning", True)
    assert (first.file or "").endswith("test_slower_than_torch.py")
    assert "index_put" in first.title
    (graph,) = lens.captured().graphs
    assert graph.is_slower
    assert (graph.ort_ns or 0) > 1.5 * (graph.torch_ns or 0)
    assert problems_of(lens.captured())[0].title == first.title


class Advancing(nn.Module):
    """Counts its own position, as StaticCache does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("rows", torch.zeros(6, 64))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.rows: torch.Tensor
        self.position: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, self.position, self.layer(x))
        self.position.add_(1)
        return self.rows.mul(torch.linalg.svdvals(x))  # PyTorch computes the values


@pytest.mark.filterwarnings("error")
def test_a_position_that_a_call_advances_is_put_back_for_each_run() -> None:
    lens = ortlens.Lens()
    with torch.no_grad():
        model = Advancing().eval()
        fast = torch.compile(model, backend=lens)
        x = torch.randn(1, 64)
        for _ in range(3):
            fast(x)
        lens.measured(lambda: fast(x), max_calls=3, budget_ns=None)  # there are rows for these calls only
    assert int(model.position) == 6
    assert [finding.title for finding in findings_of(lens.captured()) if "ortlens failed" in finding.title] == []
    (graph,) = lens.captured().graphs
    assert graph.ort_ns
    assert graph.torch_ns


def bagged(count: int = 256) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return nn.EmbeddingBag(1000, 64), torch.randint(0, 1000, (count * 8,)), torch.arange(0, count * 8, 8)


@pytest.mark.slow
def test_a_loop_over_bags_is_named_first() -> None:
    bag, ids, offsets = bagged()
    lens = explained(bag, ids, offsets, options=LOOP)
    first = findings_of(lens.captured())[0]
    assert (first.rule, first.severity) == (RULE, "warning")
    assert "_embedding_bag" in first.title
    (partition,), (graph,) = lens.captured().partitions, lens.captured().graphs
    assert partition.is_slower
    assert (partition.ort_ns or 0) > 5 * (partition.torch_ns or 0)
    assert first.subject in ("p0", "g0"), "the graph, where other work made its times differ from those of the partition"
    timed = partition if first.subject == "p0" else graph
    assert ("the code of p0" in first.mitigation) == (timed is partition)
    assert first.gain_ns == pytest.approx((timed.ort_ns or 0) - (timed.torch_ns or 0), rel=0.01)
    with torch.no_grad():
        lens.profile(ids, offsets, repeat=3)
    (profiled,) = slow_findings(lens)
    assert "Loop" in {kernel.op_type for kernel in lens.captured().kernels}
    assert profiled.title != first.title, "the kernels are known now"


def test_the_trial_writes_into_copies_and_counts_nowhere() -> None:
    class Counts(nn.Module):
        steps: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return x * self.steps

    model = Counts()
    lens = explained(model, torch.ones(4), calls=6)
    assert model.steps.tolist() == [6.0] * 4
    assert [session.calls for session in lens.captured().sessions] == [6]
    assert lens.captured().graphs[0].torch_ns is not None


def test_random_numbers_are_those_of_the_calls_alone() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu() + torch.rand(8)

    def drawn_after(calls: int) -> torch.Tensor:
        torch.manual_seed(3)
        explained(noisy, torch.ones(8, 8), calls=calls, backend="ortlens")
        return torch.rand(3)

    def eager_after(calls: int) -> torch.Tensor:
        torch.manual_seed(3)
        for _ in range(calls):
            noisy(torch.ones(8, 8))
        return torch.rand(3)

    assert torch.equal(drawn_after(5), eager_after(5))


@pytest.mark.slow
def test_layers_that_share_their_code_are_one_finding() -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(100, 16) for _ in range(3))

        def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            first, second, third = self.bags
            total = first(ids, offsets)
            torch._dynamo.graph_break()
            total = second(ids, offsets) + total
            torch._dynamo.graph_break()
            shown: torch.Tensor = third(ids, offsets) + total
            return shown

    lens = explained(Bags(), torch.randint(0, 100, (512,)), torch.arange(0, 512, 8), options=LOOP)
    assert len(lens.captured().partitions) == 3
    assert len(slow_findings(lens)) == 1
