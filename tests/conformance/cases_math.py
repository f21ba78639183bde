"""Cases of numbers: arithmetic and its signs, rounding, casts, element types, reductions, products, indexing."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from tests.conformance.operator_case import OpCase, case, r, whole

SPECIAL = torch.tensor([0.5, float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1.0, -1.5])
HALVES = torch.tensor([-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 1e10])
SIGNED = torch.tensor([-7, -6, -1, 0, 1, 6, 7])

ELEMENTWISE: dict[str, OpCase] = {
    "add_broadcast": case(lambda x, y: (x + y, torch.add(x, y, alpha=2.5) - 1, 1 - x), r(4, 1), r(6), then=(r(5, 1), r(3))),
    "of_one": case(lambda x: (torch.xlogy(x.abs(), 2.0), torch.special.entr(x.abs()), torch.float_power(x, 2), 2**x), r(4), then=(r(6),)),
    "power_mixed": case(
        lambda x, y: (x**y, 2**x),
        whole(1, 5, 4),
        r(4),
        stays={"aten.pow.Scalar": "no_converter"},
    ),
    "log_sigmoid": case(F.logsigmoid, r(4, 6) * 30, then=(r(5, 3),)),
    "clamp_nan": case(lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.relu()), SPECIAL),
    "minimum_maximum": case(
        lambda x, y: (torch.minimum(x, y), torch.maximum(x, y), torch.fmin(x, y), torch.fmax(x, y)),
        SPECIAL,
        r(8),
    ),
    "integers": case(lambda x: (x // 3, x // -3, x % 3, x % -3, torch.fmod(x, -3), x**3, x.clamp(max=2.5), x & 5, x << 2, x >> 1), SIGNED),
    "remainders_of_floats": case(
        lambda x: (x // -0.7, x % -0.7, torch.fmod(x, -0.7), torch.div(x, -0.7, rounding_mode="trunc"), x.round(decimals=2)),
        r(9) * 3,
        then=(r(12),),
    ),
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
    "division_by_zero": case(lambda x: (x / 0, 0 / x, x % 0.0), SPECIAL),
    "rounding": case(lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), x.sign(), x.sgn()), HALVES),
    "special_values": case(lambda x: (x.sign(), x.isnan(), x.isinf(), x.isfinite(), x.signbit(), x.nan_to_num(1.0, 2.0, 3.0)), SPECIAL),
    "shifts_uint8": case(
        lambda x: (x << 2, x >> 1),
        whole(0, 256, 9, dtype=torch.uint8),
        stays={"aten.__lshift__.Scalar": "session_refused", "aten.__rshift__.Scalar": "session_refused"},
    ),
}

CASTS: dict[str, OpCase] = {
    "float_to_integers": case(
        lambda x: (x.int(), x.long(), x.to(torch.int16), x.to(torch.int8)), torch.tensor([-2.7, -0.5, 0.0, 0.5, 99.9])
    ),
    "to_bool": case(lambda x: (x.bool(), x.bool().int()), SPECIAL),
    "integers_wrap": case(
        lambda x: (x.to(torch.int8), x.to(torch.uint8), x.to(torch.int16)), torch.tensor([0, 127, 128, 255, 256, -1, 70000])
    ),
    "device_put": case(lambda x: torch.ops.prims.device_put(x + 1, torch.device("cpu")) * 2, r(4), then=(r(6),)),
    "promotion": case(lambda x, y: (x + y, x * 2.5, x / 2, x > 0.5), whole(-9, 9, 4), r(4), then=(whole(-9, 9, 6), r(6))),
    "uint8_overflows": case(lambda x: (x + 200, x * 9, x - 50, 5 - x), whole(0, 99, 9, dtype=torch.uint8)),
    "int32": case(lambda x: (x * 3 + 1, x // 2, x % 7, -x, x.abs(), x.sum(), x.cumsum(0)), whole(-99, 99, 9, dtype=torch.int32)),
    "int64_large": case(lambda x: (x + 1, x * 3, x // 7, x % 1000, x.sum()), torch.tensor([2**53 + 1, -(2**53) - 1, 2**61, -(2**61)])),
    "float16": case(lambda x: ((x @ x.t()).relu(), x.softmax(-1), x.sum(), F.layer_norm(x, (6,))), r(4, 6).half(), atol=5e-3),
    "float16_large_numbers": case(lambda x: (x * 300, x / 1e5, x * 1e-3 * 1e5), r(9).half(), atol=0.2),
    "bfloat16": case(
        lambda x: (x @ x.t()).relu() + 1,
        r(4, 6).bfloat16(),
        stays=dict.fromkeys(("aten.t.default", "aten.mm.default", "aten.relu.default", "aten.add.Tensor"), "dtype"),
        atol=2e-2,
    ),
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
