"""Quotients, remainders and powers against eager, at the edges of every element type."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.backend.operators.one_graph import as_pytorch, extremes, pairs

INFINITY = float("inf")

NUMBERS: dict[str, Any] = {
    "floor by 2": lambda x: x // 2,
    "floor by -3": lambda x: torch.div(x, -3, rounding_mode="floor"),
    "floor by 0.3": lambda x: torch.floor_divide(x, 0.3),
    "trunc by 3": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "remainder of 3": lambda x: x % 3,
    "remainder of -3": lambda x: x % -3,
    "remainder of infinity": lambda x: x % INFINITY,
    "remainder of -infinity": lambda x: x % -INFINITY,
    "fmod 3": lambda x: torch.fmod(x, 3),
    "power 0": lambda x: x**0,
    "power 1": lambda x: x**1,
    "power 3": lambda x: x**3,
    "power 0.5": lambda x: x**0.5,
    "power -0.5": lambda x: x**-0.5,
    "powers of 2": lambda x: 2 ** x.abs(),
    "scalar mode": lambda x: torch.ops.aten.div.Scalar_mode(x, 3, rounding_mode="floor"),
}

TENSORS: dict[str, Any] = {
    "floor_divide": torch.floor_divide,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8], ids=str)
def test_by_numbers(dtype: torch.dtype) -> None:
    values = extremes(dtype)
    if dtype is torch.float64:  # eager's remainder of the largest numbers is NaN
        values = values[(values.abs() < torch.finfo(dtype).max) | values.isinf() | values.isnan()]
    as_pytorch(NUMBERS, values, atol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8], ids=str)
def test_the_least_integer_by_minus_one(dtype: torch.dtype) -> None:
    """ONNX Runtime ends the process at such a quotient; so does eager, rounding towards zero."""
    x, least = torch.tensor([torch.iinfo(dtype).min, 7], dtype=dtype), torch.tensor([-1, -1], dtype=dtype)
    by_tensors = {name: case for name, case in TENSORS.items() if name != "trunc"}
    by_numbers = {f"{name} by a number": lambda x, _, case=case: case(x, -1) for name, case in by_tensors.items()}
    as_pytorch(by_tensors | by_numbers, x, least, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32], ids=str)
def test_by_tensors(dtype: torch.dtype) -> None:
    x, y = pairs(dtype)
    kept = y != 0
    if dtype.is_floating_point:  # eager's remainder is NaN where the quotient overflows
        kept &= ((x / y).abs() < torch.finfo(dtype).max) | x.isinf() | y.isnan()
    else:  # eager ends the process
        kept &= (x != torch.iinfo(dtype).min) | (y != -1)
    as_pytorch(TENSORS, x[kept], y[kept], atol=0)


@pytest.mark.parametrize("divide", [operator.floordiv, operator.mod, torch.fmod, functools.partial(torch.div, rounding_mode="trunc")])
def test_constants_divided_by_zero_raise_as_in_eager(divide: Callable[..., torch.Tensor]) -> None:
    compiled = torch.compile(lambda: divide(torch.full((3,), 5), torch.tensor([1, 0, 2])), backend="ortlens")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled()
