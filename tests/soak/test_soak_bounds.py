"""A million calls, thousands of sessions, recompiles, outputs, parameters and nodes: memory and time stay within what is stated here."""

# ruff: noqa: ANN401 - attributes of modules are Any in torch itself

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.trace import records as r
from ortlens.trace import store
from tests.soak.conftest import Use
from tests.unit.trace.strategies import small_capture

pytestmark = pytest.mark.soak
MEGABYTE = 1_000_000


@pytest.fixture(autouse=True)
def _warm() -> Iterator[None]:
    """What the first session of a process loads is no growth."""
    with torch.no_grad():
        torch.compile(nn.Linear(8, 8), backend="ortlens")(torch.ones(1, 8))
        yield


def test_a_million_calls(use: type[Use], tmp_path: Path) -> None:
    lens = Lens()
    compiled, x = torch.compile(torch.sin, backend=lens), torch.ones(3)
    for _ in range(20_000):
        compiled(x)
    used = use("1,000,000 calls under a lens")
    for _ in range(1_000_000):
        compiled(x)
    used.stop()
    torch.testing.assert_close(compiled(x), x.sin())
    assert int(lens.sessions.calls.sum()) == 1_020_001
    assert used.grown_bytes < 50 * MEGABYTE
    assert lens.save(tmp_path / "run.ortlens").stat().st_size < 5 * MEGABYTE


def test_ten_thousand_sessions(use: type[Use]) -> None:
    lens = Lens(options={"export_options": {"dynamic_shapes": False}})
    compiled = torch.compile(lambda x: (x * 2).sin().sum(), backend=lens, dynamic=True)
    used = use("10,000 sessions")
    for size in range(2, 10_002):
        x = torch.full((size,), 0.5)
        assert abs(float(compiled(x)) - size * 0.8414709848) < 1e-3 * size
    used.stop()
    assert len(lens.sessions) == 10_000
    assert "session_churn" in set(lens.findings.rule)
    assert used.grown_bytes < 400 * MEGABYTE


@torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000)
def test_five_hundred_recompiles(tmp_path: Path, use: type[Use]) -> None:
    lens = Lens()

    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by + 1

    compiled, x = torch.compile(scaled, backend=lens, dynamic=False), torch.ones(3)
    used = use("500 recompiles")
    for number in range(500):
        assert torch.equal(compiled(x, float(number)), scaled(x, float(number)))
    used.stop()
    assert len(lens.recompiles) == 499
    assert used.grown_bytes < 400 * MEGABYTE
    written = use("their report")
    page = ortlens.load(lens.save(tmp_path / "run.ortlens")).report(tmp_path / "run.html")
    written.stop(f"{page.stat().st_size / 1e6:.1f} MB on disk")
    assert written.seconds < 60
    assert page.stat().st_size < 2 * MEGABYTE


def test_three_thousand_results(use: type[Use]) -> None:
    def many(x: torch.Tensor) -> list[torch.Tensor]:
        return [x + number for number in range(3000)]

    used = use("3,000 results of one graph")
    made = torch.compile(many, backend=Lens())(torch.ones(4))
    used.stop()
    assert all(torch.equal(one, other) for one, other in zip(made, many(torch.ones(4)), strict=True))
    assert used.grown_bytes < 500 * MEGABYTE


def test_ten_thousand_parameters(use: type[Use]) -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ParameterList([nn.Parameter(torch.full((2,), number / 7)) for number in range(10_000)])

        def forward(self, x: torch.Tensor) -> Any:
            for part in self.parts:
                x = x + part
            return x

    model, x = Many(), torch.ones(2)
    used = use("10,000 parameters")
    compiled = torch.compile(model, backend="ortlens")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-3)
    used.stop()
    assert used.grown_bytes < 2000 * MEGABYTE
    model.parts[9999].add_(1)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-3)


def test_a_report_of_fifty_thousand_nodes(use: type[Use], tmp_path: Path) -> None:
    base = small_capture()
    like = base.nodes[0]
    nodes = tuple(replace(like, node=f"node_{number}") for number in range(50_000))
    graphs = (replace(base.graphs[0], graph_id=like.graph_id, node_count=len(nodes)),)
    capture: r.Capture = replace(base, nodes=nodes, graphs=graphs)
    saved = tmp_path / "run.ortlens"
    used = use("a report of 50,000 nodes")
    store.save(capture, saved)
    page = ortlens.load(saved).report(tmp_path / "run.html")
    used.stop(f"{page.stat().st_size / 1e6:.1f} MB on disk")
    assert used.seconds < 120
    assert page.stat().st_size < 30 * MEGABYTE
    assert used.grown_bytes < 500 * MEGABYTE
