"""Fake quantisation against eager, at the edges of float32."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.backend.conversion.functions.one_graph import as_pytorch, extremes

SCALES, ZEROS = torch.tensor([0.1, 3.7, 1e-3, 64.0]), torch.tensor([0, 5, -3, 127], dtype=torch.int32)
TENSOR: dict[str, Any] = {
    "uint8": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
    "int8": lambda x: torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -128, 127),
    "scale of a power of two": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.25, -5, -128, 127),
    "small": lambda x: torch.fake_quantize_per_tensor_affine(x, 1e-4, 0, 0, 15),
    "tensors": lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[0], ZEROS[1], 0, 255),
    "halves": lambda x: torch.fake_quantize_per_tensor_affine(torch.arange(-20, 20) / 2 + 0 * x[0], 1.0, 1, -128, 127),
}
CHANNEL: dict[str, Any] = {
    "rows": lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS, 0, -128, 127),
    "columns": lambda x: torch.fake_quantize_per_channel_affine(x.T, SCALES, ZEROS, 1, -128, 127),
}


def test_whole_tensors() -> None:
    as_pytorch(TENSOR, extremes(torch.float32), atol=0, stays=())


def test_channels() -> None:
    numbers = extremes(torch.float32)
    as_pytorch(CHANNEL, numbers[: len(numbers) // 4 * 4].reshape(4, -1), atol=0, stays=())


def test_gradients() -> None:
    numbers = torch.linspace(-30, 30, 101)
    as_pytorch(TENSOR, numbers, grad=True)
    as_pytorch(CHANNEL, numbers[:100].reshape(4, 25), grad=True)


def test_other_types_stay_in_pytorch() -> None:
    doubles = torch.ones(3, dtype=torch.float64)
    capture = as_pytorch({"float64": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255)}, doubles, atol=0)
    assert [row.target for row in capture.fallbacks] == ["aten.fake_quantize_per_tensor_affine_cachemask.default"]
