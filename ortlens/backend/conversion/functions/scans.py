"""Running sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten


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


FUNCTIONS: dict[Any, Callable[..., Any]] = {_aten.cumsum.default: cumsum}
"""Op overload -> function."""
