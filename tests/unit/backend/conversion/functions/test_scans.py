"""Running products and products of integers against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.opinfo.extremes import differing, extremes

CASES: dict[str, Any] = {
    "cumprod": lambda x: torch.cumprod(x, 0),
    "cumprod of rows": lambda x: torch.cumprod(x, -1),
    "cumprod of a number": lambda x: torch.cumprod(x[0, 0], 0),
    "cumprod of nothing": lambda x: torch.cumprod(x[:0], 1),
    "cumprod in float64": lambda x: torch.cumprod(x, 0, dtype=torch.float64),
    "vander": torch.linalg.vander,
    "vander, decreasing": lambda x: torch.vander(x[0], 4),
    "prod of rows": lambda x: torch.prod(x, 1),
    "prod of columns, kept": lambda x: torch.prod(x, 0, keepdim=True),
    "prod of nothing": lambda x: torch.prod(x[:, :0], 1),
}
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_at_the_edges(dtype: torch.dtype) -> None:
    x = extremes(dtype)[torch.randperm(200, generator=torch.Generator().manual_seed(6)).reshape(8, 25) % len(extremes(dtype))]
    whole = {"prod": torch.prod} if not dtype.is_floating_point else {}  # of floats, the order in which they are multiplied matters
    few = {name: case for name, case in CASES.items() if not dtype.is_floating_point or not name.startswith("prod of")}
    lacking = ("vander", "vander, decreasing") if dtype is torch.bool else ()  # in eager
    found, capture = differing({name: case for name, case in {**few, **whole}.items() if name not in lacking}, x)
    assert found == {}
    assert not capture.fallbacks


def test_partial_products_do_not_overflow() -> None:
    x = torch.tensor([0.0, *[1e38] * 12], dtype=torch.float64)
    small = torch.tensor([0.1] * 16 + [10.0] * 16) ** 12
    for numbers in (x, x.float(), small, small.double()):
        assert differing({"cumprod": lambda x: torch.cumprod(x, 0)}, numbers)[0] == {}


def test_gradients() -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    assert differing({"cumprod": lambda x: torch.cumprod(x, 1), "vander": torch.linalg.vander}, x, backward=True)[0] == {}


@pytest.mark.parametrize("dynamic", [False, True])
def test_many_products_stay_in_pytorch(*, dynamic: bool) -> None:
    x = torch.ones(33, 2, dtype=torch.int64) * 3
    found, capture = differing({"cumprod": lambda x: torch.cumprod(x, 0), "prod": lambda x: torch.prod(x, 0)}, x, dynamic=dynamic)
    assert found == {}
    assert all("multiplies" in str(row.reason) for row in capture.fallbacks)
    assert "aten.cumprod.default" in {row.target for row in capture.fallbacks}
