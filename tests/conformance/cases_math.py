"""Cases of numbers: arithmetic and its signs, rounding, casts, element types, reductions, products, indexing."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from tests.conformance.operator_case import OpCase, case, r, whole

SPECIAL = torch.tensor([0.5, float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1.0, -1.5])
HALVES = torch.tensor([-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 1e10])
SIGNED = torch.tensor([-7, -6, -1, 0, 1, 6, 7])

ELEMENTWISE: dict[str, OpCase] = {
    "add_broadcast": case(lambda x, y: x + y, r(4, 1), r(6), then=(r(5, 1), r(3))),
    "add_alpha": case(lambda x, y: torch.add(x, y, alpha=2.5) - torch.sub(x, y, alpha=3), r(4), r(4), then=(r(6), r(6))),
    "reverse_subtraction": case(lambda x: 1 - x, r(4), then=(r(6),)),
    "addcmul_addcdiv": case(
        lambda x, y: (torch.addcmul(x, x, y, value=0.5), torch.addcdiv(x, x, y.abs() + 1, value=2)), r(4), r(4), then=(r(6), r(6))
    ),
    "power_scalar": case(lambda x: (x**2, x**3, x.abs() ** 0.5, x**-1, x**0), r(4), then=(r(6),)),
    "power_of_scalar": case(lambda x: 2**x, r(4), then=(r(6),)),
    "power_tensors": case(lambda x, y: x.abs() ** y, r(4), r(4) + 1, then=(r(6), r(6))),
    "power_integers": case(lambda x: (x**2, x**3), SIGNED),
    "power_mixed": case(
        lambda x, y: (x**y, 2**x),
        whole(1, 5, 4),
        r(4),
        stays={"aten.pow.Scalar": "no_converter"},
    ),
    "float_power": case(lambda x: torch.float_power(x, 2), r(4), then=(r(6),)),
    "exponentials": case(lambda x: (x.exp(), x.expm1(), x.exp2(), x.abs().log(), x.abs().log1p(), x.abs().log2(), x.abs().log10()), r(4)),
    "roots": case(lambda x: (x.abs().sqrt(), x.abs().rsqrt(), x.reciprocal()), r(4), then=(r(6),)),
    "trigonometry": case(lambda x: (x.sin(), x.cos(), x.tan(), x.tanh(), x.sinh(), x.cosh(), x.atan(), x.asinh()), r(4)),
    "arcs": case(lambda x: (x.asin(), x.acos(), x.atanh(), (x + 2).acosh(), torch.atan2(x, 1 - x)), torch.linspace(-0.9, 0.9, 7)),
    "atan2_all_quadrants": case(torch.atan2, torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0]), torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0])),
    "error_functions": case(
        lambda x: (x.erf(), x.erfc(), x.sigmoid(), x.logit(1e-3)), r(4), then=(r(6),), stays={"aten.erfc.default": "no_converter"}
    ),
    "log_sigmoid": case(F.logsigmoid, r(4, 6) * 30, then=(r(5, 3),)),
    "activations": case(
        lambda x: (F.relu(x), F.leaky_relu(x, 0.2), F.elu(x), F.selu(x), F.celu(x, 2.0), F.silu(x), F.mish(x), F.relu6(x)), r(4, 6) * 4
    ),
    "gelu": case(lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")), r(4, 6) * 3, then=(r(5, 3),)),
    "hard_activations": case(
        lambda x: (F.hardswish(x), F.hardsigmoid(x), F.hardtanh(x, -2, 2), F.hardshrink(x), F.softshrink(x)), r(9) * 4
    ),
    "soft_activations": case(lambda x: (F.softplus(x, 2.0, 5.0), F.softsign(x), F.tanhshrink(x), F.threshold(x, 0.1, 20)), r(9) * 4),
    "prelu_glu": case(lambda x, w: (F.prelu(x, w), F.glu(x, 1)), r(4, 6), r(1).abs(), then=(r(5, 8), r(1))),
    "clamp": case(lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0), x.clamp(max=0), x.clip(0.1, -0.1)), r(9), then=(r(12),)),
    "clamp_tensors": case(lambda x, low, high: (x.clamp(low, high), x.clamp(min=low), x.clamp(max=high)), r(4), r(4) - 1, r(4) + 1),
    "clamp_integers": case(lambda x: (x.clamp(-2, 3), x.clamp(min=0), x.clamp(max=2.5)), SIGNED),
    "clamp_nan": case(lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.relu()), SPECIAL),
    "minimum_maximum": case(
        lambda x, y: (torch.minimum(x, y), torch.maximum(x, y), torch.fmin(x, y), torch.fmax(x, y)),
        SPECIAL,
        r(8),
    ),
    "floor_divide_integers": case(lambda x: (x // 3, x // -3, torch.floor_divide(x, 2)), SIGNED),
    "floor_divide_floats": case(lambda x: (x // 0.7, x // -0.7, torch.floor_divide(x, 0.3)), r(9) * 3, then=(r(12),)),
    "remainder_integers": case(lambda x: (x % 3, x % -3, torch.fmod(x, 3), torch.fmod(x, -3)), SIGNED),
    "remainder_floats": case(lambda x: (x % 0.7, x % -0.7, torch.fmod(x, 0.7), torch.fmod(x, -0.7)), r(9) * 3, then=(r(12),)),
    "remainder_tensors": case(lambda x, y: (torch.remainder(x, y), torch.fmod(x, y)), r(9) * 3, r(9).roll(1), then=(r(12), r(12).roll(1))),
    "division_modes": case(
        lambda x, y: (torch.div(x, y), torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")),
        SIGNED,
        SIGNED * 2 + 1,
    ),
    "division_of_whole_numbers": case(
        lambda x, y: (x / y * y, (x / 3).mean(), x / x.shape[0], (x > 2) / (y > 4), x.sum() / y),
        whole(1, 9, 7),
        whole(1, 9, 7),
        then=(whole(1, 9, 4), whole(1, 9, 4)),
    ),
    "division_modes_floats": case(
        lambda x: (torch.div(x, 0.7, rounding_mode="floor"), torch.div(x, -0.7, rounding_mode="trunc")), r(9) * 3, then=(r(12),)
    ),
    "division_by_zero": case(lambda x: (x / 0, 0 / x, x % 0.0), SPECIAL),
    "rounding": case(lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), x.sign(), x.sgn()), HALVES),
    "rounding_decimals": case(lambda x: (x.round(decimals=2), x.round(decimals=-1)), r(9) * 33, then=(r(12),)),
    "special_values": case(lambda x: (x.sign(), x.isnan(), x.isinf(), x.isfinite(), x.signbit(), x.nan_to_num(1.0, 2.0, 3.0)), SPECIAL),
    "isneginf_isposinf": case(lambda x: (torch.isneginf(x), torch.isposinf(x)), SPECIAL),
    "comparisons": case(lambda x, y: (x < y, x <= y, x == y, x != y, x > 0, x >= 0.5), SPECIAL, r(8)),
    "isclose": case(lambda x: torch.isclose(x, x + 1e-9), r(4), then=(r(6),)),
    "logical": case(lambda x, y: (x & y, x | y, x ^ y, ~x, torch.logical_xor(x, y), torch.logical_not(x)), r(9) > 0, r(9).roll(1) > 0),
    "logical_of_numbers": case(
        lambda x, y: (torch.logical_and(x, y), torch.logical_or(x, y), torch.logical_not(x)), SIGNED, SIGNED.roll(1)
    ),
    "bitwise": case(lambda x, y: (x & y, x | y, x ^ y, ~x), SIGNED, SIGNED.roll(2)),
    "bitwise_scalar": case(lambda x: (x & 5, x | 8, x ^ 3), SIGNED),
    "shifts": case(lambda x: (x << 2, x >> 1), SIGNED),
    "shifts_uint8": case(
        lambda x: (x << 2, x >> 1),
        whole(0, 256, 9, dtype=torch.uint8),
        stays={"aten.__lshift__.Scalar": "session_refused", "aten.__rshift__.Scalar": "session_refused"},
    ),
    "where": case(lambda x, y: torch.where(x > 0, x, y), r(4, 6), r(6), then=(r(5, 3), r(3))),
    "where_scalars": case(
        lambda x: (torch.where(x > 0, 1.0, x), torch.where(x > 0, 2, 0), torch.where(x > 0, x, 0)), r(4, 6), then=(r(5, 3),)
    ),
    "masked_fill": case(lambda x: x.masked_fill(x > 0, float("-inf")).softmax(-1), r(4, 6), then=(r(5, 3),)),
    "masked_fill_tensor": case(
        lambda x, m, v: x.masked_fill(m, v), r(4, 6), r(6) > 0, torch.tensor(2.0), then=(r(5, 3), r(3) > 0, torch.tensor(1.0))
    ),
    "lerp": case(lambda x, y: (torch.lerp(x, y, 0.3), torch.lerp(x, y, y.sigmoid())), r(4), r(4) + 1, then=(r(6), r(6))),
    "hypot_logaddexp": case(lambda x, y: (torch.hypot(x, y), torch.logaddexp(x, y)), r(4), r(4) + 1),
    "xlogy": case(lambda x: (torch.xlogy(x.abs(), 2.0), torch.special.entr(x.abs())), r(4), then=(r(6),)),
    "heaviside": case(torch.heaviside, r(4), torch.tensor(0.5)),
}

CASTS: dict[str, OpCase] = {
    "float_to_integers": case(
        lambda x: (x.int(), x.long(), x.to(torch.int16), x.to(torch.int8)), torch.tensor([-2.7, -0.5, 0.0, 0.5, 99.9])
    ),
    "float_to_uint8": case(lambda x: x.to(torch.uint8), torch.tensor([0.0, 0.5, 1.9, 254.7])),
    "to_bool": case(lambda x: (x.bool(), x.bool().int()), SPECIAL),
    "from_bool": case(lambda x: ((x > 0).float(), (x > 0).long(), (x > 0) * x), r(9), then=(r(12),)),
    "integers_wrap": case(
        lambda x: (x.to(torch.int8), x.to(torch.uint8), x.to(torch.int16)), torch.tensor([0, 127, 128, 255, 256, -1, 70000])
    ),
    "to_other_tensor": case(lambda x, y: x.to(y) + y, whole(0, 9, 4), r(4), then=(whole(0, 9, 6), r(6))),
    "to_cpu": case(lambda x: x.to("cpu") + 1, r(4), then=(r(6),)),
    "device_put": case(lambda x: torch.ops.prims.device_put(x + 1, torch.device("cpu")) * 2, r(4), then=(r(6),)),
    "promotion": case(lambda x, y: (x + y, x * 2.5, x / 2, x > 0.5), whole(-9, 9, 4), r(4), then=(whole(-9, 9, 6), r(6))),
    "promotion_of_kinds": case(lambda x, b: (x + b, b + 1, b * 2.5, x.half() + x), r(4), r(4) > 0, then=(r(6), r(6) > 0)),
    "int8": case(lambda x: (x * 3 + 1, x // 2, -x, x.abs(), x.sum()), whole(-30, 30, 9, dtype=torch.int8)),
    "int8_overflows": case(lambda x: (x + 100, x * 5, x - 100), whole(60, 90, 5, dtype=torch.int8)),
    "uint8": case(lambda x: (x * 3 + 1, x // 2, x % 7, x.sum(), x > 3), whole(0, 30, 9, dtype=torch.uint8)),
    "uint8_overflows": case(lambda x: (x + 200, x * 9, x - 50, 5 - x), whole(0, 99, 9, dtype=torch.uint8)),
    "int16": case(lambda x: (x * 3 + 1, x // 2, x % 7, -x, x.abs(), x.sum()), whole(-99, 99, 9, dtype=torch.int16)),
    "int32": case(lambda x: (x * 3 + 1, x // 2, x % 7, -x, x.abs(), x.sum(), x.cumsum(0)), whole(-99, 99, 9, dtype=torch.int32)),
    "int64_large": case(lambda x: (x + 1, x * 3, x // 7, x % 1000, x.sum()), torch.tensor([2**53 + 1, -(2**53) - 1, 2**61, -(2**61)])),
    "float16": case(lambda x: ((x @ x.t()).relu(), x.softmax(-1), x.sum(), F.layer_norm(x, (6,))), r(4, 6).half(), atol=5e-3),
    "float16_large_numbers": case(lambda x: (x * 300, x / 1e5, x * 1e-3 * 1e5), r(9).half(), atol=0.2),
    "bfloat16": case(
        lambda x: (x @ x.t()).relu() + 1,
        r(4, 6).bfloat16(),
        stays=dict.fromkeys(("aten.mm.default", "aten.relu.default", "aten.add.Tensor"), "dtype"),
        exported_stays=dict.fromkeys(("aten.t.default", "aten.mm.default", "aten.relu.default", "aten.add.Tensor"), "dtype"),
        atol=2e-2,
    ),
    "float64": case(lambda x: (x.softmax(-1), x @ x.t(), x.exp() + 1e-12, x.var(1)), r(4, 6).double(), atol=1e-12),
    "complex": case(
        lambda x: (x * x.conj()).real + 1,
        torch.complex(r(4), r(4)),
        stays=dict.fromkeys(("aten._conj.default", "aten.clone.default", "aten.mul.Tensor", "aten.view_as_real.default"), "dtype"),
    ),
    "complex_parts": case(
        lambda x: torch.view_as_real(torch.view_as_complex(x) * 2) + 1,
        r(4, 2),
        stays=dict.fromkeys(("aten.view_as_complex.default", "aten.mul.Tensor", "aten.view_as_real.default"), "dtype"),
    ),
    "fft": case(lambda x: torch.fft.rfft(x).abs() + 1, r(8), stays={"aten._fft_r2c.default": "policy", "aten.abs.default": "dtype"}),
}

CASES: dict[str, OpCase] = {**ELEMENTWISE, **CASTS}
