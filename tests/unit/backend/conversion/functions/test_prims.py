"""Primitive operators against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.opinfo.extremes import differing, extremes

_prims = torch.ops.prims
CASES: dict[str, Any] = {
    "collapse": lambda x: _prims.collapse(x, 0, 1),
    "collapse of the end": lambda x: _prims.collapse(x, 1, 2),
    "collapse of nothing": lambda x: _prims.collapse(x[:0], 0, 1),
    "rev": lambda x: _prims.rev(x, [0, 2]),
    "iota": lambda x: (
        _prims.iota(5, start=3, step=-2, dtype=torch.int64, device=x.device, requires_grad=False) + x.new_ones((), dtype=torch.int64)
    ),
    "iota of none": lambda x: _prims.iota(0, start=3, step=2, dtype=torch.int32, device=x.device, requires_grad=False) * 1,
    "maximum": lambda x: _prims.maximum(x, x.flip(0)),
    "minimum": lambda x: _prims.minimum(x, x.flip(0)),
    "sign": _prims.sign,
    "trunc": _prims.trunc,
}
FLOATS: dict[str, Any] = {
    "fmax": lambda x: _prims.fmax(x, x.flip(0)),
    "fmin": lambda x: _prims.fmin(x, x.flip(0)),
    "hypot": lambda x: _prims.hypot(x, x.flip(0)),
    "log1p": _prims.log1p,
    "expm1": _prims.expm1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_as_pytorch(dtype: torch.dtype) -> None:
    numbers = extremes(dtype)
    x = numbers[: len(numbers) // 6 * 6].reshape(2, 3, -1)
    found, capture = differing(CASES | (FLOATS if dtype.is_floating_point else {}), x, atol=1e-37)
    assert found == {}
    assert not capture.fallbacks
