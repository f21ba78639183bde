"""Tensors that are made of numbers: ranges of fractions, and windows of signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from ortlens.backend.conversion import dtypes
from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.basics import op, torch_op
from ortlens.backend.conversion.functions.shapes import size_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_MANY = 1 << 16  # longer ranges are not put into the model as constants


@torch_op(_aten.arange.start, _aten.arange.start_step)
def arange(start: Any, end: Any, step: Any = 1, dtype: Any = None, **more: Any) -> Any:
    """`aten.arange`; of floats, ONNX Runtime's Range rounds their count otherwise, and adds the step again and again."""
    numbers = tuple(int(number) if isinstance(number, bool) else number for number in (start, end, step))  # PyTorch counts with bools
    given = dtype not in (None, -1)
    wanted = int(dtype) if given else basics.FLOAT
    whole = all(not basics.is_float(number) if basics.is_value(number) else isinstance(number, int) for number in numbers)
    if whole:
        return basics.registered(_aten.arange.start_step)(*numbers, **({"dtype": dtype} if given else {}), **more)
    known = not any(basics.is_value(number) for number in numbers)
    if wanted not in basics.FLOATS:
        if not known:
            raise basics.NotConvertibleError("a range of whole numbers between fractions is known at run time only")
        return _constant(torch.arange(*numbers, dtype=_torch_dtypes()[wanted]))
    if not known:
        return op.Cast(_multiples(*(_double(number) for number in numbers)), to=wanted)
    return op.Cast(_constant(torch.arange(*numbers, dtype=torch.float64)), to=wanted)


def _torch_dtypes() -> dict[int, torch.dtype]:
    return {types.onnx: dtype for dtype, types in dtypes.element_types().items()}


def _double(number: Any) -> Any:
    return op.Cast(number, to=basics.DOUBLE) if basics.is_value(number) else _constant(torch.tensor(number, dtype=torch.float64))


def _multiples(start: Any, end: Any, step: Any) -> Any:
    """Compute `start + i * step` in float64, for as many `i` as fit."""
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    count = op.Cast(op.Ceil(op.Div(op.Sub(end, start), step)), to=basics.INT64)
    return op.Add(start, op.Mul(op.Cast(op.Range(zero, count, one), to=basics.DOUBLE), step))


def _window_of(make: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Make a window as PyTorch does: ONNX has other factors for a Hamming window, and no ones for a window of length 1."""

    def window(window_length: Any, dtype: Any = None, **_: Any) -> Any:
        if not isinstance(window_length, int):
            raise basics.NotConvertibleError(f"the length of a {make.__name__} is known at run time only")
        wanted = basics.FLOAT if dtype in (None, -1) else int(dtype)
        return op.Cast(_constant(make(window_length, dtype=torch.float64)), to=wanted)

    return window


@torch_op(_aten.full.default)
def full(size: Sequence[Any], fill_value: Any, dtype: Any = None, **_: Any) -> Any:
    """`aten.full`; the registry's function rounds the number to float32."""
    kind = {bool: basics.BOOL, int: basics.INT64}.get(type(fill_value), basics.FLOAT)
    if dtype in (None, -1) and basics.is_value(fill_value):
        kind = basics.INT64  # a symbolic integer; symbolic floats stay in PyTorch
    wanted = kind if dtype in (None, -1) else int(dtype)
    return op.Expand(_number(fill_value, ir.DataType(wanted)), size_vector(size))


@torch_op(_aten.fill.Scalar, _aten.full_like.default)
def full_like(self: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Any:
    """`aten.full_like` and `aten.fill` with a number."""
    return op.Expand(_number(fill_value, _type_like(self, dtype)), op.Shape(self))


@torch_op(_aten.new_full.default)
def new_full(self: Any, size: Sequence[Any], fill_value: Any, dtype: Any = None, **_: Any) -> Any:
    return op.Expand(_number(fill_value, _type_like(self, dtype)), size_vector(size))


def _type_like(tensor: Any, dtype: Any) -> Any:
    return tensor.dtype if dtype in (None, -1) else type(tensor.dtype)(int(dtype))


def _number(value: Any, dtype: Any) -> Any:
    """Make a number in an element type, without a detour through float32."""
    if basics.is_value(value):
        return op.Cast(value, to=int(dtype))
    exact = bool(value) if int(dtype) == basics.BOOL else value if int(dtype) in basics.FLOATS else int(value)
    return op.Constant(value=ir.tensor(exact, dtype=dtype))


@torch_op(_aten.linspace.default)
def linspace(start: Any, end: Any, steps: Any, dtype: Any = None, **more: Any) -> Any:
    """`aten.linspace`; between known numbers a constant, which PyTorch computes."""
    given = dtype not in (None, -1)
    wanted = int(dtype) if given else basics.FLOAT
    if any(basics.is_value(number) for number in (start, end, steps)) or steps > _MANY:
        return basics.registered(_aten.linspace.default)(start, end, steps, **({"dtype": dtype} if given else {}), **more)
    return _constant(torch.linspace(start, end, steps, dtype=_torch_dtypes()[wanted]))


def _constant(values: torch.Tensor) -> Any:
    return op.Constant(value=ir.tensor(values.numpy()))


torch_op(_aten.arange.default)(lambda end, **more: arange(0, end, **more))
torch_op(_aten.blackman_window.default)(_window_of(torch.blackman_window))
torch_op(_aten.hamming_window.default)(_window_of(torch.hamming_window))
torch_op(_aten.hann_window.default)(_window_of(torch.hann_window))


@torch_op(torch.ops.prims.iota.default)
def iota(length: Any, *, start: Any, step: Any, dtype: int, **_: Any) -> Any:
    first, gap, many = (op.Squeeze(size_vector([number])) for number in (start, step, length))
    return op.Cast(op.Range(first, op.Add(first, op.Mul(gap, many)), gap), to=int(dtype))
