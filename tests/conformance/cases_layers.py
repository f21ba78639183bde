"""Cases of layers: convolutions, pooling, padding, resizing, normalisation, attention, losses, data-dependent code."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import nn

from tests.conformance.operator_case import Elsewhere, OpCase, case, r, steady, whole

SYMBOLIC_SCALE = {"aten.mul.Tensor": "dtype"}  # a Python float that follows from sizes
SIZE_NUMBER = {"aten.scalar_tensor.default": "policy"}  # the same, made a tensor before anything is computed
WITH_NAN = torch.where(whole(0, 9, 2, 3, 8, 8) == 0, torch.nan, r(2, 3, 8, 8))
ODD_OR_EVEN = Elsewhere("guards on whether the stride divides a size", before="2.13", roads=("dynamic",), graphs=2)
CAPTURED = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


def heads_joined(qkv: torch.Tensor) -> torch.Tensor:
    """What most models do: the operator's result lies in memory such that the heads join without a copy."""
    batch, rows, width = qkv.shape
    query, key, value = (part.view(batch, rows, 2, width // 6).transpose(1, 2) for part in qkv.chunk(3, -1))
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).contiguous().view(batch, rows, width // 3)


# torch 2.9 takes an LSTM's own list of its weights for attributes that were assigned, and refuses; 2.13 warns of them
# (`_detect_attribute_assignment` in `torch/_functorch/_aot_autograd/frontend_utils.py`).
ASSIGNED = "were assigned during export" if Elsewhere("refuses", before="2.13", roads=("exported",)).holds("exported") else ""

CONVOLUTIONS: dict[str, OpCase] = {
    "conv_net": case(
        steady(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))),
        r(2, 3, 8, 8),
        then=(r(3, 3, 8, 8),),
    ),
    "conv2d": case(steady(nn.Conv2d(3, 4, 3, padding=1)), r(2, 3, 8, 7), then=(r(3, 3, 6, 9),)),
    "lstm": case(steady(nn.LSTM(4, 5, batch_first=True)), r(2, 3, 4), graphs=0, not_exported=ASSIGNED),
}

POOLS: dict[str, OpCase] = {
    "max_pool2d": case(lambda x: F.max_pool2d(x, 3, 2, 1), r(2, 3, 9, 8), then=(r(4, 3, 7, 7),), elsewhere=ODD_OR_EVEN),
    "max_pool_ceil": case(
        lambda x: (F.max_pool2d(x, 3, 2, ceil_mode=True), F.max_pool2d(x, 2, 2, dilation=2, ceil_mode=True)), r(1, 2, 8, 8)
    ),
    "avg_pool2d": case(lambda x: F.avg_pool2d(x, 3, 2, 1), r(2, 3, 9, 8), then=(r(4, 3, 7, 7),), elsewhere=ODD_OR_EVEN),
    "avg_pool_ceil": case(lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), r(1, 2, 8, 8)),
    "avg_pool_ceil_padded": case(
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), r(1, 2, 8, 8), dynamic_stays={"aten.avg_pool2d.default": "no_converter"}
    ),
    "max_pool_of_nan": case(lambda x: (F.max_pool2d(x, 3, 2, 1), F.max_pool1d(x[0], 4), F.max_pool3d(x, 2)), WITH_NAN),
    "max_pool_of_nan_indices": case(
        lambda x: (F.max_pool2d(x, (4, 2), return_indices=True), F.max_pool3d(x, 2, return_indices=True)),
        WITH_NAN,
        then=(WITH_NAN.repeat(2, 1, 1, 1),),
    ),
    "adaptive_max_pool_whole": case(lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True), r(2, 3, 4, 5)),
    "adaptive_max_pool_others": case(
        lambda x, y: (F.adaptive_max_pool1d(x, 2), F.adaptive_max_pool3d(y, (2, 1, 3), return_indices=True)),
        r(3, 6),
        r(2, 4, 3, 6),
        dynamic_stays={"aten.adaptive_max_pool2d.default": "no_converter", "aten.adaptive_max_pool3d.default": "no_converter"},
    ),
}

PADS: dict[str, OpCase] = {
    "pad_constant": case(
        lambda x: (F.pad(x, (1, 2), value=3.0), F.pad(x, (0, 1, 2, 0)), F.pad(x > 0, (1, 1), value=True), F.pad(x.int(), (1, 1), value=7)),
        r(2, 6),
        then=(r(3, 4),),
    ),
    "pad_negative": case(lambda x: F.pad(x, (-1, 2)), r(2, 6), then=(r(3, 4),)),
    "interpolate_nearest_down": case(lambda x: F.interpolate(x, size=(3, 3)), r(1, 3, 7, 8), dynamic_stays=SIZE_NUMBER),
    "interpolate_linear": case(lambda x: F.interpolate(x, size=7, mode="linear"), r(1, 3, 5), dynamic_stays=SYMBOLIC_SCALE),
    "interpolate_bilinear": case(
        lambda x: [F.interpolate(x, scale_factor=1.5, mode="bilinear"), F.interpolate(x, size=(9, 7), mode="bilinear", align_corners=True)],
        r(1, 3, 5, 4),
    ),
}

NORMS: dict[str, OpCase] = {
    "batch_norm": case(steady(nn.BatchNorm2d(3)), r(2, 3, 4, 6), then=(r(3, 3, 5, 2),)),
    "batch_norm_training": case(lambda x: F.batch_norm(x, None, None, training=True), r(4, 3, 5)),
    "dropout_in_evaluation": case(lambda x: F.dropout(x, 0.5, training=False) + 1, r(4), then=(r(6),)),
}

ATTENTION: dict[str, OpCase] = {
    "attention": case(F.scaled_dot_product_attention, r(2, 4, 6, 8), r(2, 4, 6, 8), r(2, 4, 6, 8), then=(r(3, 4, 5, 8),) * 3),
    "attention_causal_longer_keys": case(
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), r(2, 4, 3, 8), r(2, 4, 6, 8)
    ),
    "attention_grouped": case(lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), r(2, 4, 6, 8), r(2, 2, 6, 8)),
    "attention_three_dimensions": case(
        lambda q: F.scaled_dot_product_attention(q, q, q),
        r(2, 6, 8),
        then=(r(3, 5, 8),),
        dynamic_stays={"aten.mul.Scalar": "dtype"},
        elsewhere=Elsewhere(
            "gives it the missing dimension, and the number of features is a constant", since="2.15", roads=("dynamic",), stays={}
        ),
    ),
    "attention_of_chunks": case(heads_joined, r(2, 5, 24), then=(r(3, 4, 24),)),
    "attention_sequence_first": case(
        lambda q: F.scaled_dot_product_attention(*[q.permute(1, 2, 0, 3)] * 3).permute(2, 0, 1, 3).view(10, 8), r(5, 2, 2, 4)
    ),
    "encoder_layer": case(
        steady(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
        r(2, 3, 8),
        elsewhere=Elsewhere("breaks: the fused layer has no fake values for symbolic sizes", before="2.13", roads=("dynamic",), graphs=0),
    ),
}

LOSSES: dict[str, OpCase] = {
    "cross_entropy_smoothing": case(
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        r(4, 6),
        torch.tensor([1, -100, 5, 2]),
        dynamic_stays={"aten.mul.Scalar": "dtype"},
    ),
    "nll_all_ignored": case(F.nll_loss, r(2, 6).log_softmax(1), torch.tensor([-100, -100])),
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
    "boolean_rows_captured": case(lambda x: x[x.sum(1) > 0] * 2, r(4, 6), then=(r(5, 3),), config=CAPTURED),
    "repeats_captured": case(lambda x, n: x.repeat_interleave(n), r(3), torch.tensor([1, 0, 2]), config=CAPTURED),
    "no_element_true_captured": case(lambda x: x[x > 99] * 2, r(6), then=(r(9),), config=CAPTURED),
}

CASES: dict[str, OpCase] = {**CONVOLUTIONS, **POOLS, **PADS, **NORMS, **ATTENTION, **LOSSES, **DATA_DEPENDENT}
