"""Functions of single elements against eager, at the edges of every element type; 64-bit integers are compared whole."""

import functools
import importlib
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from ortlens import Lens
from ortlens.backend import planner
from ortlens.lens.verify.excuses import RANGES
from tests.unit.backend.operators.one_graph import FLOATS, as_pytorch, extremes, pairs

_aten = torch.ops.aten
UNARY: dict[str, Any] = {
    "add with alpha": lambda x: torch.add(x, 3, alpha=2),
    "add fractions": lambda x: torch.ops.aten.add.Scalar(x, 1, 3),
    "sub from a number": lambda x: 1.5 - x,
    "rsub with alpha": lambda x: torch.rsub(x, 2, alpha=3),
    "relu6": functional.relu6,
    "hardtanh": functional.hardtanh,
    "clamp": lambda x: x.clamp(1, 5),
    "clamp to crossed bounds": lambda x: x.clamp(5, 1),
    "clamp from below": lambda x: x.clamp(min=2),
    "clamp from above": lambda x: x.clamp(max=2),
    "clamp_min": lambda x: torch.clamp_min(x, 2),
    "clamp_max": lambda x: torch.clamp_max(x, 2),
    "clamp to tensors": lambda x: torch.clamp(x, torch.tensor(1), torch.tensor(5)),
    "clamp to fractions": lambda x: torch.clamp(x, torch.tensor(0.5), torch.tensor(2.5)),
    "clamp_min of a tensor": lambda x: torch.clamp_min(x, torch.tensor(2)),
    "threshold": lambda x: functional.threshold(x, 1, 7),
}
_PREDICATES = (
    "isinf",
    "isposinf",
    "isneginf",
    "isnan",
    "nan_to_num",
    "floor",
    "ceil",
    "round",
    "trunc",
    "angle",
    "deg2rad",
    "rad2deg",
    "signbit",
)
UNARY |= {name: getattr(torch, name) for name in (*_PREDICATES, "sign", "relu")}
_OF_TWO = ("atan2", "heaviside", "add", "sub", "mul", "maximum", "minimum", "fmax", "fmin")
BINARY: dict[str, Any] = {name: getattr(torch, name) for name in _OF_TWO} | {
    "clamp from below by a tensor": lambda x, y: torch.clamp(x, min=y),
    "clamp from above by a tensor": lambda x, y: torch.clamp(x, max=y),
    "clamp by tensors": lambda x, y: torch.clamp(x, y, y),
}
SPECIAL: dict[str, Any] = {name: getattr(torch, name) for name in ("log1p", "expm1", "log2", "log10", "logit", "erfc")} | {
    "special.expm1": torch.special.expm1,
    "sinc": lambda x: torch.sinc(x.clamp(-9, 9)),
    "logit with eps": lambda x: torch.logit(x, 0.1),
    "logsigmoid": functional.logsigmoid,
    "erfcx": torch.special.erfcx,
    "log_ndtr": torch.special.log_ndtr,
    "xlogy number first": lambda x: torch.xlogy(2.5, x),
    "xlogy number second": lambda x: torch.xlogy(x, 2.5),
    "xlogy of 0": lambda x: torch.xlogy(0.0, x),
}
SPECIAL_BINARY = {name: getattr(torch.special, name) for name in ("xlogy", "xlog1py")}
SPECIAL_BINARY |= {"logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2}
_PLAIN = ("elu", "selu", "celu", "leaky_relu", "hardsigmoid", "silu", "mish", "softplus")
ACTIVATIONS: dict[str, Any] = {name: getattr(functional, name) for name in _PLAIN} | {
    "elu with alpha": lambda x: functional.elu(x, 0.3),
    "elu with scales": lambda x: torch.ops.aten.elu(x, 1.5, 2.0, 0.5),
    "celu with alpha": lambda x: functional.celu(x, 0.3),
    "hardswish": lambda x: functional.hardswish(x.clamp(-1e4, 1e4)),
    "gelu": lambda x: functional.gelu(x.clamp(max=1e4)),
    "rrelu in evaluation": lambda x: functional.rrelu(x, training=False),
}
CHOICES: dict[str, Any] = {
    "where": lambda x, mask: torch.where(mask, x, x.flip(0)),
    "where broadcasts": lambda x, mask: torch.where(mask[:, None], x, x.flip(0)),
    "where of a number": lambda x, mask: torch.where(mask, x, 1),
    "masked_fill": lambda x, mask: x.masked_fill(mask, 1),
    "masked_fill by a tensor": lambda x, mask: x.masked_fill(mask, torch.tensor(1, dtype=x.dtype)),
    "masked_fill of a number": lambda x, mask: x[0].masked_fill(mask[0], 0),
}


SIGNS: dict[str, Any] = {
    "hypot": torch.hypot,
    "copysign": lambda x, y: torch.copysign(x, y.nan_to_num()),  # the sign of a NaN is not defined
    "copysign of a number": lambda x, _: torch.copysign(x, -2.0),
    "lerp from the near end": lambda x, y: torch.lerp(x, y, 0.1),
    "lerp from the far end": lambda x, y: torch.lerp(x, y, 0.9),
    "lerp away from both": lambda x, y: torch.lerp(x.clamp(-9, 9), y.clamp(-9, 9), -0.9),
}
OF_BOOLEANS: dict[str, Any] = {name: BINARY[name] for name in ("add", "fmax", "fmin", "maximum", "minimum")}
OF_BOOLEANS["isnan"] = lambda x, _: torch.isnan(x)


def of_pairs(unary: dict[str, Any], binary: dict[str, Any]) -> dict[str, Any]:
    return {name: lambda x, _, case=case: case(x) for name, case in unary.items()} | binary


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8], ids=str)
def test_exact_functions(dtype: torch.dtype) -> None:
    cases = {name: case for name, case in UNARY.items() if name != "hardtanh" or dtype is not torch.uint8}
    as_pytorch(of_pairs(cases, BINARY), *pairs(dtype), atol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_inexact_functions(dtype: torch.dtype) -> None:
    lacking = ("erfcx", "log_ndtr") if dtype is torch.float16 else ()  # in eager
    special = {name: case for name, case in SPECIAL.items() if name not in lacking}
    as_pytorch(of_pairs(special, SPECIAL_BINARY), *pairs(dtype), atol=torch.finfo(dtype).eps)
    as_pytorch(ACTIVATIONS, extremes(dtype), atol={torch.float32: 5e-7, torch.float64: 1e-14, torch.float16: 1e-3}[dtype])
    as_pytorch(SIGNS, *pairs(dtype), atol=torch.finfo(dtype).tiny * 4, stays=())


def test_booleans() -> None:
    as_pytorch(OF_BOOLEANS, *pairs(torch.bool), atol=0, stays=())


def test_gradients_of_activations() -> None:
    as_pytorch(ACTIVATIONS, torch.linspace(-4, 4, 33), grad=True)


_ENDS = ((0, 7), (7.9, 9.1), (15, 20), (85, 105))
NEAR_ENDS = torch.cat([torch.linspace(low, high, 500) * sign for low, high in _ENDS for sign in (1, -1)])
_OF_ROWS = (_aten._softmax.default, _aten._log_softmax.default)
BOUNDED: dict[str, tuple[Any, tuple[float, float]]] = {
    **{str(target): (target, bounds) for target, bounds in RANGES.items() if target not in _OF_ROWS},
    "elu with alpha": (lambda x: functional.elu(x, 0.3), (-0.3, torch.inf)),
    "celu with alpha": (lambda x: functional.celu(x, 0.3), (-0.3, torch.inf)),
    "selu": (functional.selu, (-1.75809932, torch.inf)),
    "softmax": (lambda x: x.reshape(-1, 8).softmax(-1), (0.0, 1.0)),
    "log_softmax": (lambda x: x.reshape(-1, 8).log_softmax(-1), (-torch.inf, 0.0)),
    "ends of a tanh": (lambda x: torch.atanh(x.tanh()), (-torch.inf, torch.inf)),
    "square beside a tanh": (lambda x: (1 - x.tanh() ** 2).sqrt(), (0.0, 1.0)),
    "logarithm beside an elu": (lambda x: (functional.elu(x) + 1).log(), (-torch.inf, torch.inf)),
}
"""Name -> a function, its least and its largest result."""


def test_results_are_within_the_range_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """An approximation that ends beyond it makes NaN of what is finite in PyTorch."""
    monkeypatch.setattr(planner, "if_slower", lambda *_, **__: None)
    lens = Lens()

    def all_of_them(x: torch.Tensor) -> dict[str, torch.Tensor]:
        results = {name: function(x) for name, (function, _) in BOUNDED.items()}
        return {name: result[0] if isinstance(result, tuple) else result for name, result in results.items()}

    with torch.no_grad():
        found, wanted = torch.compile(all_of_them, backend=lens)(NEAR_ENDS), all_of_them(NEAR_ENDS)
    beyond = {}
    for name, (_, bounds) in BOUNDED.items():
        low, high = torch.tensor(bounds)
        outside = [int(((result < low) | (result > high)).sum()) for result in (found[name], wanted[name])]
        if any(outside) or not torch.equal(found[name].isnan(), wanted[name].isnan()):
            beyond[name] = outside
    assert beyond == {}
    assert not lens.captured().fallbacks


def test_signs_of_zero_that_are_kept() -> None:
    cases = {"trunc": torch.trunc, "elu": functional.elu, "log1p": torch.log1p, "copysign": lambda x: torch.copysign(torch.zeros(4), x)}
    as_pytorch({name: lambda x, case=case: torch.signbit(case(x)) for name, case in cases.items()}, torch.tensor([-0.0, 0.0, -0.5, 0.5]))


def test_choices_in_types_that_the_where_of_onnx_runtime_lacks() -> None:
    dtypes = (torch.bool, torch.int16, torch.int8, torch.uint8, torch.int32, torch.int64, *FLOATS)
    cases: dict[str, Any] = {
        f"{name} {dtype}": lambda *given, case=case, at=at: case(given[at], torch.arange(len(given[at])) % 3 == 0)
        for at, dtype in enumerate(dtypes)
        for name, case in CHOICES.items()
    }
    as_pytorch(cases, *map(extremes, dtypes), atol=0, stays=())


def test_small_arguments_keep_their_digits() -> None:
    cases = {"log1p": torch.log1p, "expm1": torch.expm1, "erfc": lambda x: torch.erfc(x + 5)}
    as_pytorch(cases, torch.tensor([1e-4, -1e-4, 1e-8, -1e-8, 1e-20]), atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_logarithms_of_powers_are_whole(dtype: torch.dtype) -> None:
    twos, tens = 2.0 ** torch.arange(-120, 120, dtype=dtype), torch.tensor([10.0**k for k in range(11)], dtype=dtype)
    first, second = torch.compile(lambda x, y: (torch.log2(x), torch.log10(y)), backend="ortlens")(twos, tens)
    assert torch.equal(first, torch.arange(-120, 120, dtype=dtype))
    assert torch.equal(second, torch.arange(11, dtype=dtype))


_prims = torch.ops.prims
PRIMS: dict[str, Any] = {
    "collapse": lambda x: _prims.collapse(x, 0, 1),
    "collapse of the end": lambda x: _prims.collapse(x, 1, 2),
    "collapse of nothing": lambda x: _prims.collapse(x[:0], 0, 1),
    "rev": lambda x: _prims.rev(x, [0, 2]),
    "iota": lambda x: (
        _prims.iota(5, start=3, step=-2, dtype=torch.int64, device=x.device, requires_grad=False) + x.new_ones((), dtype=torch.int64)
    ),
    "iota of none": lambda x: _prims.iota(0, start=3, step=2, dtype=torch.int32, device=x.device, requires_grad=False) * 1,
    **{name: lambda x, name=name: getattr(_prims, name)(x, x.flip(0)) for name in ("maximum", "minimum")},
    "sign": _prims.sign,
    "trunc": _prims.trunc,
}
PRIMS_OF_FLOATS: dict[str, Any] = {
    **{name: lambda x, name=name: getattr(_prims, name)(x, x.flip(0)) for name in ("fmax", "fmin", "hypot")},
    "log1p": _prims.log1p,
    "expm1": _prims.expm1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_primitive_operators(dtype: torch.dtype) -> None:
    numbers = extremes(dtype)
    x = numbers[: len(numbers) // 6 * 6].reshape(2, 3, -1)
    as_pytorch(PRIMS | (PRIMS_OF_FLOATS if dtype.is_floating_point else {}), x, atol=1e-37, stays=())


def test_a_product_and_a_sum_of_optimisers() -> None:
    """Torch registers it with its compiler, after this file may have been read."""
    importlib.import_module("torch._inductor.inductor_prims")

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.prims.fma(x, y, z) + 0
        return made

    as_pytorch({"fma": function}, *(torch.randn(3, 4, dtype=torch.float64) for _ in range(3)), atol=0, stays=())


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
