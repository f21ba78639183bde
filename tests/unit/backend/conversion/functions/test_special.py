"""Logarithms, exponentials and what is made of them, against eager at the edges of every float type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.opinfo.extremes import differing, extremes, pairs

FLOATS = (torch.float32, torch.float64, torch.float16)

UNARY: dict[str, Any] = {
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "special.expm1": torch.special.expm1,
    "log2": torch.log2,
    "log10": torch.log10,
    "sinc": lambda x: torch.sinc(x.clamp(-9, 9)),
    "logit": torch.logit,
    "logit with eps": lambda x: torch.logit(x, 0.1),
    "logsigmoid": functional.logsigmoid,
    "erfc": torch.erfc,
    "erfcx": torch.special.erfcx,
    "log_ndtr": torch.special.log_ndtr,
    "xlogy number first": lambda x: torch.xlogy(2.5, x),
    "xlogy number second": lambda x: torch.xlogy(x, 2.5),
    "xlogy of 0": lambda x: torch.xlogy(0.0, x),
}

BINARY: dict[str, Any] = {
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_of_one_value(dtype: torch.dtype) -> None:
    lacking = ("erfcx", "log_ndtr") if dtype is torch.float16 else ()  # in eager
    cases = {name: case for name, case in UNARY.items() if name not in lacking}
    assert differing(cases, extremes(dtype), atol=torch.finfo(dtype).eps)[0] == {}


def test_small_arguments_keep_their_digits() -> None:
    small = torch.tensor([1e-4, -1e-4, 1e-8, -1e-8, 1e-20])
    kept = {name: UNARY[name] for name in ("log1p", "expm1")} | {"erfc": lambda x: torch.erfc(x + 5)}
    assert differing(kept, small)[0] == {}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_of_two_values(dtype: torch.dtype) -> None:
    assert differing(BINARY, *pairs(extremes(dtype), extremes(dtype)), atol=torch.finfo(dtype).eps)[0] == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_logarithms_of_powers_are_whole(dtype: torch.dtype) -> None:
    twos, tens = 2.0 ** torch.arange(-120, 120, dtype=dtype), torch.tensor([10.0**k for k in range(11)], dtype=dtype)
    compiled = torch.compile(lambda x, y: (torch.log2(x), torch.log10(y)), backend="ortlens")
    first, second = compiled(twos, tens)
    assert torch.equal(first, torch.arange(-120, 120, dtype=dtype))
    assert torch.equal(second, torch.arange(11, dtype=dtype))


def test_sums_of_exponentials_that_overflow_stay_right() -> None:
    values = torch.tensor([[0.0, 200.0, -200.0, 88.9]])
    assert differing({"logcumsumexp": lambda x: torch.logcumsumexp(x, 1)}, values)[0] == {}
