"""Layer normalisation of nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.unit.backend.conversion.functions.one_graph import differing, left

CASES: dict[str, Any] = {
    "no columns": lambda x: functional.layer_norm(x[:, :0], (0,)),
    "no columns, weights": lambda x: functional.layer_norm(x[:, :0], (0,), x[0, :0], x[1, :0]),
    "no rows": lambda x: functional.layer_norm(x[:0], (3,), x[0], x[1]),
    "statistics": lambda x: torch.native_layer_norm(x[None, :, :0], (2, 0), None, None, 1e-5),
    "something": lambda x: functional.layer_norm(x, (3,), x[0], x[1]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_of_nothing(dtype: torch.dtype) -> None:
    found, capture = differing(CASES, torch.tensor([[1.0, 2.0, 4.0], [0.5, 3.0, -1.0]], dtype=dtype))
    assert found == {}
    assert not left(capture)
