"""Numbers beside tensors, and tensors that a graph makes of numbers: no digit is lost on the way into the model."""

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


X = torch.linspace(-1, 1, 24).reshape(4, 6)
WINDOWS = (torch.hamming_window, torch.hann_window, torch.blackman_window, torch.bartlett_window, torch.kaiser_window)
CASES: dict[str, Any] = {
    "range of fractions": lambda x: torch.arange(0.1, -7.9, -4.0) + x[0, 0],
    "range to a fraction": lambda x: torch.arange(2.5) + x[0, 0],
    "range of fractions as integers": lambda x: torch.arange(0.5, 7.5, 1.5, dtype=torch.int64) + x.shape[0],
    "range of fractions as bytes": lambda x: torch.arange(9, 1, -2.5, dtype=torch.uint8) + x.shape[0],
    "range to a bool": lambda x: torch.arange(True) + x.shape[0],  # noqa: FBT003 - a number
    "range from a bool": lambda x: torch.arange(True, 4, True) + x.shape[0],  # noqa: FBT003 - numbers
    "range in float64": lambda x: torch.arange(0, 1, 0.1, dtype=torch.float64) + x[0, 0],
    "range in float16": lambda x: torch.arange(0, 1, 0.1, dtype=torch.float16) + x.shape[0],
    "range of sizes": lambda x: torch.arange(x.shape[0], 3 * x.shape[1], 2) + x.shape[0],
    "space": lambda x: torch.linspace(0, 1, 7) + x[0, 0],
    "space of one": lambda x: torch.linspace(3, 9, 1) + x[0, 0],
    "space of integers": lambda x: torch.linspace(0, 10, 4, dtype=torch.int64) + x.shape[0],
    "logarithmic space": lambda x: torch.logspace(0, 4, 5, base=2.0) + x[0, 0],
    "unit matrix": lambda x: torch.eye(4, 6) + x,
    "triangle": lambda x: torch.tril_indices(3, 4, 1) + x.shape[0],
    "filled": lambda x: torch.full_like(x, 3.7, dtype=torch.int32) + 1,
    **{f"{make.__name__} of {n}": lambda x, make=make, n=n: make(n) * x[0, :n] for make in WINDOWS for n in (1, 2, 6)},
    **{f"{make.__name__}, symmetric": lambda x, make=make: make(6, periodic=False) * x for make in WINDOWS},
    **{f"{make.__name__} in float64": lambda x, make=make: make(6, dtype=torch.float64) * x for make in WINDOWS},
}
IN_TORCH = {"aten.bartlett_window.default", "aten.kaiser_window.default"}
IN_TORCH |= {f"aten.{name}_window.periodic" for name in ("hamming", "blackman", "bartlett", "kaiser")}


def test_as_pytorch() -> None:
    as_pytorch(CASES, X, dynamic=True, stays=IN_TORCH)


RANGES: dict[str, Any] = {
    "fractions": lambda x: torch.arange(0, 25 * x.shape[0], 0.1),
    "fractions in float64": lambda x: torch.arange(0, 25 * x.shape[0], 0.1, dtype=torch.float64),
    "down from a size": lambda x: torch.arange(x.shape[0], -0.35, -0.1),
    "whole numbers in float16": lambda x: torch.arange(x.shape[0], dtype=torch.float16),
}


def test_ranges_up_to_a_size_do_not_drift() -> None:
    x = torch.ones(1000)
    as_pytorch(RANGES, x, dynamic=True, stays=())
    exact = torch.compile(RANGES["fractions in float64"], backend="ortlens", dynamic=True)(x)
    torch.testing.assert_close(exact, torch.arange(250_000, dtype=torch.float64) * 0.1, rtol=1e-15, atol=0)


DEFAULTS: dict[str, Any] = {
    "ones": lambda x: torch.ones(3) + x,
    "zeros": lambda x: torch.zeros(3) - x,
    "number": lambda x: torch.scalar_tensor(1 / 3) * x,
    "filled": lambda x: torch.full((3,), 1 / 3) * x,
    "space": lambda x: torch.linspace(0, 1, 3) * torch.hann_window(3) * x,
}
DTYPES = (torch.bool, torch.int8, torch.float16, torch.float32, torch.complex64)
EXPONENTS = {
    f"{dtype} {to}": (dtype, to) for dtype in DTYPES for to in (torch.int64, torch.float16) if to.itemsize > 2 or not dtype.is_complex
}
EXPONENTS["complex"] = (torch.complex64, torch.float64)  # eager has no powers of ComplexHalf
POWERS: dict[str, Any] = {name: lambda x, a=a, b=b: torch.ldexp(x.abs().to(a), x.ceil().to(b))[:2] for name, (a, b) in EXPONENTS.items()}


@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.float16])
def test_the_default_dtype_is_that_of_the_trace(default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    try:
        as_pytorch(DEFAULTS, x := torch.tensor([1, 2, -1.25]), stays=())
        as_pytorch(POWERS, x)
    finally:
        torch.set_default_dtype(torch.float32)
