"""Activations against eager, in float64 with all its digits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.opinfo.extremes import differing, extremes

CASES: dict[str, Any] = {
    "elu": functional.elu,
    "elu with alpha": lambda x: functional.elu(x, 0.3),
    "elu with scales": lambda x: torch.ops.aten.elu(x, 1.5, 2.0, 0.5),
    "selu": functional.selu,
    "celu": functional.celu,
    "celu with alpha": lambda x: functional.celu(x, 0.3),
    "leaky_relu": functional.leaky_relu,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": lambda x: functional.hardswish(x.clamp(-1e4, 1e4)),
    "gelu": lambda x: functional.gelu(x.clamp(max=1e4)),
    "silu": functional.silu,
    "mish": functional.mish,
    "softplus": functional.softplus,
    "rrelu in evaluation": lambda x: functional.rrelu(x, training=False),
}


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 5e-7), (torch.float64, 1e-14), (torch.float16, 1e-3)], ids=str)
def test_values(dtype: torch.dtype, atol: float) -> None:
    assert differing(CASES, extremes(dtype), atol=atol)[0] == {}


def test_gradients() -> None:
    assert differing(CASES, torch.linspace(-4, 4, 33), backward=True, atol=1e-6)[0] == {}


TAILS: dict[str, Any] = {
    "sigmoid": torch.sigmoid,
    "its logarithm": lambda x: torch.log(torch.sigmoid(x)),
    "elu": functional.elu,
    "selu": functional.selu,
    "celu": lambda x: functional.celu(x, 2.0),
}


@pytest.mark.parametrize("sizes", ["static", "symbolic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", TAILS)
def test_small_results_keep_their_digits(name: str, dtype: torch.dtype, sizes: str) -> None:
    x = torch.tensor([-80, -50, -30, -20, -18.5, -18, -17, -1e-3, -1e-5, -1e-8, 1e-8, 20], dtype=dtype)
    compiled = torch.compile(TAILS[name], backend="ortlens", dynamic=sizes == "symbolic")
    torch.testing.assert_close(compiled(x), TAILS[name](x), rtol=2e-6 if dtype is torch.float32 else 1e-13, atol=0)
