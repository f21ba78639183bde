"""Numbers beside tensors: not rounded to float32 on the way into the model, and also known at run time only."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from ortlens import Lens
from tests.unit.backend.operators.one_graph import as_pytorch

FRACTION: dict[str, Any] = {
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x.abs() + 1, value=n),
    "celu": lambda x, n: functional.celu(x - 1, n),
    "elu": lambda x, n: functional.elu(x - 1, n),
    "fill": torch.fill,
    "full": lambda x, n: torch.full((3,), n, dtype=x.dtype),
    "full_like": torch.full_like,
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0]), n),
    "leaky_relu": lambda x, n: functional.leaky_relu(x - 1, n),
    "linspace": lambda x, n: torch.linspace(0, n, 5, dtype=x.dtype),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "new_full": lambda x, n: x.new_full((2,), n),
    "power of a number": lambda x, n: n**x,
    "product": lambda x, n: torch.matmul(x * n, x.T),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([[0, 1, 2, 0]]), n),
    "softplus": functional.softplus,
    "threshold": lambda x, n: functional.threshold(x, n, n),
    "where": lambda x, n: torch.where(x > 1, n, x),
}
WHOLE: dict[str, Any] = {name: case for name, case in FRACTION.items() if name not in ("celu", "product")} | {
    "and": lambda x, n: x.long() & n,
    "or": lambda x, n: x.long() | n,
    "xor": lambda x, n: x.long() ^ n,
    "left shift": lambda x, n: x.long() << n,
    "right shift": lambda x, n: x.long() >> n,
    "roll": lambda x, n: x.roll(n, 1),
    "roll back": lambda x, n: x.roll((-n, n), (0, -1)),
    "roll all": lambda x, n: x.roll(n),
    "addmm": lambda x, n: torch.addmm(x @ x.T, x, x.T, beta=n, alpha=n),
}
LARGE: dict[str, Any] = {
    "addcmul": lambda x: torch.addcmul(x, x, x, value=2**24 + 1),
    "full": lambda x: torch.full_like(x, 2**53 + 1),
    "masked_fill": lambda x: x.masked_fill(x > 5, 2**53 + 1),
    "threshold": lambda x: functional.threshold(x, 2**24 + 1, 2**24 + 3),
    "threshold by floats": lambda x: functional.threshold(x, 2.0**24 + 1, 2.0**24 + 3),
}


def test_float64_gets_all_digits() -> None:
    x = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.5
    cases = {name: lambda x, case=case: case(x, 0.1) for name, case in FRACTION.items()}
    as_pytorch(cases, x, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_numbers_that_are_known_at_run_time_only(dtype: torch.dtype) -> None:
    # Of integers, not in eager, in floats in ONNX Runtime, or (addmm) with a guard of PyTorch's decomposition on the number.
    floats = ("addcdiv", "elu", "leaky_relu", "softplus", "power of a number", "addmm")
    cases = {name: case for name, case in WHOLE.items() if dtype is not torch.int64 or name not in floats}
    x = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
    lens = Lens()
    compiled = torch.compile(lambda x, n: {name: case(x, n) for name, case in cases.items()}, backend=lens, dynamic=True)
    for number in (3, 2):
        torch.testing.assert_close(compiled(x, number), {name: case(x, number) for name, case in cases.items()})
    assert not lens.captured().fallbacks
    assert len(lens.graphs) == 1


def test_large_integers() -> None:
    x = torch.tensor([2**24 - 1, 2**24, 2**24 + 1, 2**24 + 2, 2**53 + 1, -(2**62), 2**62 + 1, 5, 0])
    as_pytorch(LARGE, x, atol=0, stays=())


def test_a_factor_of_float64_is_not_moved_into_an_attribute_of_32_bits() -> None:
    x = torch.rand(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    cases = {
        "baddbmm": lambda x: torch.baddbmm(x @ x.mT, x, x.mT, beta=0.1, alpha=0.1),
        "attention": lambda x: functional.scaled_dot_product_attention(x, x, x, scale=0.1),
    }
    as_pytorch(cases, x, atol=0)
