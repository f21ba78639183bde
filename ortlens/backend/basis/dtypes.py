"""The table of element types: torch dtype, ONNX number and the short name used in signatures."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class ElementType(NamedTuple):
    """An element type in ONNX and in signatures."""

    onnx: int  # number in `onnx.TensorProto.DataType`
    short: str  # name in signatures, such as `f32`


@functools.cache
def element_types() -> dict[torch.dtype, ElementType]:
    """Map the dtypes that PyTorch and ONNX Runtime store alike to the numbers of `TensorProto.DataType` and short names."""
    import torch

    return {
        torch.float32: ElementType(1, "f32"),
        torch.uint8: ElementType(2, "u8"),
        torch.int8: ElementType(3, "i8"),
        torch.uint16: ElementType(4, "u16"),
        torch.int16: ElementType(5, "i16"),
        torch.int32: ElementType(6, "i32"),
        torch.int64: ElementType(7, "i64"),
        torch.bool: ElementType(9, "bool"),
        torch.float16: ElementType(10, "f16"),
        torch.float64: ElementType(11, "f64"),
        torch.uint32: ElementType(12, "u32"),
        torch.uint64: ElementType(13, "u64"),
        torch.bfloat16: ElementType(16, "bf16"),
    }


def fits(number: float, dtype: torch.dtype) -> bool:
    """Tell whether an element type holds a number, so that PyTorch converts it; floats hold infinity and NaN."""
    import torch

    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return limits.min <= number <= limits.max or (dtype.is_floating_point and not math.isfinite(number))


def constant(value: float, onnx: int) -> Any:
    """Make a constant without dimensions; infinity for what is beyond the range of a float."""
    import numpy as np
    import onnx_ir as ir

    with np.errstate(over="ignore"):
        return ir.tensor(value, dtype=ir.DataType(onnx))


def nearest(number: float, onnx: int) -> float:
    """Round a number to a floating-point type, given by its ONNX number."""
    return float(constant(float(number), onnx).numpy())
