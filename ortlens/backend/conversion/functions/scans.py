"""Running sums and products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
MOST_PRODUCTS = 32
_PRODUCT_TYPES = {basics.FLOAT: basics.DOUBLE, basics.FLOAT16: basics.FLOAT, basics.BFLOAT16: basics.FLOAT}
"""Element type -> the type in which PyTorch multiplies."""


def cumsum(x: Any, dim: int, dtype: int = -1) -> Any:
    """`aten.cumsum`; 16-bit floats are added in float32, as PyTorch does."""
    op = basics.opset()
    wanted = int(x.dtype) if dtype == -1 else dtype
    added = op.Cast(x, to=wanted) if wanted != int(x.dtype) else x
    if not len(x.shape):
        return op.Identity(added)
    axis = op.Constant(value_int=dim)
    if wanted in (basics.FLOAT16, basics.BFLOAT16):
        return op.Cast(op.CumSum(op.Cast(added, to=basics.FLOAT), axis), to=wanted)
    return op.CumSum(added, axis)


def cumprod(x: Any, dim: int, dtype: int = -1) -> Any:
    """`aten.cumprod` of few elements: one product after the other, because products of parts may overflow where these do not.

    PyTorch multiplies float32 in float64, and 16-bit floats in float32.
    """
    op, rank = basics.opset(), len(x.shape)
    wanted = dtype if dtype != -1 else int(x.dtype) if basics.is_float(x) else basics.INT64
    whole = op.Cast(x, to=wanted)
    if not rank or 0 in list(x.shape):
        return whole
    size = x.shape[dim]
    if not isinstance(size, int) or size > MOST_PRODUCTS:
        raise basics.NotConvertibleError(
            f"multiplies more than {MOST_PRODUCTS} elements, or a number of them that is known at run time only"
        )
    wide = _PRODUCT_TYPES.get(wanted)
    factors = op.Cast(whole, to=wide) if wide is not None else whole
    axis = op.Constant(value_ints=[dim % rank])
    product, products = None, []
    for place in range(size):
        factor = op.Slice(factors, op.Constant(value_ints=[place]), op.Constant(value_ints=[place + 1]), axis)
        product = factor if product is None else op.Mul(product, factor)
        products.append(product)
    made = op.Concat(*products, axis=dim)
    return op.Cast(made, to=wanted) if wide is not None else made


FUNCTIONS: dict[Any, Callable[..., Any]] = {_aten.cumprod.default: cumprod, _aten.cumsum.default: cumsum}
"""Op overload -> function."""
