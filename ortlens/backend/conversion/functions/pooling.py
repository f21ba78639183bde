"""Pools, with the number of windows that PyTorch makes, that propagate NaN and minus infinity; samples of images at the places of a grid.

PyTorch moves a place outside of the image to its border, and then adds up the neighbours that exist. ONNX Runtime moves each neighbour, and
so multiplies an infinite one by a weight of 0. The places are moved here, and ONNX Runtime takes what is outside for 0. It converts places
to integers without a look at their size: NaN, infinity and places far away gave any element.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from ortlens.backend.basis.adaptive_windows import MOST_WINDOWS, windows_of
from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.basics import op, torch_op
from ortlens.backend.conversion.functions.indexing import not_from_the_end
from ortlens.backend.conversion.functions.reductions import amax
from ortlens.backend.conversion.functions.shapes import size_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_BLOCK = 16  # channels that ONNX Runtime keeps together, at most


def rounds_down(sizes: Sequence[Any], kernel: Any, stride: Any, padding: Any, dilation: Any) -> bool | None:
    """Tell whether a pool with `ceil_mode` makes as many windows as one without; None if that is unknown or differs by dimension.

    PyTorch leaves out a last window that would begin in the padding, ONNX Runtime does not; False if none begins there.
    """
    many = len(sizes)
    windows, pads, gaps = (_each(value, many) for value in (kernel, padding, dilation))
    steps = _each(stride, many) if stride else windows
    possible = {True, False}
    for size, window, step, pad, gap in zip(sizes, windows, steps, pads, gaps, strict=True):
        possible &= _roundings(size, gap * (window - 1) + 1, step, pad)
    return (True in possible) if possible else None


def _roundings(size: Any, extent: int, step: int, pad: int) -> set[bool]:
    """List the ways, down or up, in which the number of windows of one dimension may be rounded."""
    if not isinstance(size, int):
        return {False} if pad == 0 and step <= extent else set()
    room = size + 2 * pad - extent
    if room % step == 0:
        return {True, False}
    return {-(-room // step) * step >= size + pad}  # whether the window that is gained by rounding up begins in the padding


def _each(value: Any, many: int) -> list[Any]:
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * many if len(numbers) == 1 else numbers


def _pool_of(target: Any, dims: int) -> Callable[..., Any]:
    """Make a maximum pool with minus infinity, where ONNX Runtime starts at the lowest number, and NaN, which it drops at some places."""

    def max_pool(x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
        registered = basics.registered(target)
        window = _window(dims, kernel_size, stride, padding, dilation)
        window["ceil_mode"] = ceil_mode and not rounds_down(x.shape[-dims:], *window.values())
        pooled = registered(x, **window)
        if not basics.is_float(x):
            return pooled
        indexed = isinstance(pooled, (list, tuple))
        values = pooled[0] if indexed else pooled
        if _is_blocked(x, window):
            values = op.Add(values, _nan_in_windows(x, window))
        else:
            found = registered(_marks(x), **window)
            values = _marked(x, values, found[0] if indexed else found)
        return (values, _place_of(x, pooled[1], registered, window)) if indexed else values

    return max_pool


def _marks(x: Any) -> Any:
    """Mark NaN with 1, minus infinity with -1 and other numbers with 0, in float32."""
    nan = op.Cast(op.IsNaN(x), to=basics.FLOAT)
    if _is_rectified(x):
        return _typed_float(nan, x)
    wide = x if not basics.is_half(x) else op.Cast(x, to=basics.FLOAT)
    return _typed_float(op.Sub(nan, op.Cast(op.IsInf(wide, detect_positive=0), to=basics.FLOAT)), x)


def _marked(x: Any, pooled: Any, found: Any) -> Any:
    """Put NaN where a mark is positive, minus infinity where it is negative."""
    zero = op.Constant(value_float=0.0)
    if not _is_rectified(x):
        pooled = op.Where(op.Less(found, zero), basics.number(x, -math.inf), pooled)
    return op.Where(op.Greater(found, zero), basics.number(x, math.nan), pooled)


def _place_of(x: Any, place: Any, registered: Callable[..., Any], window: dict[str, Any]) -> Any:
    """Find the index of the largest value: that of the last of several NaN, and of the first of minus infinities alone."""
    dims = len(window["kernel_size"])
    found, _ = registered(_typed_float(op.Mul(_marks(x), _places(x, dims)), x), **window)
    marked = op.Sub(op.Cast(op.Abs(found), to=basics.INT64), op.Constant(value_int=1))
    return op.Where(op.Equal(found, op.Constant(value_float=0.0)), place, marked)


def _is_rectified(x: Any) -> bool:
    made = x.producer()
    return made is not None and made.op_type == "Relu"


def _is_blocked(x: Any, window: dict[str, Any]) -> bool:
    """Tell whether ONNX Runtime computes a pool beside convolutions in its blocked order, which any other operator would interrupt."""
    images = len(window["kernel_size"]) == 2 and len(x.shape) == 4  # noqa: PLR2004 - dimensions
    channels = x.shape[1] if images else None
    return images and _is_rectified(x) and int(x.dtype) == basics.FLOAT and not window["ceil_mode"] and _fills_blocks(channels)


def _fills_blocks(channels: Any) -> bool:
    return isinstance(channels, int) and channels > 0 and channels % _BLOCK == 0


def _nan_in_windows(x: Any, window: dict[str, Any]) -> Any:
    """Mark windows that hold NaN with NaN, others with 0; no number may be negative. It is the rectified negative sum, as a convolution."""
    sizes, channels = window["kernel_size"], int(x.shape[1])
    weight = ir.tensor(np.full((channels, 1, *sizes), -1, np.float32))
    summed = op.Conv(
        x,
        weight,
        group=channels,
        kernel_shape=sizes,
        strides=window["stride"],
        pads=[*window["padding"], *window["padding"]],
        dilations=window["dilation"],
    )
    return op.Relu(summed)


def _average_pool_of(target: Any, dims: int) -> Callable[..., Any]:
    def average_pool(
        x: Any,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        window = _window(dims, kernel_size, stride, padding, 1)
        up = ceil_mode and not rounds_down(x.shape[-dims:], *window.values())
        del window["dilation"]
        pooled = basics.registered(target)(x, **window, ceil_mode=up, count_include_pad=count_include_pad or divisor_override is not None)
        if divisor_override is None:
            return pooled
        return op.Mul(pooled, basics.number(x, math.prod(window["kernel_size"]) / divisor_override))

    return average_pool


@torch_op(_aten.adaptive_max_pool2d.default, _aten.adaptive_max_pool3d.default)
def adaptive_max_pool(x: Any, output_size: Sequence[Any]) -> tuple[Any, Any]:
    """`aten.adaptive_max_pool2d` and `3d`: cuts windows out. A graph that reads indices stays in PyTorch: finding them is slow."""
    sizes = list(x.shape)
    if not all(isinstance(size, int) and size for size in [*sizes, *output_size]) or sum(output_size) > MOST_WINDOWS:
        raise basics.NotConvertibleError("needs known sizes and few windows")
    for place, wanted in enumerate(output_size):
        axis = len(sizes) - len(output_size) + place
        parts = []
        for start, end in windows_of(sizes[axis], wanted):
            bounds = (op.Constant(value_ints=[bound]) for bound in (start, end, axis))
            part = op.Slice(x, *bounds)
            part.dtype, part.shape = x.dtype, type(x.shape)([*sizes[:axis], end - start, *sizes[axis + 1 :]])
            parts.append(amax(part, (axis,), keepdim=True))
        sizes[axis] = wanted
        joined = op.Concat(*parts, axis=axis)
        joined.dtype, joined.shape = x.dtype, type(x.shape)(sizes)
        x = joined
    return x, op.Constant(value_int=0)


def _unpool_of(dims: int) -> Callable[..., Any]:
    """Make the inverse of a maximum pool: each plane by itself, so that an index outside of it fails the run."""

    def unpool(x: Any, indices: Any, output_size: Sequence[Any], *_: Any) -> Any:
        planes, flat, size = op.Shape(x, end=-dims), op.Constant(value_ints=[-1]), size_vector(output_size)
        row = op.Concat(planes, flat, axis=0)
        nothing = op.Expand(basics.number(x, 0), op.Concat(planes, op.ReduceProd(size), axis=0))
        made = op.ScatterElements(nothing, op.Reshape(not_from_the_end(indices), row), op.Reshape(x, row), axis=-1)
        return op.Reshape(made, op.Concat(planes, size, axis=0))

    return unpool


def _window(dims: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> dict[str, Any]:
    return {
        "kernel_size": _each(kernel_size, dims),
        "stride": _each(stride, dims) if stride else _each(kernel_size, dims),
        "padding": _each(padding, dims),
        "dilation": _each(dilation, dims),
    }


def _typed_float(made: Any, x: Any) -> Any:
    """Set the type and shape that the registry's function reads: those of `x`, in float32."""
    made.dtype, made.shape = type(x.dtype)(basics.FLOAT), x.shape
    return made


def _places(x: Any, dims: int) -> Any:
    """Count 1, 2, 3 ... over the last dimensions, as float32."""
    plane, one = op.Shape(x, start=-dims), op.Constant(value_int=1)
    end = op.Add(op.ReduceProd(plane, keepdims=0), one)
    return op.Reshape(op.Cast(op.Range(one, end, one), to=basics.FLOAT), plane)


torch_op(_aten.avg_pool1d.default)(_average_pool_of(_aten.avg_pool1d.default, 1))
torch_op(_aten.avg_pool2d.default)(_average_pool_of(_aten.avg_pool2d.default, 2))
torch_op(_aten.avg_pool3d.default)(_average_pool_of(_aten.avg_pool3d.default, 3))
torch_op(_aten.max_pool2d.default)(_pool_of(_aten.max_pool2d.default, 2))
torch_op(_aten.max_pool3d.default)(_pool_of(_aten.max_pool3d.default, 3))
torch_op(_aten.max_pool2d_with_indices.default)(_pool_of(_aten.max_pool2d_with_indices.default, 2))
torch_op(_aten.max_pool3d_with_indices.default)(_pool_of(_aten.max_pool3d_with_indices.default, 3))
torch_op(_aten.max_unpool2d.default)(_unpool_of(2))
torch_op(_aten.max_unpool3d.default)(_unpool_of(3))


_NEAREST, _BICUBIC = 1, 2
_ZEROS, _REFLECTION = 0, 2
_OUTSIDE, _FAR = 16.0, 1e6  # places that no element of an image is next to, and whole numbers far away


@torch_op(_aten.grid_sampler_2d.default)
def grid_sampler_2d(x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    registered = basics.registered(_aten.grid_sampler_2d.default)
    if interpolation_mode == _BICUBIC or padding_mode == _ZEROS:
        places = _bounded(grid, _OUTSIDE if padding_mode == _ZEROS else _FAR)
        sampled = registered(x, places, interpolation_mode, padding_mode, align_corners)
        return sampled if interpolation_mode == _NEAREST else op.Add(sampled, _nan_of(grid))
    if interpolation_mode == _NEAREST and padding_mode == _REFLECTION:
        return registered(x, _middles(grid, x, align_corners=align_corners), interpolation_mode, _ZEROS, align_corners=False)
    moved = _reflected(grid) if padding_mode == _REFLECTION else grid
    return registered(x, _inside(moved, x, align_corners=align_corners), interpolation_mode, _ZEROS, align_corners)


def _bounded(grid: Any, limit: float) -> Any:
    near = op.Clip(grid, basics.number(grid, -limit), basics.number(grid, limit))
    return basics.typed(op.Where(op.IsNaN(grid), basics.number(grid, -limit), near), int(grid.dtype), grid)


def _nan_of(grid: Any) -> Any:
    """NaN at the places that are infinite or NaN, else 0, as one channel."""
    nothing = op.ReduceSum(op.Mul(grid, basics.number(grid, 0.0)), op.Constant(value_ints=[-1]), keepdims=0)
    return op.Unsqueeze(nothing, op.Constant(value_ints=[1]))


def _reflected(grid: Any) -> Any:
    """Places between -1 and 1: a triangle wave with a period of 4."""
    two, one = basics.number(grid, 2.0), basics.number(grid, 1.0)
    period = op.Mod(op.Add(grid, one), basics.number(grid, 4.0), fmod=1)
    return basics.typed(op.Sub(one, op.Abs(op.Sub(two, op.Abs(period)))), int(grid.dtype), grid)


def _inside(grid: Any, x: Any, *, align_corners: bool) -> Any:
    """Places from the middle of the first element to that of the last one; PyTorch takes the first one for NaN."""
    grid = basics.typed(op.Where(op.IsNaN(grid), basics.number(grid, -1.0), grid), int(grid.dtype), grid)
    if align_corners:
        return op.Clip(grid, basics.number(grid, -1.0), basics.number(grid, 1.0))
    one = basics.number(grid, 1.0)
    high = op.Sub(one, op.Div(one, _sizes(x, grid)))
    raised = basics.typed(op.Max(grid, op.Neg(high)), int(grid.dtype), grid)
    return op.Min(raised, high)


def _sizes(x: Any, grid: Any) -> Any:
    """Return the sizes of images in the order of a place in a grid, which is (x, y), and in its type."""
    sizes = list(x.shape[-2:])
    if all(isinstance(size, int) for size in sizes):
        return op.Constant(value=ir.tensor([float(size) for size in reversed(sizes)], dtype=ir.DataType(int(grid.dtype))))
    turned = op.Gather(op.Shape(x), op.Constant(value_ints=[len(x.shape) - 1, len(x.shape) - 2]))
    return op.CastLike(turned, grid)


def _middles(grid: Any, x: Any, *, align_corners: bool) -> Any:
    """Move places, which are reflected at the borders, to the middle of the nearest element, step by step as PyTorch does.

    A place between two elements is that of the even one, to the last bit of these steps; in another order a third of them change sides.
    Source: `ComputeLocationBase` in `aten/src/ATen/native/cpu/GridSamplerKernel.cpp`.
    """

    def typed(made: Any) -> Any:
        return basics.typed(made, int(grid.dtype), grid)

    sizes, (zero, half, one, two) = _sizes(x, grid), (basics.number(grid, number) for number in (0.0, 0.5, 1.0, 2.0))
    last = op.Sub(sizes, one)
    span, edge = (op.Max(typed(op.Mul(last, two)), one), zero) if align_corners else (op.Mul(sizes, two), half)
    place = op.Sub(op.Mul(op.Add(grid, one), op.Div(last if align_corners else sizes, two)), edge)
    away = op.Abs(op.Add(place, edge))
    rest = op.Sub(away, op.Mul(op.Floor(op.Div(away, span)), span))
    inside = op.Sub(op.Min(typed(rest), op.Sub(span, rest)), edge)
    inside = op.Max(typed(op.Min(typed(inside), last)), zero)
    element = op.Round(op.Where(op.IsNaN(inside), zero, inside))
    return op.Sub(op.Div(op.Add(op.Mul(element, two), one), sizes), one)
