"""The classic operator cases. What an operator does with plain numbers is in the database that `tests.opinfo` goes through."""

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import nn

from tests.conformance.operator_case import OpCase, case, r, steady, whole

# Since then, attention gives its arguments the missing dimension, and the number of features is a constant.
SINCE_2_15 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
SIZE_NUMBER = {"aten.scalar_tensor.default": "policy"}  # the same, made a tensor before anything is computed
EFFECT = {"with_effects": "no_converter"}  # Dynamo keeps the check of the result in order by a token
CHECK = {"aten._linalg_check_errors.default": "side_effect"}
SHAPES_OF_DATA = {"capture_dynamic_output_shape_ops": True}
CAPTURED = {"capture_scalar_outputs": True, **SHAPES_OF_DATA}


SHAPES: dict[str, OpCase] = {
    "sympy_floor_division": case(lambda x: x.view(x.shape[0] // 2, -1) * 2, r(6), then=(r(10),)),
    "sympy_arithmetic": case(
        lambda x: (x + (x.shape[0] * 2 - 1) % 5 + x.shape[0] ** 2, x[: min(x.shape[0], 4)] * max(x.shape[0], 5)), r(6), then=(r(9),)
    ),
    "sympy_true_division": case(
        lambda x: x * (x.shape[0] / 3),
        r(6),
        then=(r(9),),
        dynamic_stays={"aten.scalar_tensor.default": "policy"},
    ),
    "sympy_ceiling": case(
        lambda x: (torch.zeros(math.ceil(x.shape[0] / 4)) + x.sum(), torch.full((x.shape[0], 2), 1.5) + x.sum()), r(6), then=(r(9),)
    ),
    "nested_arguments": case(lambda tree: tree["a"][0] + tree["b"][1] * 2, {"a": (r(4),), "b": [r(3), r(4)]}),
    "nested_results": case(
        lambda x: {"a": (x + 1, [y := x * 2, None]), "twice": y, "handed_back": x, "constants": (3, 2.5, True, None)},
        r(4, 6),
        then=(r(5, 3),),
    ),
    "none_among_arguments": case(lambda x, y, z: x + z if y is None else y, r(4), None, r(4), then=(r(6), None, r(6))),
    "scalar_tensors": case(lambda x, s: x * s + torch.tensor(2.0), r(4), torch.tensor(3.0), then=(r(6), torch.tensor(-1.0))),
    "views": case(
        lambda x: (
            y := x * 2,
            y.view(-1, 2),
            y.t().reshape(-1),
            y.unflatten(1, (2, -1)),
            y.movedim(0, -1).contiguous(),
            y[0, 1],
            y.flatten(),
        ),
        r(4, 6),
        then=(r(5, 8),),
    ),
    "view_zero_sized": case(lambda x: (x + 1).view(3, 0, -1) if x.numel() == 0 and x.dim() == 3 else x.view(-1) + 1, torch.empty(0, 4)),
    "expands": case(lambda x, y: (x.expand_as(y) * y, y.unsqueeze(0).expand(3, -1, -1) + 1), r(1, 6), r(4, 6), then=(r(1, 3), r(5, 3))),
    "squeezes": case(lambda x: (x.squeeze(), x.squeeze((0, -2)) * 2, x.squeeze((0, 1, 2)) * 2), r(1, 4, 1, 3), then=(r(1, 4, 1, 5),)),
    "view_as_dtype": case(lambda x: x.view(torch.int32) + 1, r(4), then=(r(6),), stays={"aten.view.dtype": "no_converter"}),
    "cat_with_empty": case(lambda x, y: torch.cat([x, y]) * 2, r(4), torch.empty(0)),
    "cat_promotes": case(lambda x, y: torch.cat([x, y]), r(4), whole(0, 9, 3), then=(r(6), whole(0, 9, 2))),
    "splits": case(
        lambda x: [one + 1 for parts in (x.split(2, 1), x.chunk(3, 1), x.tensor_split(3, 1), x.unbind(1)) for one in parts],
        r(4, 7),
        then=(r(5, 7),),
    ),
    "slices": case(
        lambda x: (x[1:-1, ::2] * 2, x[2:100] + 1, x[x.shape[0] :] + 1, x[..., None, -1] + x[:, 0, None]), r(4, 6), then=(r(5, 3),)
    ),
    "slice_by_size": case(lambda x, y: x[: y.shape[0]] * 2, r(6), r(4), then=(r(9), r(5))),
    "aranges": case(
        lambda x: (torch.arange(x.shape[0]) * 2 + x, torch.arange(2, 2 * x.shape[0], 2, dtype=torch.float32) + x[0]), r(6), then=(r(9),)
    ),
    "new_tensors": case(
        lambda x: (torch.zeros_like(x) + torch.full_like(x, 3), x.new_zeros(3) + x.new_tensor([1.0, 2.0, 3.0])), r(4, 6), then=(r(5, 3),)
    ),
    # FusedMatMul of ONNX Runtime leaves what it returns unwritten where there is nothing to sum.
    "no_elements_matmul": case(
        lambda x, y, a, b: (x @ y, a @ b),
        torch.empty(0, 4),
        r(4, 3),
        torch.empty(3, 0),
        torch.empty(0, 2),
        stays={"aten.mm.default": "no_converter"},
    ),
    "no_dimensions": case(lambda x: (x.sin() + 1, x.view(1), x.expand(3)), torch.tensor(0.5)),
    "writes_in_place": case(
        lambda a, b, c, d, y: (a.add_(1) * 2, b.copy_(y).mul_(2) + 1, c.fill_(2).sub_(1), d.masked_fill_(d > 0, 0.0)),
        *(r(4, 6) + n for n in range(5)),
        then=tuple(r(5, 3) + n for n in range(5)),
    ),
    "writes_a_slice": case(lambda x: (x[1:3].zero_(), x + 1)[1], r(4, 6), then=(r(5, 3),)),
    "writes_a_view_of_a_copy": case(lambda x: (y := x.clone(), y.view(-1).mul_(3), y + 1)[2], r(4, 6), then=(r(5, 3),)),
}

NUMBERS: dict[str, OpCase] = {
    "add_broadcast": case(lambda x, y: (x + y, torch.add(x, y, alpha=2.5) - 1, 1 - x), r(4, 1), r(6), then=(r(5, 1), r(3))),
    "power_mixed": case(
        lambda x, y: (x**y, 2**x),
        whole(1, 5, 4),
        r(4),
        stays={"aten.pow.Scalar": "no_converter"},
    ),
    "log_sigmoid": case(F.logsigmoid, r(4, 6) * 30, then=(r(5, 3),)),
    "shifts_uint8": case(
        lambda x: (x << 2, x >> 1),
        whole(0, 256, 9, dtype=torch.uint8),
        stays={"aten.__lshift__.Scalar": "session_refused", "aten.__rshift__.Scalar": "session_refused"},
    ),
    "device_put": case(lambda x: torch.ops.prims.device_put(x + 1, torch.device("cpu")) * 2, r(4), then=(r(6),)),
    "promotion": case(lambda x, y: (x + y, x * 2.5, x / 2, x > 0.5), whole(-9, 9, 4), r(4), then=(whole(-9, 9, 6), r(6))),
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
    "cumulative_products": case(
        lambda x: (x.cumprod(0), x.logcumsumexp(1)),
        r(4, 6),
        then=(r(5, 3),),
        stays={"aten.logcumsumexp.default": "no_converter"},
        dynamic_stays={"aten.cumprod.default": "no_converter", "aten.logcumsumexp.default": "no_converter"},
    ),
    "histogram": case(lambda x: torch.bincount(x, minlength=9), whole(0, 9, 20), config=SHAPES_OF_DATA),
    "matmul": case(lambda x, y: x @ y, r(4, 6), r(6, 3), then=(r(5, 2), r(2, 7))),
    "inverse": case(
        torch.linalg.inv,
        r(3, 3),
        stays={"aten.linalg_inv_ex.default": "no_converter", **EFFECT},
        exported_stays={"aten.linalg_inv_ex.default": "no_converter", **CHECK},
    ),
    "solve": case(
        torch.linalg.solve,
        r(3, 3),
        r(3),
        stays={"aten._linalg_solve_ex.default": "no_converter", **EFFECT},
        exported_stays={"aten._linalg_solve_ex.default": "no_converter", **CHECK},
    ),
    "index_tensor": case(lambda x, i: (x[i], x[:, i], x[i, i]), r(4, 4), torch.tensor([0, -1, 2]), then=(r(5, 5), torch.tensor([0, 1]))),
    "index_boolean": case(lambda x: x[x > 0] * 2, r(9), graphs=None),
    "embedding_bag": case(
        lambda i, o, w: F.embedding_bag(i, w, o),
        torch.tensor([1, 2, 4, 0]),
        torch.tensor([0, 2]),
        r(10, 3),
        stays={"aten._embedding_bag_forward_only.default": "policy"},
    ),
    "kthvalue": case(lambda x: x.kthvalue(2, 1), r(4, 6), stays={"aten.kthvalue.default": "no_converter"}),
    "searchsorted": case(
        lambda x: torch.searchsorted(torch.tensor([0.0, 0.5, 1.0]), x), r(9), stays={"aten.searchsorted.Tensor": "no_converter"}
    ),
    "unique": case(torch.unique, whole(0, 5, 9), config=SHAPES_OF_DATA),
}

LAYERS: dict[str, OpCase] = {
    "conv_net": case(
        steady(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))),
        r(2, 3, 8, 8),
        then=(r(3, 3, 8, 8),),
    ),
    "lstm": case(steady(nn.LSTM(4, 5, batch_first=True)), r(2, 3, 4), graphs=0),
    "max_pool2d": case(lambda x: F.max_pool2d(x, 3, 2, 1), r(2, 3, 9, 8), then=(r(4, 3, 7, 7),)),
    "avg_pool2d": case(lambda x: F.avg_pool2d(x, 3, 2, 1), r(2, 3, 9, 8), then=(r(4, 3, 7, 7),)),
    "avg_pool_ceil_padded": case(
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), r(1, 2, 8, 8), dynamic_stays={"aten.avg_pool2d.default": "no_converter"}
    ),
    "adaptive_max_pool_others": case(
        lambda x, y: (F.adaptive_max_pool1d(x, 2), F.adaptive_max_pool3d(y, (2, 1, 3), return_indices=True)),
        r(3, 6),
        r(2, 4, 3, 6),
        dynamic_stays={"aten.adaptive_max_pool2d.default": "no_converter", "aten.adaptive_max_pool3d.default": "no_converter"},
    ),
    "interpolate_nearest_down": case(lambda x: F.interpolate(x, size=(3, 3)), r(1, 3, 7, 8), dynamic_stays=SIZE_NUMBER),
    "interpolate_linear": case(lambda x: F.interpolate(x, size=7, mode="linear"), r(1, 3, 5), dynamic_stays=SIZE_NUMBER),
    "attention": case(F.scaled_dot_product_attention, r(2, 4, 6, 8), r(2, 4, 6, 8), r(2, 4, 6, 8), then=(r(3, 4, 5, 8),) * 3),
    "attention_three_dimensions": case(
        lambda q: F.scaled_dot_product_attention(q, q, q),
        r(2, 6, 8),
        then=(r(3, 5, 8),),
        dynamic_stays={} if SINCE_2_15 else {"aten.mul.Scalar": "dtype"},
    ),
    "encoder_layer": case(steady(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)), r(2, 3, 8)),
    "cross_entropy_smoothing": case(
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        r(4, 6),
        torch.tensor([1, -100, 5, 2]),
        dynamic_stays={"aten.mul.Scalar": "dtype"},
    ),
}

DATA_DEPENDENT: dict[str, OpCase] = {
    "item": case(lambda x: x * x.sum().item(), r(6), graphs=2, exported_stays={"aten.mul.Tensor": "dtype"}),
    "item_captured": case(lambda x: x * x.sum().item(), r(6), config=CAPTURED, exported_stays={"aten.mul.Tensor": "dtype"}),
    "item_as_size": case(lambda n, x: torch.ones(n.item()) * x, torch.tensor(4), r(1), config=CAPTURED),
    "nonzero": case(lambda x: x.nonzero() + 1, r(6), graphs=None),
    "nonzero_captured": case(lambda x: x.nonzero() + 1, r(6), then=(r(9),), config=CAPTURED),
    "masked_select_captured": case(
        lambda x: torch.masked_select(x, x > 0) * 2,
        r(6),
        then=(r(9),),
        config=CAPTURED,
        stays={"aten.masked_select.default": "no_converter"},
    ),
    "boolean_index_captured": case(lambda x: x[x > 0].exp() + 1, r(6), then=(r(9),), config=CAPTURED),
    "repeats_captured": case(lambda x, n: x.repeat_interleave(n), r(3), torch.tensor([1, 0, 2]), config=CAPTURED),
}

CASES: dict[str, OpCase] = {**SHAPES, **NUMBERS, **LAYERS, **DATA_DEPENDENT}
