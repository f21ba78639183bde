"""Sums of many numbers, in stages.

ONNX Runtime adds 32-bit floats one after the other, so that the error grows with their number: the mean of 4 million numbers is off in the
third digit. PyTorch adds in pairs. Here, a long reduction is done dimension by dimension, and what is long within one dimension in float64.
A symbolic size is compared with the limit as the graph is traced: the first call that crosses it makes a new graph.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_true, statically_known_true

from ortlens import _torch
from ortlens.backend.lowering.type_promotion import has_mixed_types

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is
LONG = 4096
"""Elements from which a sum across memory is staged; up to here, equal addends are off by 3e-5 at most."""
LONG_IN_ROW = 32768
"""The same for the innermost dimensions, where ONNX Runtime adds with several accumulators."""
_BATCH_NORM = _aten._native_batch_norm_legit.no_stats  # noqa: SLF001 - an operator's name
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def long_reductions() -> dict[Any, Callable[..., Any]]:
    """List the decompositions, by op overload; each leaves reductions of the usual sizes as they are."""
    return {
        _aten.sum.default: lambda x, *, dtype=None: _sum(x, None, dtype=dtype),
        _aten.sum.dim_IntList: _sum,
        _aten.mean.default: lambda x, *, dtype=None: _mean(x, None, dtype=dtype),
        _aten.mean.dim: _mean,
        _aten.var.correction: _var,
        _aten.var_mean.correction: _var_mean,
        _aten.linalg_vector_norm.default: _vector_norm,
        _aten.cumsum.default: _cumsum,
        _aten.native_group_norm.default: _group_norm,
        _aten.native_layer_norm.default: _layer_norm,
        _BATCH_NORM: _instance_norm,
    }


def is_long(x: torch.Tensor, dims: Sequence[int]) -> bool:
    """Tell whether a reduction is staged; False for usual sizes, and for element types that are added exactly enough."""
    if x.dtype not in _NARROW or not dims:
        return False
    axes = {dim % x.dim() for dim in dims}
    trailing = axes == set(range(x.dim() - len(axes), x.dim()))
    count = math.prod(x.shape[axis] for axis in axes)
    if len(axes) > 1 and not isinstance(count, int):
        return True  # stages cost little, a guard on a product of sizes would cost graphs
    return _is_more(count, LONG_IN_ROW if trailing else LONG)


def _is_more(count: Any, limit: int) -> bool:
    """Tell whether a size exceeds a limit; one that is known at run time only does."""
    return bool(count > limit if isinstance(count, int) else guard_or_true(count > limit))


def _dims(x: torch.Tensor, dim: Any) -> list[int]:
    given = [dim] if isinstance(dim, int) else list(dim or ())
    return sorted(axis % x.dim() for axis in given) if given and x.dim() else list(range(x.dim()))


def _staged(x: torch.Tensor, axes: Sequence[int], *, keepdim: bool) -> torch.Tensor:
    """Add up one dimension after the other, from the innermost one; a long one in float64."""
    dtype = x.dtype
    if dtype is not torch.float32:
        x = x.to(torch.float32)
    for axis in reversed(axes):
        wide = torch.float64 if is_long(x, [axis]) else torch.float32
        x = x.sum([axis], keepdim=True, dtype=wide).to(torch.float32)
    x = x.to(dtype) if dtype is not torch.float32 else x
    return x if keepdim else x.squeeze(tuple(axes))


def _sum(x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:  # noqa: FBT001, FBT002 - schema
    axes = _dims(x, dim)
    if dtype not in (None, x.dtype) or not is_long(x, axes):
        return _STAYS
    return _staged(x, axes, keepdim=keepdim)


def _mean(x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:  # noqa: FBT001, FBT002 - schema
    axes = _dims(x, dim)
    if dtype not in (None, x.dtype) or not is_long(x, axes):
        return _STAYS
    wide = x.to(torch.float32)
    mean: torch.Tensor = _staged(wide, axes, keepdim=keepdim) / _count(x, axes)
    return mean.to(x.dtype)


def _count(x: torch.Tensor, axes: Sequence[int]) -> Any:
    return math.prod(x.shape[axis] for axis in axes)


def _not_negative(number: Any) -> Any:
    """Return a number of elements, at least 0: where the correction exceeds their number, the kernel divides by 0."""
    return number if statically_known_true(number >= 0) else torch.sym_max(number, 0)  # type: ignore[no-untyped-call]  # in torch itself


def _var(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0] if is_long(x, _dims(x, dim)) else _STAYS


def _var_mean(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    axes = _dims(x, dim)
    if not is_long(x, axes):
        return _STAYS
    wide = x.to(torch.float32)
    center = wide.mean(axes, keepdim=True)
    away = wide - center
    left = _not_negative(_count(x, axes) - (1 if correction is None else correction))
    spread = (away * away).sum(axes, keepdim=keepdim) / left
    center = center if keepdim else center.squeeze(tuple(axes))
    return spread.to(x.dtype), center.to(x.dtype)


def _vector_norm(x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:  # noqa: A002, FBT001, FBT002 - schema
    axes = _dims(x, dim)
    if dtype is not None or ord in (0, math.inf, -math.inf) or not is_long(x, axes):
        return _STAYS
    size = x.to(torch.float32).abs()
    powers = size if ord == 1 else size * size if ord == 2 else size**ord  # noqa: PLR2004 - the usual norms
    added = powers.sum(axes, keepdim=keepdim)
    return (added if ord == 1 else added.sqrt() if ord == 2 else added ** (1 / ord)).to(x.dtype)  # noqa: PLR2004 - same


def _cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    wanted = x.dtype if dtype is None else dtype
    if wanted not in _NARROW or not x.dim() or not _is_more(x.shape[dim], LONG):
        return _STAYS
    added: torch.Tensor = _aten.cumsum.default(x.to(wanted).to(torch.float64), dim)
    return added.to(wanted)


def _group_norm(x: torch.Tensor, *given: Any) -> Any:
    _, _, n, c, hxw, group, _ = given
    if not is_long(x.reshape(n, group, c // group, hxw), [2, 3]):
        return _STAYS
    return _written_out(_aten.native_group_norm.default, x, *given)


def _layer_norm(x: torch.Tensor, normalized_shape: Sequence[Any], *given: Any) -> Any:
    if not is_long(x, range(x.dim() - len(normalized_shape), x.dim())):
        return _STAYS
    return _written_out(_aten.native_layer_norm.default, x, normalized_shape, *given)


def _instance_norm(x: torch.Tensor, *given: Any) -> Any:
    if not is_long(x, [0, *range(2, x.dim())]):
        return _STAYS
    return _written_out(_BATCH_NORM, x, *given)


def _written_out(target: Any, *args: Any) -> Any:
    """Decompose a normalisation as PyTorch does, which takes the variance and the mean with `var_mean`."""
    return _STAYS if has_mixed_types(*args) else _torch.decomposition_of(target)(*args)
