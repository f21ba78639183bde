"""Choices between two tensors against eager, in element types that ONNX Runtime's Where lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.opinfo.extremes import differing, extremes

CASES: dict[str, Any] = {
    "where": lambda x, mask: torch.where(mask, x, x.flip(0)),
    "where broadcasts": lambda x, mask: torch.where(mask[:, None], x, x.flip(0)),
    "where of a number": lambda x, mask: torch.where(mask, x, 1),
    "masked_fill": lambda x, mask: x.masked_fill(mask, 1),
    "masked_fill by a tensor": lambda x, mask: x.masked_fill(mask, torch.tensor(1, dtype=x.dtype)),
    "masked_fill of a number": lambda x, mask: x[0].masked_fill(mask[0], 0),
}
DTYPES = (torch.bool, torch.int16, torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type(dtype: torch.dtype) -> None:
    x = extremes(dtype)
    found, capture = differing(CASES, x, torch.arange(len(x)) % 3 == 0)
    assert found == {}
    assert not capture.fallbacks
