"""Maxima, minima and bounds against eager; 64-bit integers are compared whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.opinfo.extremes import differing, extremes, pairs

DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8)

UNARY: dict[str, Any] = {
    "sign": torch.sign,
    "relu": torch.relu,
    "relu6": functional.relu6,
    "hardtanh": functional.hardtanh,
    "clamp": lambda x: x.clamp(1, 5),
    "clamp to crossed bounds": lambda x: x.clamp(5, 1),
    "clamp from below": lambda x: x.clamp(min=2),
    "clamp from above": lambda x: x.clamp(max=2),
    "clamp_min": lambda x: torch.clamp_min(x, 2),
    "clamp_max": lambda x: torch.clamp_max(x, 2),
    "clamp to tensors": lambda x: torch.clamp(x, torch.tensor(1), torch.tensor(5)),
    "clamp to fractions": lambda x: torch.clamp(x, torch.tensor(0.5), torch.tensor(2.5)),
    "clamp_min of a tensor": lambda x: torch.clamp_min(x, torch.tensor(2)),
    "threshold": lambda x: functional.threshold(x, 1, 7),
}

BINARY: dict[str, Any] = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp from below": lambda x, y: torch.clamp(x, min=y),
    "clamp from above": lambda x, y: torch.clamp(x, max=y),
    "clamp": lambda x, y: torch.clamp(x, y, y),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_with_numbers(dtype: torch.dtype) -> None:
    cases = {name: case for name, case in UNARY.items() if name != "hardtanh" or dtype is not torch.uint8}
    assert differing(cases, extremes(dtype))[0] == {}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_with_tensors(dtype: torch.dtype) -> None:
    assert differing(BINARY, *pairs(extremes(dtype), extremes(dtype)))[0] == {}


def test_of_booleans() -> None:
    x, y = pairs(extremes(torch.bool), extremes(torch.bool))
    found, capture = differing({name: getattr(torch, name) for name in ("fmax", "fmin", "maximum", "minimum")}, x, y)
    assert found == {}
    assert not capture.fallbacks
