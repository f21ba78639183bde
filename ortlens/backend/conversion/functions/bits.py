"""Bits of integers, and logic of booleans, with a number that is known at run time only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten


def _tensor_and_number(with_number: Any, with_tensors: Any) -> Callable[..., Any]:
    """Choose the registry's function, or that of two tensors where the number is computed by the model."""

    def function(x: Any, y: Any) -> Any:
        return basics.registered(with_tensors)(x, _alike(y, x)) if basics.is_value(y) else basics.registered(with_number)(x, y)

    return function


def _number_and_tensor(with_number: Any, with_tensors: Any) -> Callable[..., Any]:
    def function(x: Any, y: Any) -> Any:
        return basics.registered(with_tensors)(_alike(x, y), y) if basics.is_value(x) else basics.registered(with_number)(x, y)

    return function


def _alike(number: Any, tensor: Any) -> Any:
    made = basics.opset().CastLike(number, tensor)
    made.dtype = tensor.dtype
    return made


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    first: _tensor_and_number(first, second)
    for first, second in (
        (_aten.bitwise_and.Scalar, _aten.bitwise_and.Tensor),
        (_aten.bitwise_or.Scalar, _aten.bitwise_or.Tensor),
        (_aten.bitwise_xor.Scalar, _aten.bitwise_xor.Tensor),
        (_aten.bitwise_left_shift.Tensor_Scalar, _aten.bitwise_left_shift.Tensor),
        (_aten.bitwise_right_shift.Tensor_Scalar, _aten.bitwise_right_shift.Tensor),
        (_aten.__lshift__.Scalar, _aten.bitwise_left_shift.Tensor),
        (_aten.__rshift__.Scalar, _aten.bitwise_right_shift.Tensor),
    )
} | {
    first: _number_and_tensor(first, second)
    for first, second in (
        (_aten.bitwise_left_shift.Scalar_Tensor, _aten.bitwise_left_shift.Tensor),
        (_aten.bitwise_right_shift.Scalar_Tensor, _aten.bitwise_right_shift.Tensor),
    )
}
"""Op overload -> function."""
