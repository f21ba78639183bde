"""Tensors that a graph makes of numbers: ranges, spaces and windows, in every dtype."""

from typing import Any

import pytest
import torch

from tests.unit.backend.operators.one_graph import as_pytorch

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
