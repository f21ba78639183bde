"""What a session holds beside the weights that it shares with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import ortlens
from ortlens.backend.runtime import heap

if TYPE_CHECKING:
    from collections.abc import Callable

# Measures the memory of the process.
pytestmark = pytest.mark.serial

WEIGHT = 2048 * 1024 * 4


def held(function: Callable[[torch.Tensor], torch.Tensor], **options: object) -> int:
    torch.compiler.reset()
    lens = ortlens.Lens(options=options)
    with torch.no_grad():
        torch.compile(function, backend=lens)(torch.rand(3, 1024))
    return int(lens.sessions.held_bytes.iloc[0])


@pytest.mark.skipif(heap.heap_bytes() is None, reason="this C library does not tell")
def test_a_packed_weight_is_held_twice_and_an_input_is_not() -> None:
    layer = torch.nn.Linear(1024, 2048)
    assert WEIGHT <= held(layer) < 1.5 * WEIGHT
    assert held(layer, freeze_weights=False) < 0.2 * WEIGHT


@pytest.mark.skipif(heap.heap_bytes() is None, reason="this C library does not tell")
def test_the_heap_grows_by_what_is_taken() -> None:
    before = heap.heap_bytes()
    assert before is not None
    taken = bytearray(5_000_000)
    after = heap.heap_bytes()
    assert after is not None
    assert len(taken) <= after - before < len(taken) + 100_000


def test_a_c_library_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_mallinfo2", lambda: None)
    lens = ortlens.Lens()
    torch.compile(torch.relu, backend=lens)(torch.rand(3))
    assert lens.sessions.held_bytes.isna().all()
