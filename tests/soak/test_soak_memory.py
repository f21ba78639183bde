"""Weights that change hundreds of times leave nothing behind: no session, no copy of a weight, no binding."""

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens, OrtBackend
from ortlens.backend.runtime import weights

pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm and asks glibc to trim")]

WARM, TIMES = 20, 200
SIZE = 1024
WEIGHT_BYTES = 2 * SIZE * SIZE * 4
ALLOWED_BYTES = 16 * WEIGHT_BYTES  # for 200 rounds: room for what Dynamo logs and pytest keeps, none for every tenth session


def resident_bytes() -> int:
    """What is in use: glibc keeps some hundreds of MB of what was freed, and gives it back when asked."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def net() -> Any:  # noqa: ANN401 - attributes of modules are Any in torch itself
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE)).eval()


def grown_by(work: Callable[[], object]) -> int:
    for _ in range(WARM):
        work()
    before = resident_bytes()
    for _ in range(TIMES):
        work()
    return resident_bytes() - before


def test_a_leak_would_be_seen() -> None:
    kept: list[torch.Tensor] = []

    def work() -> None:
        kept.append(torch.ones(WEIGHT_BYTES // 4 // 10))

    assert grown_by(work) > ALLOWED_BYTES, "a tenth of the weights per round"


@pytest.mark.parametrize(("freezing", "assign"), [("as often as it takes", False), ("as often as it takes", True), ("as shipped", False)])
def test_weights_loaded_again_and_again(monkeypatch: pytest.MonkeyPatch, freezing: str, assign: bool) -> None:  # noqa: FBT001 - torch's name
    if freezing == "as often as it takes":
        monkeypatch.setattr(weights, "_MAX_REFREEZES", 10**9)
    model, x, backend = net(), torch.randn(3, SIZE), OrtBackend()
    compiled = torch.compile(model, backend=backend)

    def work() -> None:
        model.load_state_dict({name: torch.randn_like(value).mul_(0.05) for name, value in model.state_dict().items()}, assign=assign)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)

    assert grown_by(work) < ALLOWED_BYTES
    assert backend.execution_count == WARM + TIMES


def test_two_models_that_take_turns_in_one_compiled_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MAX_REFREEZES", 10**9)
    models, x = [net(), net()], torch.randn(3, SIZE)
    compiled = [torch.compile(model, backend="ortlens") for model in models]

    def work() -> None:
        with torch.no_grad():
            for model, fast in zip(models, compiled, strict=True):
                torch.testing.assert_close(fast(x), model(x), atol=1e-4, rtol=1e-4)

    assert grown_by(work) < ALLOWED_BYTES


def test_sessions_for_fixed_sizes_when_weights_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MAX_REFREEZES", 10**9)
    model = net()
    compiled = torch.compile(model, backend=OrtBackend({"export_options": {"dynamic_shapes": False}}), dynamic=True)

    def work() -> None:
        with torch.no_grad():
            model[0].weight.mul_(-1)
            for rows in (2, 3):
                x = torch.randn(rows, SIZE)
                torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)

    assert grown_by(work) < ALLOWED_BYTES


@pytest.mark.parametrize("watched", [False, True])
def test_models_made_compiled_and_dropped(watched: bool) -> None:  # noqa: FBT001 - two cases of one claim
    def work() -> None:
        torch.compiler.reset()
        model, x = net(), torch.randn(3, SIZE)
        compiled = torch.compile(model, backend=Lens() if watched else "ortlens")
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)

    assert grown_by(work) < ALLOWED_BYTES
