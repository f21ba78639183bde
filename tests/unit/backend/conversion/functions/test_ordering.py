"""Sorting and searching against eager, with NaN, infinity and the largest numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.opinfo.extremes import differing, extremes

SORTED: dict[str, Any] = {
    "sort": lambda x: torch.sort(x, stable=True),
    "sort down": lambda x: torch.sort(x, descending=True, stable=True),
    "sort columns": lambda x: torch.sort(x, dim=0, stable=True),
    "sort values": lambda x: torch.sort(x)[0],
    "argsort": lambda x: torch.argsort(x, stable=True),
    "topk": lambda x: torch.topk(x, 3)[0],
    "topk up": lambda x: torch.topk(x, 3, dim=0, largest=False)[0],
    "topk of a number": lambda x: torch.topk(x[0, 0], 1),
    "argmax": torch.argmax,
    "argmax, kept": lambda x: torch.argmax(x, keepdim=True),
    "argmin, kept": lambda x: torch.argmin(x, keepdim=True),
    "argmax of columns": lambda x: torch.argmax(x, 0),
    "argmin of rows": lambda x: torch.argmin(x, -1),
    "max": lambda x: torch.max(x, 1),
    "min": lambda x: torch.min(x, 1),
}


def numbers(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    edges = extremes(dtype)
    return edges[torch.randperm(len(edges), generator=generator)[: len(edges) // 4 * 4]].reshape(4, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32], ids=str)
def test_at_the_edges(dtype: torch.dtype) -> None:
    assert differing(SORTED, numbers(dtype))[0] == {}


@pytest.mark.parametrize("dynamic", [False, True])
def test_infinity_is_not_the_largest_number(*, dynamic: bool) -> None:
    x = torch.tensor([[math.inf, torch.finfo(torch.float32).max, math.nan, 1.0, math.inf, math.nan]])
    cases = {name: SORTED[name] for name in ("sort", "sort down", "topk", "argmax", "argsort")}
    found, capture = differing(cases, x, dynamic=dynamic)
    assert found == {}
    assert not capture.fallbacks


def test_two_nans_in_float64() -> None:
    x = torch.tensor([[math.nan, 1.0, math.inf, math.nan]], dtype=torch.float64)
    assert differing({"topk": lambda x: torch.topk(x, 2)[0], "sort": lambda x: torch.sort(x)[0]}, x)[0] == {}


def test_gradients() -> None:
    cases = {name: SORTED[name] for name in ("sort", "topk", "max", "min")}
    assert differing(cases, torch.randn(4, 6, generator=torch.Generator().manual_seed(1)), backward=True)[0] == {}
