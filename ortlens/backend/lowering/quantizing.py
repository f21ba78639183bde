"""Fake quantisation: rounding to what an integer type would hold, computed in float32 as PyTorch's kernels do."""

from __future__ import annotations

from typing import Any

import torch

_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is
_BEYOND = 2.0**63  # from here on, a conversion to int64 returns the smallest integer


def per_tensor(tensor: torch.Tensor, scale: float, zero_point: int, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.fake_quantize_per_tensor_affine_cachemask`: the rounded tensor, and where nothing was clipped."""
    if tensor.dtype is not torch.float32 or not isinstance(scale, float) or not isinstance(zero_point, int):
        stays: tuple[torch.Tensor, torch.Tensor] = _STAYS
        return stays
    return _rounded(tensor, torch.full((), scale, dtype=torch.float32, device=tensor.device), zero_point, low, high)


def per_tensor_of_tensors(  # noqa: PLR0913, PLR0917 - the operator's schema
    tensor: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, enabled: torch.Tensor, low: int, high: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same with a scale, a zero point and a switch that are tensors."""
    if tensor.dtype is not torch.float32 or scale.dtype is not torch.float32 or zero_point.dtype.is_floating_point:
        stays: tuple[torch.Tensor, torch.Tensor] = _STAYS
        return stays
    rounded, inside = _rounded(tensor, scale.reshape(()), zero_point.reshape(()), low, high)
    on = enabled.reshape(()) != 0
    return torch.where(on, rounded, tensor), inside | ~on


def per_channel(  # noqa: PLR0913, PLR0917 - the operator's schema
    tensor: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, low: int, high: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.fake_quantize_per_channel_affine_cachemask`, whose kernel takes all beyond int64 for the smallest integer."""
    if tensor.dtype is not torch.float32 or scale.dtype is not torch.float32 or zero_point.dtype.is_floating_point:
        stays: tuple[torch.Tensor, torch.Tensor] = _STAYS
        return stays
    shape = [-1 if place == axis % tensor.dim() else 1 for place in range(tensor.dim())]
    factor, zero = scale.reshape(shape), zero_point.reshape(shape)
    level = torch.round(tensor * factor.reciprocal()) + zero
    return _clipped(torch.where(level.abs() < _BEYOND, level, low - 1.0), factor, zero, low, high)


def _rounded(tensor: torch.Tensor, scale: torch.Tensor, zero: Any, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    level = torch.round(tensor * scale.reciprocal()) + zero
    return _clipped(torch.where(level.isnan(), low - 1.0, level), scale, zero, low, high)


def _clipped(level: torch.Tensor, scale: torch.Tensor, zero: Any, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (level.clamp(low, high) - zero) * scale, (level >= low) & (level <= high)
