"""Normalisations of nothing, for which ONNX Runtime's operators raise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten


def native_layer_norm(x: Any, normalized_shape: Sequence[Any], weight: Any, bias: Any, eps: float) -> Any:
    """`aten.native_layer_norm`; the mean of nothing is 0, its reciprocal deviation NaN."""
    if 0 not in list(normalized_shape):
        return basics.registered(_aten.native_layer_norm.default)(x, normalized_shape, weight, bias, eps)
    op = basics.opset()
    lead = len(x.shape) - len(normalized_shape)
    sizes = op.Concat(op.Shape(x, start=0, end=lead), op.Constant(value_ints=[1] * len(normalized_shape)), axis=0)
    return op.Identity(x), *(op.Expand(op.CastLike(op.Constant(value_float=number), x), sizes) for number in (0.0, math.nan))


def layer_norm(x: Any, normalized_shape: Sequence[Any], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    """`aten.layer_norm`, as exported programs contain it."""
    if 0 not in list(normalized_shape):
        return basics.registered(_aten.layer_norm.default)(x, normalized_shape, weight, bias, eps)
    return basics.opset().Identity(x)


FUNCTIONS: dict[Any, Callable[..., Any]] = {_aten.layer_norm.default: layer_norm, _aten.native_layer_norm.default: native_layer_norm}
"""Op overload -> function."""
