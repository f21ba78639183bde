"""Thousands of sessions, recompiles, outputs and parameters: memory and time stay within what is stated here."""

# ruff: noqa: ANN401 - attributes of modules are Any in torch itself

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from tests.soak.test_soak_memory import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.soak
MEGABYTE = 1_000_000


@pytest.fixture(autouse=True)
def _warm() -> Iterator[None]:
    """What the first session of a process loads is no growth."""
    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(nn.Linear(8, 8), backend="ortlens")(torch.ones(1, 8))
        yield
    torch.compiler.reset()


def test_ten_thousand_sessions() -> None:
    lens = Lens(options={"export_options": {"dynamic_shapes": False}})
    compiled = torch.compile(lambda x: (x * 2).sin().sum(), backend=lens, dynamic=True)
    before = resident_bytes()
    for size in range(2, 10_002):
        x = torch.full((size,), 0.5)
        assert abs(float(compiled(x)) - size * 0.8414709848) < 1e-3 * size
    assert len(lens.sessions) == 10_000
    assert "session_churn" in set(lens.findings.rule)
    assert resident_bytes() - before < 400 * MEGABYTE


def test_five_hundred_recompiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("recompile_limit", "accumulated_recompile_limit"):
        monkeypatch.setattr(f"torch._dynamo.config.{name}", 10_000)
    lens = Lens()

    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by + 1

    compiled, x = torch.compile(scaled, backend=lens, dynamic=False), torch.ones(3)
    before = resident_bytes()
    for number in range(500):
        assert torch.equal(compiled(x, float(number)), scaled(x, float(number)))
    assert len(lens.recompiles) == 499
    assert resident_bytes() - before < 400 * MEGABYTE
    started = time.monotonic()
    page = ortlens.load(lens.save(tmp_path / "run.ortlens")).report(tmp_path / "run.html")
    assert time.monotonic() - started < 60
    assert page.stat().st_size < 2 * MEGABYTE


def test_three_thousand_results() -> None:
    def many(x: torch.Tensor) -> list[torch.Tensor]:
        return [x + number for number in range(3000)]

    made = torch.compile(many, backend=Lens())(torch.ones(4))
    assert all(torch.equal(one, other) for one, other in zip(made, many(torch.ones(4)), strict=True))


def test_five_thousand_parameters() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ParameterList([nn.Parameter(torch.full((2,), number / 7)) for number in range(5000)])

        def forward(self, x: torch.Tensor) -> Any:
            for part in self.parts:
                x = x + part
            return x

    model, x, before = Many(), torch.ones(2), resident_bytes()
    compiled = torch.compile(model, backend="ortlens")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-3)
    assert resident_bytes() - before < 1000 * MEGABYTE
    model.parts[4999].add_(1)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-3)
