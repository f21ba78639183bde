"""Operators of structure whose ONNX functions differ from PyTorch for some arguments: pools, convolutions, resampling, indices."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens.backend.adaptive_windows import MOST_WINDOWS
from ortlens.backend.conversion.functions.pooling import rounds_down
from ortlens.backend.conversion.functions.reductions import MOST_PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten


def wrong_structure(node: torch.fx.Node) -> str | None:
    """Describe what the ONNX function (onnxscript 0.7, `torch_lib/ops/`) or ONNX Runtime does wrong for these arguments, or None."""
    judge = _JUDGES.get(node.target)
    return None if judge is None else judge(_arguments(node))


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Collect the arguments of a call by name, tensors as their example values, with the defaults of those that are not given."""
    target: Any = node.target
    schema = target._schema.arguments  # noqa: SLF001 - the operator's schema
    given = dict(zip((argument.name for argument in schema), node.args, strict=False)) | node.kwargs
    values = {argument.name: given.get(argument.name, argument.default_value) for argument in schema}
    return {name: value.meta.get("val") if isinstance(value, torch.fx.Node) else value for name, value in values.items()}


def _antialiased(given: dict[str, Any]) -> str | None:
    if not given["self"].dtype.is_floating_point:
        return "rounds integers otherwise"  # PyTorch weighs them with fixed-point numbers
    if given["align_corners"]:
        return "places the corners elsewhere when it smooths"
    sizes = zip(given["self"].shape[-2:], given["output_size"], (given["scales_h"], given["scales_w"]), strict=True)
    exact = all(scale is None or _is_ratio(scale, size, wanted) for size, wanted, scale in sizes)
    return None if exact else "takes the ratio of the sizes for the scale factor when it smooths"


def _is_ratio(scale: Any, size: Any, wanted: Any) -> bool:
    return all(isinstance(number, (int, float)) for number in (scale, size, wanted)) and scale * size == wanted


def _convolution(given: dict[str, Any]) -> str | None:
    if 0 in given["weight"].shape:
        return "refuses images without channels"
    if not given["weight"].dtype.is_floating_point:
        return "takes floats only"
    if not all(isinstance(number, int) for name in ("stride", "padding", "dilation", "output_padding") for number in given[name]):
        return "needs known strides, paddings and dilations"
    if not isinstance(given["groups"], int):
        return "needs a known number of groups"
    if not given["transposed"]:
        return None
    strides = [*given["stride"]] * (len(given["output_padding"]) // max(len(given["stride"]), 1) or 1)
    larger = any(isinstance(extra, int) and extra >= step for extra, step in zip(given["output_padding"], strides, strict=False))
    return "needs an output_padding smaller than the stride" if larger else None


def _pool(dims: int, given: dict[str, Any]) -> str | None:
    if not given["ceil_mode"]:
        return None
    shape, dilation = given["self"].shape[-dims:], given.get("dilation", 1)
    down = rounds_down(shape, given["kernel_size"], given["stride"], given["padding"], dilation)
    if down is None:
        return "counts windows that begin in the padding"
    return "ignores divisor_override in smaller windows" if not down and given.get("divisor_override") is not None else None


def _adaptive(given: dict[str, Any]) -> str | None:
    if not given["self"].dtype.is_floating_point:
        return "pools integers, which PyTorch refuses"
    sizes, wanted = given["self"].shape, given["output_size"]
    known = all(isinstance(size, int) and size for size in (*sizes, *wanted))
    return None if known and sum(wanted) <= MOST_WINDOWS else f"needs known sizes, and at most {MOST_WINDOWS} windows"


def _products(given: dict[str, Any]) -> str | None:
    shape = given["self"].shape
    few = not shape or (isinstance(shape[given["dim"]], int) and shape[given["dim"]] <= MOST_PRODUCTS)
    return None if few else f"multiplies at most {MOST_PRODUCTS} elements, whose number is known"


def _known(name: str, given: dict[str, Any]) -> str | None:
    return f"needs a known number as its argument {name}" if isinstance(given[name], (torch.SymInt, torch.SymFloat)) else None


def _bins(given: dict[str, Any]) -> str | None:
    if not given["self"].dtype.is_floating_point:
        return "counts floats only"
    if unknown := _known("min", given) or _known("max", given) or _known("bins", given):
        return unknown
    if not (math.isfinite(given["min"]) and math.isfinite(given["max"])):
        return "takes infinite bounds, which PyTorch refuses"
    return "needs bounds, which here follow from the data" if given["min"] == given["max"] else None


def _gather(given: dict[str, Any]) -> str | None:
    rank, wanted = given["self"].dim(), given["index"].dim()
    if not rank:
        return "does not check an index into a number"
    return "needs an index of as many dimensions" if wanted and rank != wanted else None


def _nothing(given: dict[str, Any]) -> str | None:
    return None if statically_known_true(given["self"].numel() > 0) else "gives a number for no elements, which PyTorch refuses"


def _repeats(given: dict[str, Any]) -> str | None:
    empty = not statically_known_true(given["repeats"].numel() > 0)
    return "gives nothing for no repeats, whatever size is asked for" if empty else None


def _reduction(given: dict[str, Any]) -> str | None:
    dtype, reduce = given["self"].dtype, given["reduce"]
    if dtype is torch.bool:
        return "has no reductions of booleans"
    return "rounds the mean of integers otherwise" if reduce == "mean" and not dtype.is_floating_point else None


def _mask(given: dict[str, Any]) -> str | None:
    return None if given["mask"].dtype is torch.bool else "takes masks that are not boolean, which PyTorch refuses"


def _slices(given: dict[str, Any]) -> str | None:
    added, to = list(given["source"].shape), list(given["self"].shape)
    if to:
        ranks, place = len(added) == len(to), given["dim"] % len(to)
        sizes = zip(to, added, strict=False)
        if not ranks or not all(statically_known_true(size == other) for dim, (size, other) in enumerate(sizes) if dim != place):
            return "broadcasts slices, which PyTorch refuses"
    return None


def _reduced_slices(given: dict[str, Any]) -> str | None:
    if given["source"].dim() != given["self"].dim():
        return "broadcasts slices, which PyTorch refuses"
    return _slices(given) or _reduction(given)


def _windows(given: dict[str, Any]) -> str | None:
    return "fails on tensors without elements" if 0 in given["self"].shape else None


def _samples(given: dict[str, Any]) -> str | None:
    return "fails where there is nothing to sample" if 0 in (*given["input"].shape, *given["grid"].shape) else None


def _normalisation(given: dict[str, Any]) -> str | None:
    return "ends the process for channels without elements" if 0 in given["input"].shape else None


def _dimensions(given: dict[str, Any]) -> str | None:
    return None if given["self"].dim() else "fails for tensors without dimensions"


def _padding(given: dict[str, Any]) -> str | None:
    nothing = not any(isinstance(size, int) and size for size in given["pad"]) and not all(isinstance(size, int) for size in given["pad"])
    order = "may pad nothing, and then keeps the order in memory" if nothing and not given["self"].is_contiguous() else None
    return _dimensions(given) or _known("value", given) or order


def _nonzero(given: dict[str, Any]) -> str | None:
    return None if given["self"].dim() else "gives one number a dimension"


def _sums_at_indices(given: dict[str, Any]) -> str | None:
    halves = (torch.float16, torch.bfloat16)
    if any(isinstance(size, int) and not size for size in (*given["values"].shape, *given["self"].shape)):
        return "fails where there is nothing to write"
    if not given["accumulate"]:
        return None
    places = [place for place, index in enumerate(given["indices"]) if index is not None]
    if places != list(range(places[0], places[-1] + 1)):
        return "adds at indices of neighbouring dimensions only"
    return "adds no floats of 16 bits" if given["self"].dtype in halves else None


_JUDGES: dict[Any, Callable[[dict[str, Any]], str | None]] = {
    _aten._upsample_bicubic2d_aa.default: _antialiased,  # noqa: SLF001 - an operator's name, here and below
    _aten._upsample_bilinear2d_aa.default: _antialiased,  # noqa: SLF001 - same
    _aten.adaptive_max_pool2d.default: _adaptive,
    _aten.adaptive_max_pool3d.default: _adaptive,
    _aten.avg_pool1d.default: functools.partial(_pool, 1),
    _aten.avg_pool2d.default: functools.partial(_pool, 2),
    _aten.avg_pool3d.default: functools.partial(_pool, 3),
    _aten.blackman_window.default: functools.partial(_known, "window_length"),
    _aten.constant_pad_nd.default: _padding,
    _aten.convolution.default: _convolution,
    _aten.cumprod.default: _products,
    _aten.flip.default: _dimensions,
    _aten.gather.default: _gather,
    _aten.grid_sampler_2d.default: _samples,
    _aten.group_norm.default: _normalisation,
    _aten.hamming_window.default: functools.partial(_known, "window_length"),
    _aten.hann_window.default: functools.partial(_known, "window_length"),
    _aten.histc.default: _bins,
    _aten.im2col.default: _windows,
    _aten.index_reduce.default: _reduced_slices,
    _aten.max.default: _nothing,
    _aten.repeat_interleave.Tensor: _repeats,
    _aten.min.default: _nothing,
    _aten.max_pool1d.default: functools.partial(_pool, 1),
    _aten.max_pool2d.default: functools.partial(_pool, 2),
    _aten.max_pool2d_with_indices.default: functools.partial(_pool, 2),
    _aten.max_pool3d.default: functools.partial(_pool, 3),
    _aten.max_pool3d_with_indices.default: functools.partial(_pool, 3),
    _aten.instance_norm.default: _normalisation,
    _aten.linalg_vector_norm.default: functools.partial(_known, "ord"),
    _aten.native_group_norm.default: _normalisation,
    _aten._unsafe_index_put.default: _sums_at_indices,  # noqa: SLF001 - same
    _aten.index_put.default: _sums_at_indices,
    _aten.nonzero.default: _nonzero,
    _aten.scatter_reduce.two: _reduction,
    _aten.index_add.default: _slices,
    _aten.masked_scatter.default: _mask,
    _aten.max_unpool2d.default: _windows,
    _aten.max_unpool3d.default: _windows,
    _aten.take.default: _windows,
}
