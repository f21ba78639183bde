"""Tensors that are made of numbers: ranges of fractions, and windows of signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion import dtypes
from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten


def arange(start: Any, end: Any, step: Any = 1, dtype: Any = None, **more: Any) -> Any:
    """`aten.arange`; with numbers that are no integers, ONNX Runtime's Range rounds their count and its steps otherwise."""
    numbers, given = (start, end, step), dtype not in (None, -1)
    wanted = int(dtype) if given else dtypes.element_types()[torch.get_default_dtype()].onnx
    if (
        any(basics.is_value(number) for number in numbers)
        or all(isinstance(number, int) for number in numbers)
        or wanted not in basics.FLOATS
    ):
        return basics.registered(_aten.arange.start_step)(*numbers, **({"dtype": dtype} if given else {}), **more)
    return basics.opset().Cast(_constant(torch.arange(*numbers, dtype=torch.float64)), to=wanted)


def _window_of(make: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A window as PyTorch makes it: ONNX has other factors for a Hamming window, and no ones for a window of length 1."""

    def window(window_length: Any, dtype: Any = None, **_: Any) -> Any:
        if not isinstance(window_length, int):
            raise NotImplementedError(f"the length of a {make.__name__} is known at run time only")
        wanted = dtypes.element_types()[torch.get_default_dtype()].onnx if dtype in (None, -1) else int(dtype)
        return basics.opset().Cast(_constant(make(window_length, dtype=torch.float64)), to=wanted)

    return window


def _constant(values: torch.Tensor) -> Any:
    import onnx_ir as ir

    return basics.opset().Constant(value=ir.tensor(values.numpy()))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.arange.start_step: arange,
    _aten.blackman_window.default: _window_of(torch.blackman_window),
    _aten.hamming_window.default: _window_of(torch.hamming_window),
    _aten.hann_window.default: _window_of(torch.hann_window),
}
"""Op overload -> function."""
