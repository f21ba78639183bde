"""Pools, with the number of windows that PyTorch makes, that propagate NaN and minus infinity; and their gradients.

Windows of different sizes are cut out one by one, one dimension after the other: reading them by their indices takes four times as long.
The gradient of an average pool is a transposed convolution with ones. Sums over a matrix of zeros and ones would be wrong beside infinity.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from ortlens import _torch
from ortlens.backend.basis import provenance
from ortlens.backend.basis.memory_order import is_contiguous, suggested_format
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op, serves_all_sizes
from ortlens.backend.operators.facts import STAYS, Call, decomposes, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten

_MOST_WINDOWS = 64
"""Windows of different sizes that are cut out one by one: each becomes some ONNX nodes."""


def _windows_of(size: int, wanted: int) -> list[tuple[int, int]]:
    """List the windows of an adaptive pool along one dimension: the first element of each and the one after its last."""
    return [(place * size // wanted, -(-(place + 1) * size // wanted)) for place in range(wanted)]


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
        return basics.typed(nan, basics.FLOAT, x)
    wide = x if not basics.is_half(x) else op.Cast(x, to=basics.FLOAT)
    return basics.typed(op.Sub(nan, op.Cast(op.IsInf(wide, detect_positive=0), to=basics.FLOAT)), basics.FLOAT, x)


def _marked(x: Any, pooled: Any, found: Any) -> Any:
    """Put NaN where a mark is positive, minus infinity where it is negative."""
    zero = op.Constant(value_float=0.0)
    if not _is_rectified(x):
        pooled = op.Where(op.Less(found, zero), basics.number(x, -math.inf), pooled)
    return op.Where(op.Greater(found, zero), basics.number(x, math.nan), pooled)


def _place_of(x: Any, place: Any, registered: Callable[..., Any], window: dict[str, Any]) -> Any:
    """Find the index of the largest value: that of the last of several NaN, and of the first of minus infinities alone."""
    dims = len(window["kernel_size"])
    found, _ = registered(basics.typed(op.Mul(_marks(x), _places(x, dims)), basics.FLOAT, x), **window)
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
    @facts.named(target)
    def average_pool(given: Any) -> Any:
        x, divisor = given.self, getattr(given, "divisor_override", None)
        window = _window(dims, given.kernel_size, given.stride, given.padding, 1)
        up = given.ceil_mode and not rounds_down(x.shape[-dims:], *window.values())
        del window["dilation"]
        with_padding = given.count_include_pad or divisor is not None
        pooled = basics.registered(target)(x, **window, ceil_mode=up, count_include_pad=with_padding)
        return pooled if divisor is None else op.Mul(pooled, basics.number(x, math.prod(window["kernel_size"]) / divisor))

    return average_pool


@torch_op(_aten.adaptive_max_pool2d.default, _aten.adaptive_max_pool3d.default)
def adaptive_max_pool(x: Any, output_size: Sequence[Any]) -> tuple[Any, Any]:
    """`aten.adaptive_max_pool2d` and `3d`: cuts windows out. A graph that reads indices stays in PyTorch: finding them is slow."""
    sizes = list(x.shape)
    if not all(isinstance(size, int) and size for size in [*sizes, *output_size]) or sum(output_size) > _MOST_WINDOWS:
        raise basics.NotConvertibleError("needs known sizes and few windows")
    for place, wanted in enumerate(output_size):
        axis = len(sizes) - len(output_size) + place
        parts = []
        for start, end in _windows_of(sizes[axis], wanted):
            bounds = (op.Constant(value_ints=[bound]) for bound in (start, end, axis))
            part = op.Slice(x, *bounds)
            part.dtype, part.shape = x.dtype, type(x.shape)([*sizes[:axis], end - start, *sizes[axis + 1 :]])
            parts.append(basics.own(_aten.amax.default)(part, (axis,), keepdim=True))
        sizes[axis] = wanted
        joined = op.Concat(*parts, axis=axis)
        joined.dtype, joined.shape = x.dtype, type(x.shape)(sizes)
        x = joined
    return x, op.Constant(value_int=0)


def _unpool_of(dims: int) -> Callable[..., Any]:
    """Make the inverse of a maximum pool: each plane by itself, so that an index outside of it fails the run."""

    def unpool(x: Any, indices: Any, output_size: Sequence[Any], *_: Any) -> Any:
        planes, flat, size = op.Shape(x, end=-dims), op.Constant(value_ints=[-1]), basics.size_vector(output_size)
        row = op.Concat(planes, flat, axis=0)
        nothing = op.Expand(basics.number(x, 0), op.Concat(planes, op.ReduceProd(size), axis=0))
        made = op.ScatterElements(nothing, op.Reshape(basics.not_from_the_end(indices), row), op.Reshape(x, row), axis=-1)
        return op.Reshape(made, op.Concat(planes, size, axis=0))

    return unpool


def _window(dims: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> dict[str, Any]:
    return {
        "kernel_size": _each(kernel_size, dims),
        "stride": _each(stride, dims) if stride else _each(kernel_size, dims),
        "padding": _each(padding, dims),
        "dilation": _each(dilation, dims),
    }


def _places(x: Any, dims: int) -> Any:
    """Count 1, 2, 3 ... over the last dimensions, as float32."""
    plane, one = op.Shape(x, start=-dims), op.Constant(value_int=1)
    end = op.Add(op.ReduceProd(plane, keepdims=0), one)
    return op.Reshape(op.Cast(op.Range(one, end, one), to=basics.FLOAT), plane)


def _pool(dims: int, call: Call) -> str | None:
    if not call["ceil_mode"]:
        return None
    shape, dilation = call["self"].shape[-dims:], call.get("dilation", 1)
    down = rounds_down(shape, call["kernel_size"], call["stride"], call["padding"], dilation)
    if down is None:
        return "counts windows that begin in the padding"
    return "ignores divisor_override in smaller windows" if not down and call.get("divisor_override") is not None else None


for _dims, _average, *_maxima in (
    (1, _aten.avg_pool1d.default),
    (2, _aten.avg_pool2d.default, _aten.max_pool2d.default, _aten.max_pool2d_with_indices.default),
    (3, _aten.avg_pool3d.default, _aten.max_pool3d.default, _aten.max_pool3d_with_indices.default),
):
    torch_op(_average)(_average_pool_of(_average, _dims))
    for _maximum in _maxima:
        torch_op(_maximum)(_pool_of(_maximum, _dims))
    facts.wrong(_average, *_maxima, when=functools.partial(_pool, _dims))
torch_op(_aten.max_unpool2d.default)(_unpool_of(2))
torch_op(_aten.max_unpool3d.default)(_unpool_of(3))

facts.keeps_whole(_aten.max_pool1d.default, when=lambda tracing: not tracing.with_gradient)


@decomposes(_aten.max_pool1d.default)
def _max_pool1d(
    tensor: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """Make a pool in two dimensions of it, as PyTorch does where it needs gradients."""
    sizes = ([1, *kernel_size], [1, *stride] if stride else [], [0, *padding], [1, *dilation])
    return _aten.max_pool2d_with_indices(tensor.unsqueeze(-2), *sizes, ceil_mode)[0].squeeze(-2)


@decomposes(_aten.adaptive_max_pool2d.default, _aten.adaptive_max_pool3d.default)
def _adaptive_max_pool(tensor: torch.Tensor, output_size: Sequence[int]) -> Any:
    """Make an ordinary pool of an adaptive one whose windows all have the same size; the others have an ONNX function."""
    sizes: Sequence[Any] = tensor.shape[-len(output_size) :]
    pairs = list(zip(sizes, output_size, strict=True))
    if not tensor.is_floating_point():  # PyTorch refuses it
        return STAYS
    if any(not isinstance(size, int) and wanted != 1 for size, wanted in pairs) or any(size == 0 or wanted == 0 for size, wanted in pairs):
        return STAYS
    if any(size % wanted for size, wanted in pairs):
        return STAYS
    if all(wanted == 1 for wanted in output_size):
        lowered = torch.argmax(tensor.flatten(-len(output_size)), -1)
        return tensor.amax(tuple(range(-len(output_size), 0)), keepdim=True), lowered.reshape([*lowered.shape, *output_size])
    pool = _aten.max_pool2d_with_indices if len(output_size) == 2 else _aten.max_pool3d_with_indices  # noqa: PLR2004 - dimensions
    return pool(tensor, [size // wanted for size, wanted in zip(sizes, output_size, strict=True)])


@decomposes(_aten._adaptive_avg_pool2d.default)
def adaptive_average_2d(tensor: torch.Tensor, output_size: Sequence[int]) -> Any:
    """Pool by windows if there are few, else as torch decomposes `aten._adaptive_avg_pool2d`: to a pool that needs channels."""
    empty = any(isinstance(size, int) and not size for size in (*tensor.shape, *output_size))
    if empty or not tensor.is_floating_point():  # PyTorch refuses integers
        return STAYS
    if _are_known(tensor.shape[-2:], output_size) and not _are_even(tensor.shape[-2:], output_size) and sum(output_size) <= _MOST_WINDOWS:
        return _means(tensor, output_size)
    if serves_all_sizes() and not _are_known(tensor.shape[-2:], output_size):  # torch makes the sizes of tracing constants
        return STAYS
    return _torch.decomposition_of(_aten._adaptive_avg_pool2d.default)(tensor, output_size)


@decomposes(_aten._adaptive_avg_pool3d.default)
def adaptive_average_3d(tensor: torch.Tensor, output_size: Sequence[int]) -> Any:
    """Decompose `aten._adaptive_avg_pool3d`, which torch does not decompose."""
    sizes = tensor.shape[-3:]
    if not _are_known(sizes, output_size) or 0 in sizes or 0 in output_size or not tensor.is_floating_point():
        return STAYS
    if _are_even(sizes, output_size):
        return _aten.avg_pool3d.default(tensor, [size // wanted for size, wanted in zip(sizes, output_size, strict=True)])
    return _means(tensor, output_size) if sum(output_size) <= _MOST_WINDOWS else STAYS


def _means(tensor: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    for place, wanted in enumerate(output_size):
        dim = tensor.dim() - len(output_size) + place
        if tensor.shape[dim] != wanted:
            parts = [
                tensor.narrow(dim, start, end - start).mean(dim, keepdim=True) for start, end in _windows_of(tensor.shape[dim], wanted)
            ]
            tensor = torch.cat(parts, dim)
    return tensor


def maximum_backward_of(dims: int) -> Callable[..., torch.Tensor]:
    """Make the decomposition of the gradient of a maximum pool with indices over some number of dimensions."""

    def backward(grad: torch.Tensor, tensor: torch.Tensor, *arguments: Any) -> torch.Tensor:
        indices: torch.Tensor = arguments[-1]
        flat = torch.zeros_like(tensor, memory_format=torch.contiguous_format).flatten(-dims)
        return flat.scatter_add(-1, indices.flatten(-dims), grad.flatten(-dims)).reshape(tensor.shape)

    return backward


def average_backward_of(target: Any, dims: int) -> Any:
    """Make the decomposition of the gradient of an average pool over some number of dimensions."""

    @facts.named(target)
    def backward(given: Any) -> Any:
        grad, tensor, divisor = given.grad_output, given.self, given.divisor_override
        if not _is_convolved(grad, tensor):
            return STAYS
        windows, pads = _each(given.kernel_size, dims), _each(given.padding, dims)
        steps = _each(given.stride, dims) if given.stride else windows
        for place, form in enumerate(zip(windows, steps, pads, strict=True)):
            dim = grad.dim() - dims + place
            if divisor is None:
                grad = grad / _counts(grad, dim, form, tensor.shape[dim], padded=given.count_include_pad)
        return _spread(grad if divisor is None else grad / divisor, tensor, windows, steps, pads)

    return backward


@decomposes(_aten._adaptive_avg_pool2d_backward.default, _aten._adaptive_avg_pool3d_backward.default)
def adaptive_average_backward(grad: torch.Tensor, tensor: torch.Tensor) -> Any:
    """Decompose the gradient of an adaptive average pool whose windows all have the same size."""
    dims = grad.dim() - 2 if grad.dim() > 3 else 2  # noqa: PLR2004 - with or without a batch
    wanted = grad.shape[-dims:]
    if not _is_convolved(grad, tensor) or not _are_even(tensor.shape[-dims:], wanted):
        return STAYS
    windows = [size // made for size, made in zip(tensor.shape[-dims:], wanted, strict=True)]
    return _spread(grad / math.prod(windows), tensor, windows, windows, [0] * dims)


def _spread(grad: torch.Tensor, tensor: torch.Tensor, windows: list[int], steps: list[int], pads: list[int]) -> Any:
    """Give each element of the input the sum of the gradients of the windows that cover it."""
    dims = len(windows)
    sizes = tensor.shape[-dims:]
    single = grad.reshape(-1, 1, *grad.shape[-dims:])
    ones = torch.ones([1, 1, *windows], dtype=grad.dtype, device=grad.device)
    made = _aten.convolution.default(single, ones, None, steps, [0] * dims, [1] * dims, True, [0] * dims, 1)  # noqa: FBT003 - transposed
    for place, (size, pad) in enumerate(zip(sizes, pads, strict=True)):
        dim = place + 2
        made = made.narrow(dim, pad, min(size, made.shape[dim] - pad))
        if made.shape[dim] < size:  # elements after the last window
            made = _aten.constant_pad_nd.default(made, [0, 0] * (dims + 1 - dim) + [0, size - made.shape[dim]])
    spread: torch.Tensor = made.reshape(tensor.shape)  # a part of what was padded; the kernel's lies as its input, in 3-D it is contiguous
    layout = suggested_format(tensor) if dims == 2 else torch.contiguous_format  # noqa: PLR2004 - the kernels differ
    if layout is torch.contiguous_format and is_contiguous(spread):
        return spread
    return _aten.clone.default(spread, memory_format=layout)


def _counts(grad: torch.Tensor, dim: int, form: tuple[int, int, int], size: int, *, padded: bool) -> torch.Tensor | int:
    window, step, pad = form
    starts = [place * step - pad for place in range(grad.shape[dim])]
    ends = [min(start + window, size + pad) for start in starts]
    counts = [end - start if padded else min(end, size) - max(start, 0) for start, end in zip(starts, ends, strict=True)]
    if len(set(counts)) == 1:
        return counts[0]
    start = torch.arange(grad.shape[dim], device=grad.device) * step - pad
    end = (start + window).clamp(max=size + pad)
    many = end - start if padded else end.clamp(max=size) - start.clamp(min=0)
    return many.reshape([-1 if place == dim else 1 for place in range(grad.dim())]).to(grad.dtype)


def _is_convolved(grad: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Tell whether ONNX Runtime convolves such tensors: its CPU provider does in float32 only."""
    return grad.dtype is torch.float32 and _are_known(grad.shape, tensor.shape) and 0 not in (*grad.shape, *tensor.shape)


def _are_even(sizes: Sequence[int], wanted: Sequence[int]) -> bool:
    return all(made and size % made == 0 for size, made in zip(sizes, wanted, strict=True))


def _are_known(*shapes: Sequence[Any]) -> bool:
    return all(isinstance(size, int) for shape in shapes for size in shape)


for _target, _dims in ((_aten.avg_pool2d_backward.default, 2), (_aten.avg_pool3d_backward.default, 3)):
    decomposes(_target)(average_backward_of(_target, _dims))
decomposes(_aten.adaptive_max_pool2d_backward.default)(maximum_backward_of(2))
decomposes(_aten.adaptive_max_pool3d_backward.default, _aten.max_pool3d_with_indices_backward.default)(maximum_backward_of(3))
facts.computes_in_one_pass(_aten.max_pool2d_with_indices_backward.default)


def _has_many_windows(call: Call) -> bool:
    sizes, wanted = call["self"].shape, call["output_size"]
    return not all(isinstance(size, int) and size for size in (*sizes, *wanted)) or sum(wanted) > _MOST_WINDOWS


def _has_large_indices(call: Call) -> bool:
    """Tell whether the places of the maxima of a pool are read, and there are many."""
    return facts.reads_index(call) and provenance.is_large(call.node.meta["val"][1])


_ADAPTIVE = (_aten.adaptive_max_pool2d.default, _aten.adaptive_max_pool3d.default)
facts.wrong(*_ADAPTIVE, reason=f"pools integers{facts.REFUSED}", when=facts.is_whole)
facts.wrong(*_ADAPTIVE, reason=f"needs known sizes, and at most {_MOST_WINDOWS} windows", when=_has_many_windows)
facts.lacks_outputs(*_ADAPTIVE, count=2)
_UNPOOLS = (_aten.max_unpool2d.default, _aten.max_unpool3d.default)
facts.wrong(*_UNPOOLS, reason="fails on tensors without elements", when=facts.lacks_elements("self"))
facts.wrong(*_UNPOOLS, reason=f"takes whole numbers{facts.REFUSED}", when=facts.is_whole)
facts.wrong(_aten.avg_pool3d.default, reason=f"takes float16{facts.REFUSED}", when=facts.is_half_on_cpu)

facts.leaves(_aten.max_pool1d.default, when=facts.is_large_on_cpu)
# One thread, 128 rows of 2048, by twos: PyTorch 59 us, MaxPool 490 us.
facts.slow(_aten.max_pool1d.default, reason="ONNX Runtime takes about 8 times as long")
# One thread, 16 images of 32 channels of 64 x 64 and two smaller layers: the forward of a convolutional net takes 56 ms, with its pools in
# PyTorch 40 ms.
facts.slow(
    _aten.max_pool2d_with_indices.default,
    reason="ONNX Runtime loses NaN and its place, and with the operators that find them a pool takes about twice as long",
    when=_has_large_indices,
)
