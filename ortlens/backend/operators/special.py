"""Logarithms, exponentials and what is made of them; functions of mathematical physics and Fourier transforms, which stay in PyTorch.

Written as they are read, `log(1 + x)` and `exp(x) - 1` lose all digits of a small `x`, and `log(exp(x) + exp(y))` overflows where the
result does not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op
from ortlens.backend.operators.facts import torch_op

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten


@torch_op(_aten.log1p.default, torch.ops.prims.log1p.default)
@basics.in_float32
def log1p(x: Any) -> Any:
    """`aten.log1p`: the rounding error of `1 + x` is divided out. Source: Goldberg 1991, theorem 4."""
    one = basics.number(x, 1.0)
    above = op.Add(x, one)
    rounded = op.Sub(above, one)
    # In this order, because ONNX Runtime's Where loses the sign of a zero in its second operand.
    small = op.Where(op.Greater(op.Abs(rounded), basics.number(x, 0.0)), op.Mul(op.Log(above), op.Div(x, rounded)), x)
    return op.Where(op.GreaterOrEqual(op.Abs(x), one), op.Log(above), small)


@torch_op(_aten.expm1.default, torch.ops.prims.expm1.default, _aten.special_expm1.default)
@basics.in_float32
def expm1(x: Any) -> Any:
    """`aten.expm1`, as `tanh(x / 2) * (exp(x) + 1)`, which cancels nothing; ONNX Runtime's tanh may be beyond -1."""
    product = op.Mul(op.Tanh(op.Mul(x, basics.number(x, 0.5))), op.Add(op.Exp(x), basics.number(x, 1.0)))
    return op.Max(basics.typed(product, int(x.dtype), x), basics.number(x, -1.0))


def _logarithm(base: float) -> Callable[..., Any]:
    """Make a logarithm that is whole at the powers of its base, where a quotient of logarithms may lie just below it."""

    @basics.in_float32
    def logarithm(x: Any) -> Any:
        quotient = op.Div(op.Log(x), basics.number(x, math.log(base)))
        whole = op.Round(quotient)
        return op.Where(op.Equal(op.Pow(basics.number(x, base), whole), x), whole, quotient)

    return logarithm


def _log_add_exp(base: float) -> Callable[..., Any]:
    @basics.in_float32
    def log_add_exp(x: Any, y: Any) -> Any:
        # Equal infinities have no difference.
        distance = op.Where(op.Equal(x, y), basics.number(x, 0.0), op.Abs(op.Sub(x, y)))
        power = op.Exp(op.Mul(distance, basics.number(x, -math.log(base))))
        more = log1p(basics.typed(power, int(x.dtype), x))
        return op.Add(op.Max(x, y), op.Div(more, basics.number(x, math.log(base))) if base != math.e else more)

    return log_add_exp


@torch_op(_aten.sinc.default, _aten.special_sinc.default)
@basics.in_float32
def sinc(x: Any) -> Any:
    zero = basics.number(x, 0.0)
    turned = op.Mul(x, basics.number(x, math.pi))
    return op.Where(op.Equal(x, zero), basics.number(x, 1.0), op.Div(op.Sin(turned), turned))


@torch_op(_aten.logit.default)
def logit(x: Any, eps: float | None = None) -> Any:
    """`aten.logit`; clamps as PyTorch does, keeping NaN, and rounds between the steps."""
    one = basics.number(x, 1.0)
    if eps is not None:
        low = basics.number(x, eps)
        high = basics.number(x, float(one.numpy() - low.numpy()))
        x = basics.typed(op.Where(op.Less(x, low), low, op.Where(op.Less(high, x), high, x)), int(x.dtype), x)
    rest = basics.rounded_step(op.Sub(one, x), x)
    return op.Log(basics.rounded_step(op.Div(x, rest), x))


@torch_op(_aten.log_sigmoid.default)
@basics.in_float32
def log_sigmoid(x: Any) -> Any:
    """`aten.log_sigmoid`: `min(x, 0) - log1p(exp(-|x|))`."""
    power = basics.typed(op.Exp(op.Neg(op.Abs(x))), int(x.dtype), x)
    return op.Sub(op.Min(x, basics.number(x, 0.0)), log1p(power))


@torch_op(_aten.xlogy.Tensor, _aten.xlogy.Scalar_Self, _aten.xlogy.Scalar_Other)
def xlogy(x: Any, y: Any) -> Any:
    """`aten.xlogy`; 0 where `x` is 0, except that NaN in `y` remains."""
    return _xlogy(*basics.alike(x, y))


@torch_op(_aten.special_xlog1py.default, _aten.special_xlog1py.self_scalar, _aten.special_xlog1py.other_scalar)
def _xlog1py(x: Any, y: Any) -> Any:
    return _xlogy(*basics.alike(x, y), log1p)


def _xlogy(x: Any, y: Any, like: Any, log: Callable[..., Any] | None = None) -> Any:
    zero = basics.number(like, 0.0)
    logarithm = basics.rounded_step((log or op.Log)(y), like)
    return op.Where(op.And(op.Equal(x, zero), op.Not(op.IsNaN(y))), zero, op.Mul(x, logarithm))


torch_op(_aten.log2.default)(_logarithm(2.0))
torch_op(_aten.log10.default)(_logarithm(10.0))
torch_op(_aten.logaddexp.default)(_log_add_exp(math.e))
torch_op(_aten.logaddexp2.default)(_log_add_exp(2.0))

facts.as_torch(
    *(_aten.special_bessel_j0.default, _aten.special_bessel_j1.default),
    unless=lambda _, tensor: tensor.dtype in (torch.float16, torch.bfloat16),
)
facts.wrong(_aten.erfc.default, _aten.special_erfc.default, reason="is 1 - erf(x), which is 0 from 4 on")
facts.wrong(_aten.special_erfcx.default, reason="is exp(x * x) * (1 - erf(x)), which is 0 from 4 on")
# See docs/numerics.md.
facts.slow(
    *(_aten._fft_r2c.default, _aten._fft_c2c.default, _aten._fft_c2r.default),
    reason="ONNX Runtime's DFT takes 7 to 22 times as long and is less exact",
    deployed=True,
)
