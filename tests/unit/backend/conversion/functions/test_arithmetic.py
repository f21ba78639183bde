"""Functions of single elements against eager, at the edges of every element type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.opinfo.extremes import differing, extremes, pairs

UNARY: dict[str, Any] = {
    "add with alpha": lambda x: torch.add(x, 3, alpha=2),
    "add fractions": lambda x: torch.ops.aten.add.Scalar(x, 1, 3),
    "sub from a number": lambda x: 1.5 - x,
    "rsub with alpha": lambda x: torch.rsub(x, 2, alpha=3),
    "isinf": torch.isinf,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "isnan": torch.isnan,
    "nan_to_num": torch.nan_to_num,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "angle": torch.angle,
    "deg2rad": torch.deg2rad,
    "rad2deg": torch.rad2deg,
    "signbit": torch.signbit,
}

BINARY: dict[str, Any] = {
    "atan2": torch.atan2,
    "heaviside": torch.heaviside,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8], ids=str)
def test_of_one_value(dtype: torch.dtype) -> None:
    assert differing(UNARY, extremes(dtype))[0] == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32], ids=str)
def test_of_two_values(dtype: torch.dtype) -> None:
    assert differing(BINARY, *pairs(extremes(dtype), extremes(dtype)))[0] == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_lengths_and_signs(dtype: torch.dtype) -> None:
    numbers = extremes(dtype)
    cases = {
        "hypot": torch.hypot,
        "copysign": lambda x, y: torch.copysign(x, y.nan_to_num()),  # the sign of a NaN is not defined
        "copysign of a number": lambda x, _: torch.copysign(x, -2.0),
        "lerp from the near end": lambda x, y: torch.lerp(x, y, 0.1),
        "lerp from the far end": lambda x, y: torch.lerp(x, y, 0.9),
        "lerp away from both": lambda x, y: torch.lerp(x.clamp(-9, 9), y.clamp(-9, 9), -0.9),
    }
    found, capture = differing(cases, *pairs(numbers, numbers), atol=torch.finfo(dtype).tiny * 4)
    assert found == {}
    assert not capture.fallbacks


def test_signs_of_zero_that_are_kept() -> None:
    x = torch.tensor([-0.0, 0.0, -0.5, 0.5])
    cases = {"trunc": torch.trunc, "log1p": torch.log1p, "copysign": lambda x: torch.copysign(torch.zeros(4), x)}
    signs = {name: lambda x, case=case: torch.signbit(case(x)) for name, case in cases.items()}
    assert differing(signs, x)[0] == {}


def test_sums_of_booleans() -> None:
    x, y = pairs(extremes(torch.bool), extremes(torch.bool))
    found, capture = differing({"add": torch.add, "isnan": lambda x, _: torch.isnan(x)}, x, y)
    assert found == {}
    assert not capture.fallbacks
