"""Describes the inputs of a reproduction: shapes, dtypes and statistics instead of values."""

from __future__ import annotations

import math
from typing import Any

import torch

from ortlens import _torch

STANDARD = "standard"
"""Statistics of inputs whose values were not seen: normal numbers, and integers of 0 and 1."""

RECORDED = "recorded"
_CHUNK = 1 << 20


def described(name: str, meta: Any, value: Any, *, kind: str) -> dict[str, Any]:
    """Describe one input as plain data, for JSON; `kind` is `input`, `weight`, `constant`, or `number`.

    `meta` is a fake tensor or a number, as found in `meta["val"]`; `value` is None if it was not seen.
    """
    seen = value if value is not None and not (isinstance(value, torch.Tensor) and _torch.is_fake(value)) else None
    like = meta if seen is None else seen
    if not isinstance(like, torch.Tensor):
        return {"name": name, "kind": "number", "value": _torch.size_hint(like) if seen is None else seen}
    return {
        "name": name,
        "kind": kind,
        "dtype": str(like.dtype).removeprefix("torch."),
        "shape": [_torch.size_hint(size) for size in like.shape],
        "stride": [_torch.size_hint(stride) for stride in like.stride()],
        "source": STANDARD if seen is None else RECORDED,
        "statistics": _standard(like.dtype, kind) if seen is None else statistics_of(seen.detach()),
    }


def as_literal(name: str, value: torch.Tensor) -> dict[str, Any]:
    """Describe a constant by its elements, as plain data for JSON."""
    shown = value.detach().cpu()
    return {
        "name": name,
        "kind": "constant",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "value": shown.reshape(-1).tolist(),
    }


def _standard(dtype: torch.dtype, kind: str) -> dict[str, Any]:
    if dtype is torch.bool:
        return {"min": 0, "max": 1, "mean": 0.5}
    if not dtype.is_floating_point:
        return {"min": 0, "max": 1, "mean": 0.5}
    spread = 0.05 if kind == "weight" else 1.0
    return {"min": -4 * spread, "max": 4 * spread, "mean": 0.0, "std": spread, "nan_share": 0.0, "inf_share": 0.0, "minus_inf_share": 0.0}


def statistics_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Compute the statistics that random values are drawn from, over the finite elements; zeros where there are none.

    Three digits, so that no figure is an element: `min`, `max`, `mean`; for floats also `std` and the shares of NaN and either infinity.
    """
    if not tensor.dtype.is_floating_point:
        if not tensor.numel():
            return {"min": 0, "max": 0, "mean": 0.0}
        whole = tensor.to(torch.int64)
        return {"min": int(whole.min()), "max": int(whole.max()), "mean": float(whole.double().mean())}
    return _float_statistics(tensor)


def _float_statistics(tensor: torch.Tensor) -> dict[str, Any]:
    flat, total = tensor.reshape(-1), max(tensor.numel(), 1)
    nans = infs = minus = count = 0
    low, high, first, second = math.inf, -math.inf, 0.0, 0.0
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].double()
        finite = part[part.isfinite()]
        nans += int(part.isnan().sum())
        infs += int((part == math.inf).sum())
        minus += int((part == -math.inf).sum())
        if finite.numel():
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            first, second, count = first + float(finite.sum()), second + float(finite.square().sum()), count + finite.numel()
    mean = first / count if count else 0.0
    spread = math.sqrt(max(second / count - mean * mean, 0.0)) if count else 0.0
    return {
        "min": _rounded(low) if count else 0.0,
        "max": _rounded(high) if count else 0.0,
        "mean": _rounded(mean),
        "std": _rounded(spread),
        "nan_share": nans / total,
        "inf_share": infs / total,
        "minus_inf_share": minus / total,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
