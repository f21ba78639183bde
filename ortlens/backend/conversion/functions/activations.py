"""Activations.

The attributes of ONNX operators are 32-bit floats. So the operators with attributes serve float32 and float16, and float64 gets the
function written out. Where ONNX Runtime's operator loses all digits of small results, no type uses it: its Sigmoid of float32 is 0 from -18
down, so that a logarithm is minus infinity, and its Elu and Selu subtract 1 from a power close to 1.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.basics import op, torch_op
from ortlens.backend.conversion.functions.special import expm1, log1p

_aten = torch.ops.aten
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@torch_op(_aten.gelu.default)
@basics.in_float32
def gelu(x: Any, approximate: str = "none") -> Any:
    """`aten.gelu`, its products in the order that ONNX Runtime fuses into one operator."""
    if approximate != "none" or not basics.is_float(x):
        return basics.registered(_aten.gelu.default)(x, approximate)
    root, one, half = (ir.tensor(number, dtype=x.dtype) for number in (2**0.5, 1.0, 0.5))
    return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, root)), one)), half)


def _is_double(x: Any) -> bool:
    return int(x.dtype) == basics.DOUBLE


def _exponential_unit(x: Any, alpha: Any, scale: float, input_scale: float) -> Any:
    """`scale * x` for positive `x`, else `scale * alpha * expm1(input_scale * x)`."""
    zero = basics.number(x, 0.0)
    below = op.Mul(op.Min(x, zero), basics.number(x, input_scale))
    curve = op.Mul(expm1(basics.typed(below, int(x.dtype), x)), basics.number(x, alpha if scale == 1 else alpha * scale))
    line = x if scale == 1 else op.Mul(x, basics.number(x, scale))
    return op.Where(op.Greater(x, zero), line, curve)


@torch_op(_aten.elu.default)
def elu(x: Any, alpha: Any = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    return basics.in_float32(_exponential_unit)(x, alpha, scale, input_scale)


@torch_op(_aten.celu.default)
def celu(x: Any, alpha: Any = 1.0) -> Any:
    if basics.is_value(alpha):
        raise basics.NotConvertibleError("the factor alpha of celu is known at run time only")
    return basics.in_float32(_exponential_unit)(x, alpha, 1.0, 1 / alpha)


@torch_op(_aten.selu.default)
def selu(x: Any) -> Any:
    return basics.in_float32(_exponential_unit)(x, _SELU_ALPHA, _SELU_SCALE, 1.0)


@torch_op(_aten.sigmoid.default)
@basics.in_float32
def sigmoid(x: Any) -> Any:
    """`aten.sigmoid`, as PyTorch writes it; the power overflows to infinity only where the result is below the smallest number.

    It takes twice the time of ONNX Runtime's operator. `silu` and `glu` keep that: they lose at most 4e-6.
    """
    return op.Reciprocal(op.Add(op.Exp(op.Neg(x)), basics.number(x, 1.0)))


@torch_op(_aten.leaky_relu.default)
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    if not _is_double(x) and not basics.is_value(negative_slope):
        return basics.registered(_aten.leaky_relu.default)(x, negative_slope)
    return op.Where(op.Greater(x, basics.number(x, 0.0)), x, op.Mul(x, basics.number(x, negative_slope)))


@torch_op(_aten.softplus.default)
@basics.with_exact_numbers
def softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    """`aten.softplus`; `x` itself where `beta * x` is above the threshold."""
    if not _is_double(x) and not basics.is_value(beta) and not basics.is_value(threshold):
        return basics.registered(_aten.softplus.default)(x, beta, threshold)
    return _softplus(x, beta, threshold)


def _softplus(x: Any, beta: Any, threshold: Any) -> Any:
    dtype = int(x.dtype)
    beta = basics.number(x, beta)
    scaled = basics.typed(op.Mul(x, beta), dtype, x)
    power = basics.typed(op.Exp(op.Neg(op.Abs(scaled))), dtype, x)
    curve = op.Div(op.Add(op.Max(scaled, basics.number(x, 0.0)), log1p(power)), beta)
    return op.Where(op.Greater(scaled, basics.number(x, threshold)), x, curve)


@torch_op(_aten.threshold.default)
@basics.with_exact_numbers
def threshold(x: Any, threshold: Any, value: Any) -> Any:
    """`aten.threshold`; integers are not converted to floats."""
    return op.Where(op.LessOrEqual(x, basics.number(x, threshold)), basics.number(x, value), x)


@torch_op(_aten.hardsigmoid.default)
def hardsigmoid(x: Any) -> Any:
    return _six_steps(x) if _is_double(x) else op.HardSigmoid(x, alpha=1 / 6, beta=1 / 2)


@torch_op(_aten.hardswish.default)
@basics.in_float32
def hardswish(x: Any) -> Any:
    return op.Mul(x, _six_steps(x)) if _is_double(x) else basics.registered(_aten.hardswish.default)(x)


def _six_steps(x: Any) -> Any:
    steps = basics.typed(op.Add(x, basics.number(x, 3.0)), int(x.dtype), x)  # Max and Min take a number beside typed values only
    raised = basics.typed(op.Max(steps, basics.number(x, 0.0)), int(x.dtype), x)
    return op.Div(op.Min(raised, basics.number(x, 6.0)), basics.number(x, 6.0))
