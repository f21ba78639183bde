"""Activations.

The attributes of ONNX operators are 32-bit floats. So the operators with attributes serve float32 and float16, and float64 gets the
function written out. Where ONNX Runtime's operator loses all digits of small results, no type uses it: its Sigmoid of float32 is 0 from -18
down, so that a logarithm is minus infinity, and its Elu and Selu subtract 1 from a power close to 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.special import expm1, log1p

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@basics.in_float32
def gelu(x: Any, approximate: str = "none") -> Any:
    """`aten.gelu`, its products in the order that ONNX Runtime fuses into one operator."""
    import onnx_ir as ir

    if approximate != "none" or not basics.is_float(x):
        return basics.registered(_aten.gelu.default)(x, approximate)
    op = basics.opset()
    root, one, half = (ir.tensor(number, dtype=x.dtype) for number in (2**0.5, 1.0, 0.5))
    return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, root)), one)), half)


def _is_double(x: Any) -> bool:
    return int(x.dtype) == basics.DOUBLE


def _exponential_unit(x: Any, alpha: Any, scale: float, input_scale: float) -> Any:
    """`scale * x` for positive `x`, else `scale * alpha * expm1(input_scale * x)`."""
    op, zero = basics.opset(), basics.number(x, 0.0)
    below = op.Mul(op.Min(x, zero), basics.number(x, input_scale))
    curve = op.Mul(expm1(basics.typed(below, int(x.dtype), x)), basics.number(x, alpha if scale == 1 else alpha * scale))
    line = x if scale == 1 else op.Mul(x, basics.number(x, scale))
    return op.Where(op.Greater(x, zero), line, curve)


def elu(x: Any, alpha: Any = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """`aten.elu`."""
    return basics.in_float32(_exponential_unit)(x, alpha, scale, input_scale)


def celu(x: Any, alpha: Any = 1.0) -> Any:
    """`aten.celu`."""
    if basics.is_value(alpha):
        raise basics.NotConvertibleError("the factor alpha of celu is known at run time only")
    return basics.in_float32(_exponential_unit)(x, alpha, 1.0, 1 / alpha)


def selu(x: Any) -> Any:
    """`aten.selu`."""
    return basics.in_float32(_exponential_unit)(x, _SELU_ALPHA, _SELU_SCALE, 1.0)


@basics.in_float32
def sigmoid(x: Any) -> Any:
    """`aten.sigmoid`, as PyTorch writes it; the power overflows to infinity only where the result is below the smallest number.

    It takes twice the time of ONNX Runtime's operator. `silu` and `glu` keep that: they lose at most 4e-6.
    """
    op = basics.opset()
    return op.Reciprocal(op.Add(op.Exp(op.Neg(x)), basics.number(x, 1.0)))


def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """`aten.leaky_relu`."""
    if not _is_double(x) and not basics.is_value(negative_slope):
        return basics.registered(_aten.leaky_relu.default)(x, negative_slope)
    op = basics.opset()
    return op.Where(op.Greater(x, basics.number(x, 0.0)), x, op.Mul(x, basics.number(x, negative_slope)))


@basics.with_exact_numbers
def softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    """`aten.softplus`; `x` itself where `beta * x` is above the threshold."""
    if not _is_double(x) and not basics.is_value(beta) and not basics.is_value(threshold):
        return basics.registered(_aten.softplus.default)(x, beta, threshold)
    return _softplus(x, beta, threshold)


def _softplus(x: Any, beta: Any, threshold: Any) -> Any:
    op, dtype = basics.opset(), int(x.dtype)
    beta = basics.number(x, beta)
    scaled = basics.typed(op.Mul(x, beta), dtype, x)
    power = basics.typed(op.Exp(op.Neg(op.Abs(scaled))), dtype, x)
    curve = op.Div(op.Add(op.Max(scaled, basics.number(x, 0.0)), log1p(power)), beta)
    return op.Where(op.Greater(scaled, basics.number(x, threshold)), x, curve)


@basics.with_exact_numbers
def threshold(x: Any, threshold: Any, value: Any) -> Any:
    """`aten.threshold`; integers are not converted to floats."""
    op = basics.opset()
    return op.Where(op.LessOrEqual(x, basics.number(x, threshold)), basics.number(x, value), x)


def hardsigmoid(x: Any) -> Any:
    """`aten.hardsigmoid`."""
    op = basics.opset()
    return _six_steps(x) if _is_double(x) else op.HardSigmoid(x, alpha=1 / 6, beta=1 / 2)


@basics.in_float32
def hardswish(x: Any) -> Any:
    """`aten.hardswish`."""
    return basics.opset().Mul(x, _six_steps(x)) if _is_double(x) else basics.registered(_aten.hardswish.default)(x)


def _six_steps(x: Any) -> Any:
    op = basics.opset()
    steps = basics.typed(op.Add(x, basics.number(x, 3.0)), int(x.dtype), x)  # Max and Min take a number beside typed values only
    raised = basics.typed(op.Max(steps, basics.number(x, 0.0)), int(x.dtype), x)
    return op.Div(op.Min(raised, basics.number(x, 6.0)), basics.number(x, 6.0))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.gelu.default: gelu,
    _aten.elu.default: elu,
    _aten.celu.default: celu,
    _aten.selu.default: selu,
    _aten.sigmoid.default: sigmoid,
    _aten.leaky_relu.default: leaky_relu,
    _aten.softplus.default: softplus,
    _aten.threshold.default: threshold,
    _aten.hardsigmoid.default: hardsigmoid,
    _aten.hardswish.default: hardswish,
}
"""Op overload -> function."""
