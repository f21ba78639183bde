"""Activations, dropout, the larger and the smaller of two, what limits values, and choices between two tensors.

The attributes of ONNX operators are 32-bit floats. So the operators with attributes serve float32 and float16, and float64 gets the
function written out. Where ONNX Runtime's operator loses all digits of small results, no type uses it: its Sigmoid of float32 is 0 from -18
down, so that a logarithm is minus infinity, and its Elu and Selu subtract 1 from a power close to 1.

ONNX Runtime's Max and Min compare a part of the bits of two 64-bit integers: the larger of 0 and 2**31 + 1 is 0. Relu, Sign and Clip are
made of them. Here, 64-bit integers are compared with Greater and chosen with Where. Clip is avoided for floats with one bound only,
because it limits infinity to the largest finite number. Where takes no booleans and no integers of 16 bits: booleans are chosen by logic,
the others in 32 bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from ortlens.backend.basis import provenance
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op
from ortlens.backend.operators.facts import STAYS, Call, decomposes, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@torch_op(_aten.gelu.default)
def gelu(x: Any, approximate: str = "none") -> Any:
    """`aten.gelu`; CUDA has a kernel for float16, which computes the curve in float32."""
    in_one = basics.device_type.get() == "cuda" and int(x.dtype) == basics.FLOAT16 and approximate == "none"
    return (_gelu if in_one else basics.in_float32(_gelu))(x, approximate)


def _gelu(x: Any, approximate: str) -> Any:
    """Compute GELU, its products in the order that ONNX Runtime fuses into one operator."""
    if not basics.is_float(x):
        return basics.registered(_aten.gelu.default)(x, approximate)
    root, one, half = (ir.tensor(number, dtype=x.dtype) for number in (2**0.5, 1.0, 0.5))
    if approximate == "none":
        return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, root)), one)), half)
    three, cubed, outer = (ir.tensor(number, dtype=x.dtype) for number in (3.0, 0.044715, (2 / math.pi) ** 0.5))
    inner = op.Mul(op.Add(x, op.Mul(op.Pow(x, three), cubed)), outer)
    return op.Mul(op.Mul(x, half), op.Add(op.Tanh(inner), one))


def _is_double(x: Any) -> bool:
    return int(x.dtype) == basics.DOUBLE


@torch_op(_aten.elu.default)
@basics.in_float32
def elu(x: Any, alpha: Any = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """`scale * x` for positive `x`, else `scale * alpha * expm1(input_scale * x)`."""
    zero = basics.number(x, 0.0)
    below = op.Mul(op.Min(x, zero), basics.number(x, input_scale))
    curve = op.Mul(
        basics.own(_aten.expm1.default)(basics.typed(below, int(x.dtype), x)), basics.number(x, alpha if scale == 1 else alpha * scale)
    )
    line = x if scale == 1 else op.Mul(x, basics.number(x, scale))
    return op.Where(op.Less(x, zero), curve, line)


@torch_op(_aten.celu.default)
def celu(x: Any, alpha: Any = 1.0) -> Any:
    if basics.is_value(alpha):
        raise basics.NotConvertibleError("the factor alpha of celu is known at run time only")
    return elu(x, alpha, 1.0, 1 / alpha)


torch_op(_aten.selu.default)(lambda x: elu(x, _SELU_ALPHA, _SELU_SCALE, 1.0))


@torch_op(_aten.sigmoid.default)
@basics.in_float32
def sigmoid(x: Any) -> Any:
    """`aten.sigmoid`, as PyTorch writes it; the power overflows to infinity only where the result is below the smallest number.

    It takes twice the time of ONNX Runtime's operator. `silu` and `glu` keep that: they lose at most 4e-6.
    """
    return op.Reciprocal(op.Add(op.Exp(op.Neg(x)), basics.number(x, 1.0)))


@torch_op(_aten.tanh.default, torch.ops.prims.tanh.default)
def tanh(x: Any) -> Any:
    """`aten.tanh`, at most 1; without the limit where ONNX Runtime fuses GELU, see `rewrite_rules`."""
    made = basics.registered(_aten.tanh.default)(x)
    exceeds = int(x.dtype) == basics.FLOAT and basics.device_type.get() == "cpu"
    return op.Clip(made, basics.number(x, -1.0), basics.number(x, 1.0)) if exceeds else made


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
    curve = op.Div(op.Add(op.Max(scaled, basics.number(x, 0.0)), basics.own(_aten.log1p.default)(power)), beta)
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


def _extreme(compare: str, of_booleans: str, of_others: str) -> Callable[..., Any]:
    @basics.stays_wide
    def extreme(x: Any, y: Any) -> Any:
        y = basics.number(x, y)
        if int(x.dtype) == basics.BOOL:
            return getattr(op, of_booleans)(x, y)
        return op.Where(getattr(op, compare)(x, y), x, y) if int(x.dtype) == basics.INT64 else getattr(op, of_others)(x, y)

    return extreme


maximum, minimum = _extreme("Greater", "Or", "Max"), _extreme("Less", "And", "Min")
torch_op(_aten.maximum.default, torch.ops.prims.maximum.default, _aten.clamp_min.default, _aten.clamp_min.Tensor)(maximum)
torch_op(_aten.minimum.default, torch.ops.prims.minimum.default, _aten.clamp_max.default, _aten.clamp_max.Tensor)(minimum)


def _extreme_number(compare: str, of_whole: Callable[..., Any]) -> Callable[..., Any]:
    """Make a maximum or minimum that is NaN only where both are."""

    def extreme(x: Any, y: Any) -> Any:
        return op.Where(op.Or(getattr(op, compare)(x, y), op.IsNaN(y)), x, y) if basics.is_float(x) else of_whole(x, y)

    return extreme


torch_op(_aten.fmax.default, torch.ops.prims.fmax.default)(_extreme_number("Greater", maximum))
torch_op(_aten.fmin.default, torch.ops.prims.fmin.default)(_extreme_number("Less", minimum))


@torch_op(_aten.clamp.default, _aten.clamp.Tensor)
@basics.stays_wide
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """`aten.clamp`, with numbers or tensors as bounds; where they cross, the upper one holds."""
    if basics.is_float(x) and _is_number(min) and _is_number(max):
        return op.Clip(x, basics.number(x, min), basics.number(x, max))
    limited = x
    if min is not None:
        limited = basics.typed(maximum(limited, min), int(x.dtype), x)
    return limited if max is None else minimum(limited, max)


def _is_number(bound: Any) -> bool:
    """Tell whether a bound is known and a number: Clip ignores NaN, of which PyTorch makes every element NaN."""
    return bound is not None and not basics.is_value(bound) and not math.isnan(bound)


@torch_op(_aten.relu.default)
@basics.stays_wide
def relu(x: Any) -> Any:
    return op.Relu(x) if basics.is_float(x) else maximum(x, 0)


torch_op(_aten.hardtanh.default)(lambda x, min_val=-1, max_val=1: clamp(x, min_val, max_val))
torch_op(_aten.relu6.default)(lambda x: clamp(x, 0, 6))


@torch_op(_aten.hardtanh_backward.default)
@basics.with_exact_numbers
def hardtanh_backward(grad: Any, x: Any, min_val: Any, max_val: Any) -> Any:
    """`aten.hardtanh_backward`: 0 at both ends and outside, whatever comes in, and for NaN."""
    inside = op.And(op.Greater(x, basics.number(x, min_val)), op.Less(x, basics.number(x, max_val)))
    return op.Where(inside, grad, basics.number(grad, 0.0))


@torch_op(_aten.elu_backward.default)
@basics.in_float32
def elu_backward(grad: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Any) -> Any:
    """`aten.elu_backward`, of `elu`, `celu` and `selu`; NaN for NaN, which torch's decomposition takes for a positive number."""
    least = basics.number(x, alpha * scale)
    curve = op.Add(x, least) if is_result else op.Mul(op.Exp(op.Mul(x, basics.number(x, input_scale))), least)
    below = op.Mul(op.Mul(grad, basics.number(x, input_scale)), curve)
    return op.Where(op.Greater(x, basics.number(x, 0.0)), op.Mul(grad, basics.number(x, scale)), below)


@torch_op(_aten.hardswish_backward.default)
@basics.in_float32
def hardswish_backward(grad: Any, x: Any) -> Any:
    """`aten.hardswish_backward`; NaN for NaN, which torch's decomposition takes for a large number."""
    three, half = basics.number(x, 3.0), basics.number(x, 0.5)
    line = op.Mul(grad, op.Add(op.Div(x, three), half))
    above = op.Where(op.GreaterOrEqual(x, three), grad, line)
    return op.Where(op.LessOrEqual(x, op.Neg(three)), basics.number(x, 0.0), above)


@torch_op(_aten.sign.default, torch.ops.prims.sign.default)
def sign(x: Any) -> Any:
    """`aten.sign`; PyTorch returns 0 for NaN."""
    if int(x.dtype) == basics.BOOL:
        return op.Identity(x)
    if int(x.dtype) == basics.INT64:
        zero = basics.number(x, 0)
        return op.Sub(op.CastLike(op.Greater(x, zero), x), op.CastLike(op.Less(x, zero), x))
    found = op.Sign(x)
    return op.Where(op.IsNaN(x), basics.number(x, 0.0), found) if basics.is_float(x) else found


_UINT16, _INT16 = 4, 5  # as onnx.TensorProto numbers them


@torch_op(_aten.where.self)
def where(condition: Any, x: Any, y: Any) -> Any:
    return _chosen(op.Cast(condition, to=basics.BOOL), x, y, int(x.dtype))


@torch_op(_aten.masked_fill.Scalar, _aten.masked_fill.Tensor)
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """`aten.masked_fill` with a number or a tensor without dimensions."""
    return _chosen(op.Cast(mask, to=basics.BOOL), basics.number(x, value), x, int(x.dtype))


def _chosen(condition: Any, x: Any, y: Any, dtype: int) -> Any:
    if dtype == basics.BOOL:
        return op.Or(op.And(condition, x), op.And(op.Not(condition), y))
    if dtype in (_INT16, _UINT16):
        return op.Cast(op.Where(condition, op.Cast(x, to=basics.INT32), op.Cast(y, to=basics.INT32)), to=dtype)
    return op.Where(condition, x, y)


@decomposes(_aten.glu.default)
def _glu(tensor: torch.Tensor, dim: int = -1) -> Any:
    """Return, for a tensor without elements, the half that is the result: ONNX's Split cannot halve nothing."""
    return _aten.clone.default(tensor.narrow(dim, 0, tensor.shape[dim] // 2)) if facts.is_empty(tensor) else STAYS


@decomposes(_aten.native_dropout.default)
def _native_dropout(tensor: torch.Tensor, p: float, train: bool | None) -> Any:
    """Drop nothing outside training."""
    if train is not False:
        return STAYS
    del p
    return tensor.clone(), torch.ones_like(tensor, dtype=torch.bool)


@decomposes(_aten.rrelu_with_noise_functional.default)
def _rrelu(
    tensor: torch.Tensor, noise: torch.Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    """Replace `rrelu` in eval mode by a leaky ReLU with the mean of both slopes."""
    if training:
        return STAYS
    del generator
    return _aten.leaky_relu.default(tensor, (lower + upper) / 2), noise.clone()


# PyTorch refuses integers, which torch's decompositions take.
facts.as_torch(
    *(_aten.log_sigmoid_forward.default, _aten._softmax_backward_data.default, _aten._log_softmax_backward_data.default),
    unless=lambda _, tensor, *__: not tensor.is_floating_point(),
)
facts.as_torch(_aten.nan_to_num.default, unless=lambda _, tensor, *__, **___: tensor.is_complex())

# Operators of several passes over their numbers, which PyTorch makes in one.
_SHRINKING = (_aten.hardshrink.default, _aten.softshrink.default)
facts.keeps_whole(*_SHRINKING)
facts.leaves(*_SHRINKING, _aten.log_sigmoid_forward.default, _aten.nan_to_num.default, when=facts.is_large_on_cpu)
facts.knows_result(
    *(_aten.hardshrink_backward.default, _aten.softshrink_backward.default),
    made=lambda grad, value, _: grad + value,
    when=lambda tracing: tracing.with_gradient,
)


def _filled(call: Call) -> str | None:
    """Describe a fill with a tensor of a wider element type, whose number PyTorch converts with a check; None for others."""
    value, number = call.tensor(0), call.tensor(2)
    if value is None or number is None or number.dtype in (value.dtype, torch.bool) or value.dtype is torch.bool or value.is_complex():
        return None
    held = _constant_number(call.node.args[2])
    if held is not None:
        return facts.refuses(held, value.dtype)
    holds = torch.promote_types(number.dtype, value.dtype) is value.dtype and value.dtype is not torch.float16
    return None if holds else f"takes a {str(number.dtype).removeprefix('torch.')}, which PyTorch may refuse to convert"


def _constant_number(node: Any) -> int | float | None:
    """Find the number in a tensor without dimensions, if it is the same in every call."""
    while node.target is _aten.lift_fresh_copy.default:
        (node,) = node.args
    if node.target in (_aten.scalar_tensor.default, _aten.full.default):
        number = node.args[-1]
    else:
        tensor = provenance.attribute_of(node)
        number = tensor.item() if type(tensor) is torch.Tensor else None
    return number if isinstance(number, (int, float)) else None


facts.wrong(_aten.relu.default, reason=f"takes booleans{facts.REFUSED}", when=facts.is_boolean)
facts.wrong(_aten._prelu_kernel.default, _aten.leaky_relu.default, reason=f"takes whole numbers{facts.REFUSED}", when=facts.is_whole)
facts.wrong(
    *(_aten.clamp.default, _aten.clamp.Tensor, _aten.clamp_min.default, _aten.clamp_max.default),
    reason=f"takes booleans{facts.REFUSED}",
    when=facts.makes_booleans,
)
facts.wrong(_aten.masked_fill.Tensor, when=_filled)
