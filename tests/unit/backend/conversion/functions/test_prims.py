"""Primitive operators against eager."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from tests.unit.backend.conversion.functions.one_graph import as_pytorch, extremes

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
    **{name: lambda x, name=name: getattr(_prims, name)(x, x.flip(0)) for name in ("maximum", "minimum")},
    "sign": _prims.sign,
    "trunc": _prims.trunc,
}
OF_FLOATS: dict[str, Any] = {
    **{name: lambda x, name=name: getattr(_prims, name)(x, x.flip(0)) for name in ("fmax", "fmin", "hypot")},
    "log1p": _prims.log1p,
    "expm1": _prims.expm1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_as_pytorch(dtype: torch.dtype) -> None:
    numbers = extremes(dtype)
    x = numbers[: len(numbers) // 6 * 6].reshape(2, 3, -1)
    as_pytorch(CASES | (OF_FLOATS if dtype.is_floating_point else {}), x, atol=1e-37, stays=())


def test_a_product_and_a_sum_of_optimisers() -> None:
    """Torch registers it with its compiler, after this file may have been read."""
    importlib.import_module("torch._inductor.inductor_prims")

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.prims.fma(x, y, z) + 0
        return made

    as_pytorch({"fma": function}, *(torch.randn(3, 4, dtype=torch.float64) for _ in range(3)), atol=0, stays=())
