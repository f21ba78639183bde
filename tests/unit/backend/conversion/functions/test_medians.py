"""Medians against eager: NaN, infinity, ties, the edges of every type, no dimension."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.opinfo.extremes import differing, extremes

VALUES: dict[str, Any] = {
    "median": torch.median,
    "median of rows": lambda x: torch.median(x, 1).values,
    "median of columns, kept": lambda x: torch.median(x, 0, keepdim=True).values,
    "median of a number": lambda x: (torch.median(x[0, 0]), torch.median(x[0, 0], 0).values),
    "nanmedian": torch.nanmedian,
    "nanmedian of rows": lambda x: torch.nanmedian(x, -1).values,
    "nanmedian of columns, kept": lambda x: torch.nanmedian(x, 0, keepdim=True).values,
    "kthvalue, first": lambda x: torch.kthvalue(x, 1).values,
    "kthvalue": lambda x: torch.kthvalue(x, 3, 1).values,
    "kthvalue, last": lambda x: torch.kthvalue(x, 4, 0, keepdim=True).values,
    "kthvalue of a number": lambda x: torch.kthvalue(x[0, 0], 1).values,
}
FLOATS = (torch.float32, torch.float64, torch.float16)


def rows(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    edges = extremes(dtype)
    return edges[torch.randperm(len(edges), generator=generator)[: len(edges) // 4 * 4]].reshape(4, -1)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_at_the_edges(dtype: torch.dtype) -> None:
    found, capture = differing(VALUES, rows(dtype))
    assert found == {}
    assert not capture.fallbacks


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinity(dtype: torch.dtype) -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor([[1, nan, 2, nan], [inf, -inf, 3, inf], [nan, nan, nan, nan], [inf, nan, inf, -inf], [2, 2, 1, 1]], dtype=dtype)
    assert differing(VALUES, x)[0] == {}


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_sizes_that_are_known_at_run_time_only(count: int) -> None:
    cases = {name: case for name, case in VALUES.items() if "kthvalue" not in name}
    found, capture = differing(cases, torch.randn(count, 5, generator=torch.Generator().manual_seed(count)), dynamic=True)
    assert found == {}
    assert not capture.fallbacks
    assert not [finding for finding in capture.findings if finding.rule == "run_failed"]


@pytest.mark.parametrize("size", [(5,), (3, 5)], ids=str)
def test_integers_of_sizes_that_are_known_at_run_time_only(size: tuple[int, ...]) -> None:
    cases = {"median": torch.median, "nanmedian": torch.nanmedian, "rows": lambda x: torch.median(x, -1).values}
    found, capture = differing(cases, torch.arange(5).expand(size) * 3 - 7, dynamic=True)
    assert found == {}
    assert not [finding for finding in capture.findings if finding.rule == "run_failed"]
    assert all("another rank" in str(row.reason) for row in capture.fallbacks)


def test_graphs_that_read_an_index_keep_pytorch() -> None:
    cases = {"median": lambda x: torch.median(x, 1), "kthvalue": lambda x: torch.kthvalue(x, 2), "nan": lambda x: torch.nanmedian(x, 0)}
    found, capture = differing(cases, torch.tensor([[1.0, 1.0, 1.0, 2.0], [2.0, 1.0, 2.0, 1.0]]))
    assert found == {}
    assert {row.target for row in capture.fallbacks} == {"aten.median.dim", "aten.kthvalue.default", "aten.nanmedian.dim"}
    assert all("index" in str(row.reason) for row in capture.fallbacks)


def test_nothing_has_no_median_in_onnx_runtime() -> None:
    found, capture = differing({"median": torch.median, "rows": lambda x: torch.nanmedian(x, 1).values}, torch.zeros(0, 3))
    assert found == {}
    assert all("without elements" in str(row.reason) for row in capture.fallbacks)


def test_gradients() -> None:
    cases = {"median": torch.median, "nanmedian": torch.nanmedian, "rows": lambda x: torch.median(x, 1).values}
    assert differing(cases, torch.randn(4, 6, generator=torch.Generator().manual_seed(1)), backward=True)[0] == {}
