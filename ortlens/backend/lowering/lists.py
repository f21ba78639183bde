"""Operators of lists of tensors, `_foreach_*`, as one operator per tensor: optimisers and the clipping of gradients use them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_OF_ONE = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log", "log10"),
    *("log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_OF_TWO = ("add", "sub", "mul", "div", "pow", "lerp")
_BOUNDS = {"maximum": "clamp_min", "minimum": "clamp_max", "clamp_min": "clamp_min", "clamp_max": "clamp_max"}
_PER_TENSOR = ("List", "Scalar", "ScalarList", "Tensor", "ScalarAndTensor")


@functools.cache
def per_tensor() -> dict[Any, Callable[..., Any]]:
    """Make decompositions of the operators of lists; each returns a list."""
    functions: dict[str, Callable[..., Any]] = {
        **{name: getattr(torch, name) for name in (*_OF_ONE, *_OF_TWO)},
        **{name: getattr(torch, bound) for name, bound in _BOUNDS.items()},
        "addcmul": functools.partial(_scaled, torch.addcmul),
        "addcdiv": functools.partial(_scaled, torch.addcdiv),
        "norm": torch.linalg.vector_norm,
        "zero": torch.zeros_like,
        "copy": _aten.copy.default,
    }
    found: dict[Any, Callable[..., Any]] = {}
    for name, function in functions.items():
        packet = getattr(_aten, f"_foreach_{name}", None)
        for overload in packet.overloads() if packet is not None else ():
            of_values = name in {"addcmul", "addcdiv"} and overload == "Tensor"  # its numbers lie in one tensor
            if overload in ("default", *_PER_TENSOR) and not of_values:
                found[getattr(packet, overload)] = functools.partial(_each, function)
    return found


def _each(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Call a function once per item of its lists; all other arguments are the same for all."""
    count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    return [function(*(arg[place] if isinstance(arg, (list, tuple)) else arg for arg in args), **kwargs) for place in range(count)]


def _scaled(function: Callable[..., Any], *args: Any) -> Any:
    *tensors, value = args if len(args) == 4 else (*args, 1)  # noqa: PLR2004 - three tensors and a factor
    return function(*tensors, value=value)
