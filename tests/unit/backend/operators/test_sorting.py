"""Sorting, searching, medians and running products against eager: NaN, infinity, ties, no dimension, the edges of every type."""

import math
from typing import Any

import pytest
import torch

from tests.unit.backend.operators.one_graph import FLOATS, as_pytorch, extremes, left

INF, NAN = math.inf, math.nan
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
MEDIANS: dict[str, Any] = {
    "median": torch.median,
    "median of rows": lambda x: torch.median(x, -1).values,
    "median of columns, kept": lambda x: torch.median(x, 0, keepdim=True).values,
    "median of a number": lambda x: (torch.median(x[0, 0]), torch.median(x[0, 0], 0).values),
    "nanmedian": torch.nanmedian,
    "nanmedian of rows": lambda x: torch.nanmedian(x, -1).values,
    "nanmedian of columns, kept": lambda x: torch.nanmedian(x, 0, keepdim=True).values,
}
KTH_VALUES: dict[str, Any] = {
    "kthvalue, first": lambda x: torch.kthvalue(x, 1).values,
    "kthvalue": lambda x: torch.kthvalue(x, 3, 1).values,
    "kthvalue, last": lambda x: torch.kthvalue(x, 4, 0, keepdim=True).values,
    "kthvalue of a number": lambda x: torch.kthvalue(x[0, 0], 1).values,
}
FEW = {name: MEDIANS[name] for name in ("median", "nanmedian", "median of rows")}
PRODUCTS: dict[str, Any] = {
    "cumprod": lambda x: torch.cumprod(x, 0),
    "cumprod of rows": lambda x: torch.cumprod(x, -1),
    "cumprod of a number": lambda x: torch.cumprod(x[0, 0], 0),
    "cumprod of nothing": lambda x: torch.cumprod(x[:0], 1),
    "cumprod in float64": lambda x: torch.cumprod(x, 0, dtype=torch.float64),
    "vander": torch.linalg.vander,
    "vander, decreasing": lambda x: torch.vander(x[0], 4),
}
# Of floats, the order in which they are multiplied matters.
INTEGER_PRODUCTS: dict[str, Any] = {
    "prod": torch.prod,
    "prod of rows": lambda x: torch.prod(x, 1),
    "prod of columns, kept": lambda x: torch.prod(x, 0, keepdim=True),
    "prod of nothing": lambda x: torch.prod(x[:, :0], 1),
}


def rows(dtype: torch.dtype) -> torch.Tensor:
    edges = extremes(dtype)
    return edges[torch.randperm(len(edges), generator=torch.Generator().manual_seed(3))[: len(edges) // 4 * 4]].reshape(4, -1)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_at_the_edges(dtype: torch.dtype) -> None:
    capture = as_pytorch({**SORTED, **MEDIANS, **KTH_VALUES}, rows(dtype), atol=0)
    assert not [row for row in capture.fallbacks if "median" in row.target or "kth" in row.target]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinity(dtype: torch.dtype) -> None:
    odd = [[1, NAN, 2, NAN], [INF, -INF, 3, INF], [NAN, NAN, NAN, NAN], [INF, NAN, INF, -INF], [2, 2, 1, 1]]
    values = {name: SORTED[name] for name in ("sort values", "topk", "topk up")}
    as_pytorch({**MEDIANS, **KTH_VALUES, **values}, torch.tensor(odd, dtype=dtype), atol=0)


def test_infinity_is_not_the_largest_number() -> None:
    x = torch.tensor([[INF, torch.finfo(torch.float32).max, NAN, 1.0, INF, NAN]])
    cases = {name: SORTED[name] for name in ("sort", "sort down", "topk", "argmax", "argsort")}
    as_pytorch(cases, x, dynamic=True, atol=0, stays=())


@pytest.mark.parametrize("count", [1, 2, 7])
def test_sizes_that_are_known_at_run_time_only(count: int) -> None:
    as_pytorch(MEDIANS, torch.randn(count, 5, generator=torch.Generator().manual_seed(count)), dynamic=True, atol=0, stays=())


@pytest.mark.parametrize("size", [(5,), (3, 5)], ids=str)
def test_integers_of_sizes_that_are_known_at_run_time_only(size: tuple[int, ...]) -> None:
    capture = as_pytorch(FEW, torch.arange(5).expand(size) * 3 - 7, dynamic=True, atol=0)
    assert all("another rank" in str(row.reason) for row in capture.fallbacks)


def test_graphs_that_read_an_index_keep_pytorch() -> None:
    cases = {"median": lambda x: torch.median(x, 1), "kthvalue": lambda x: torch.kthvalue(x, 2), "nan": lambda x: torch.nanmedian(x, 0)}
    stays = {"aten.median.dim", "aten.kthvalue.default", "aten.nanmedian.dim"}
    capture = as_pytorch(cases, torch.tensor([[1.0, 1.0, 1.0, 2.0], [2.0, 1.0, 2.0, 1.0]]), atol=0, stays=stays)
    assert all("index" in str(row.reason) for row in capture.fallbacks)


def test_nothing_has_no_median_in_onnx_runtime() -> None:
    capture = as_pytorch({"median": torch.median, "rows": lambda x: torch.nanmedian(x, 1).values}, torch.zeros(0, 3), atol=0)
    assert all("without elements" in str(row.reason) for row in capture.fallbacks)


def test_gradients() -> None:
    cases = FEW | {name: SORTED[name] for name in ("sort", "topk", "max", "min")} | {name: PRODUCTS[name] for name in ("cumprod", "vander")}
    as_pytorch(cases, torch.randn(4, 6, generator=torch.Generator().manual_seed(1)), grad=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_products_at_the_edges(dtype: torch.dtype) -> None:
    x = extremes(dtype)[torch.randperm(200, generator=torch.Generator().manual_seed(6)).reshape(8, 25) % len(extremes(dtype))]
    cases = PRODUCTS if dtype.is_floating_point else {**PRODUCTS, **INTEGER_PRODUCTS}
    lacking = ("vander", "vander, decreasing") if dtype is torch.bool else ()  # in eager
    as_pytorch({name: case for name, case in cases.items() if name not in lacking}, x, atol=0, stays=())


def test_partial_products_and_sums_do_not_overflow() -> None:
    large, small = torch.tensor([0.0, *[1e38] * 12], dtype=torch.float64), torch.tensor([0.1] * 16 + [10.0] * 16) ** 12
    cases: dict[str, Any] = {f"cumprod {place}": lambda *x, place=place: torch.cumprod(x[place], 0) for place in range(4)}
    cases["logcumsumexp"] = lambda *x: torch.logcumsumexp(x[4], 1)
    exponents = torch.tensor([[0.0, 200.0, -200.0, 88.9]])
    as_pytorch(cases, large, large.float(), small, small.double(), exponents, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_many_products_stay_in_pytorch(*, dynamic: bool) -> None:
    x = torch.ones(33, 2, dtype=torch.int64) * 3
    capture = as_pytorch({"cumprod": lambda x: torch.cumprod(x, 0), "prod": lambda x: torch.prod(x, 0)}, x, dynamic=dynamic, atol=0)
    assert all("multiplies" in str(row.reason) for row in capture.fallbacks)
    assert "aten.cumprod.default" in left(capture)
