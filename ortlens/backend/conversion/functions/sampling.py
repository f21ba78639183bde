"""Samples of images at the places of a grid.

PyTorch moves a place outside of the image to its border, and then adds up the neighbours that exist. ONNX Runtime moves each neighbour, and
so multiplies an infinite one by a weight of 0. The places are moved here, and ONNX Runtime takes what is outside for 0.

It converts places to integers without a look at their size: NaN, infinity and places far away gave any element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_NEAREST, _BICUBIC = 1, 2
_ZEROS, _REFLECTION = 0, 2
_OUTSIDE, _FAR = 16.0, 1e6  # places that no element of an image is next to, and whole numbers far away


def grid_sampler_2d(x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:  # noqa: FBT001 - the schema
    """`aten.grid_sampler_2d`."""
    registered = basics.registered(_aten.grid_sampler_2d.default)
    if interpolation_mode == _BICUBIC or padding_mode == _ZEROS:
        places = _bounded(grid, _OUTSIDE if padding_mode == _ZEROS else _FAR)
        sampled = registered(x, places, interpolation_mode, padding_mode, align_corners)
        return sampled if interpolation_mode == _NEAREST else basics.opset().Add(sampled, _nan_of(grid))
    moved = _reflected(grid) if padding_mode == _REFLECTION else grid
    return registered(x, _inside(moved, x, align_corners=align_corners), interpolation_mode, _ZEROS, align_corners)


def _bounded(grid: Any, limit: float) -> Any:
    op = basics.opset()
    near = op.Clip(grid, basics.number(grid, -limit), basics.number(grid, limit))
    return basics.typed(op.Where(op.IsNaN(grid), basics.number(grid, -limit), near), int(grid.dtype), grid)


def _nan_of(grid: Any) -> Any:
    """NaN at the places that are infinite or NaN, else 0, as one channel."""
    op = basics.opset()
    nothing = op.ReduceSum(op.Mul(grid, basics.number(grid, 0.0)), op.Constant(value_ints=[-1]), keepdims=0)
    return op.Unsqueeze(nothing, op.Constant(value_ints=[1]))


def _reflected(grid: Any) -> Any:
    """Places between -1 and 1: a triangle wave with a period of 4."""
    op, two, one = basics.opset(), basics.number(grid, 2.0), basics.number(grid, 1.0)
    period = op.Mod(op.Add(grid, one), basics.number(grid, 4.0), fmod=1)
    return basics.typed(op.Sub(one, op.Abs(op.Sub(two, op.Abs(period)))), int(grid.dtype), grid)


def _inside(grid: Any, x: Any, *, align_corners: bool) -> Any:
    """Places from the middle of the first element to that of the last one; PyTorch takes the first one for NaN."""
    op = basics.opset()
    grid = basics.typed(op.Where(op.IsNaN(grid), basics.number(grid, -1.0), grid), int(grid.dtype), grid)
    if align_corners:
        return op.Clip(grid, basics.number(grid, -1.0), basics.number(grid, 1.0))
    sizes = list(x.shape[-2:])
    high: Any
    if all(isinstance(size, int) for size in sizes):
        import onnx_ir as ir

        high = ir.tensor([1 - 1 / size for size in reversed(sizes)], dtype=ir.DataType(int(grid.dtype)))  # a place in a grid is (x, y)
    else:
        turned = op.Gather(op.Shape(x), op.Constant(value_ints=[len(x.shape) - 1, len(x.shape) - 2]))
        one = basics.number(grid, 1.0)
        high = op.Sub(one, op.Div(one, op.CastLike(turned, grid)))
    raised = basics.typed(op.Max(grid, op.Neg(high)), int(grid.dtype), grid)
    return op.Min(raised, high)


FUNCTIONS: dict[Any, Callable[..., Any]] = {_aten.grid_sampler_2d.default: grid_sampler_2d}
"""Op overload -> function."""
