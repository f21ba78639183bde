"""Sums of many numbers, in stages; pools that ONNX lacks, and gradients of pools.

ONNX Runtime adds 32-bit floats one after the other, so that the error grows with their number: the mean of 4 million numbers is off in the
third digit. PyTorch adds in pairs. Here, a long reduction is done dimension by dimension, and what is long within one dimension in float64.
A symbolic size is compared with the limit as Dynamo's graph is traced: the first call that crosses it makes a new graph. A program serves
all sizes, so there a symbolic one is taken for long.

Windows of different sizes are cut out one by one, one dimension after the other: reading them by their indices takes four times as long.
The gradient of an average pool is a transposed convolution with ones. Sums over a matrix of zeros and ones would be wrong beside infinity.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_true, statically_known_true

from ortlens import _torch
from ortlens.backend.basis.adaptive_windows import MOST_WINDOWS, windows_of
from ortlens.backend.basis.memory_order import is_contiguous
from ortlens.backend.lowering.kernel_strides import suggested_format
from ortlens.backend.lowering.type_promotion import has_mixed_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_aten = torch.ops.aten
_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is
LONG = 4096
"""Elements from which a sum across memory is staged; up to here, equal addends are off by 3e-5 at most."""
LONG_IN_ROW = 32768
"""The same for the innermost dimensions, where ONNX Runtime adds with several accumulators."""
_BATCH_NORM = _aten._native_batch_norm_legit.no_stats  # noqa: SLF001 - an operator's name
_BATCH_NORM_OF_INFERENCE = _aten._native_batch_norm_legit_no_training.default  # noqa: SLF001 - same
_BATCH_NORM_OF_TRAINING = _aten._native_batch_norm_legit_functional.default  # noqa: SLF001 - same
_normalises: contextvars.ContextVar[bool] = contextvars.ContextVar("normalises", default=False)
"""Whether a normalisation is being decomposed."""
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def long_reductions() -> dict[Any, Callable[..., Any]]:
    """List the decompositions, by op overload; each leaves the usual as it is: few addends, and an epsilon that no device clamps."""
    return {
        _aten.sum.default: lambda x, *, dtype=None: _sum(x, None, dtype=dtype),
        _aten.sum.dim_IntList: _sum,
        _aten.mean.default: lambda x, *, dtype=None: _mean(x, None, dtype=dtype),
        _aten.mean.dim: _mean,
        _aten.var_mean.correction: _var_mean,
        _aten.linalg_vector_norm.default: _vector_norm,
        _aten.cumsum.default: _cumsum,
        _aten.native_group_norm.default: _group_norm,
        _aten.native_layer_norm.default: _layer_norm,
        _BATCH_NORM: _instance_norm,
        _BATCH_NORM_OF_INFERENCE: _norm_by_statistics,
        _BATCH_NORM_OF_TRAINING: lambda x, *given: _STAYS if x.is_complex() else _written_out(_BATCH_NORM_OF_TRAINING, x, *given),
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


_SERVES_ALL_SIZES = contextvars.ContextVar("serves_all_sizes", default=False)


@contextlib.contextmanager
def for_all_sizes() -> Iterator[None]:
    """Decompose for whatever size comes, without guards: no other graph is made for a size that is not as in tracing."""
    token = _SERVES_ALL_SIZES.set(True)
    try:
        yield
    finally:
        _SERVES_ALL_SIZES.reset(token)


def _is_more(count: Any, limit: int) -> bool:
    """Tell whether a size exceeds a limit; one that is known at run time only does."""
    if isinstance(count, int):
        return count > limit
    if _SERVES_ALL_SIZES.get():
        return not statically_known_true(count <= limit)
    return bool(guard_or_true(count > limit))


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


def _var_mean(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Compute the statistics of a long normalisation in float32, in which their epsilon hides the last digits; others are in float64."""
    axes = _dims(x, dim)
    if not _normalises.get() or correction != 0 or not is_long(x, axes):
        return _STAYS
    wide = x.to(torch.float32)
    center = wide.mean(axes, keepdim=True)
    away = wide - center
    spread = (away * away).sum(axes, keepdim=keepdim) / _count(x, axes)
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
    added: torch.Tensor = _aten.cumsum.default(torch.ops.prims.convert_element_type(x.to(wanted), torch.float64), dim)
    return added.to(wanted)


def _group_norm(x: torch.Tensor, *given: Any) -> Any:
    _, _, n, c, hxw, group, eps = given
    if not is_long(x.reshape(n, group, c // group, hxw), [2, 3]) and not _is_clamped(x, eps):
        return _STAYS
    return _written_out(_aten.native_group_norm.default, x, *given)


def _layer_norm(x: torch.Tensor, normalized_shape: Sequence[Any], *given: Any) -> Any:
    if not is_long(x, range(x.dim() - len(normalized_shape), x.dim())):
        return _STAYS
    return _written_out(_aten.native_layer_norm.default, x, normalized_shape, *given)


def _instance_norm(x: torch.Tensor, *given: Any) -> Any:
    if not is_long(x, [0, *range(2, x.dim())]) and not _is_clamped(x, given[-1]):
        return _STAYS
    return _written_out(_BATCH_NORM, x, *given)


def _norm_by_statistics(x: torch.Tensor, *given: Any) -> Any:
    *parameters, momentum, eps = given
    if not _is_clamped(x, eps):
        return _STAYS
    return _written_out(_aten._native_batch_norm_legit.default, x, *parameters, False, momentum, eps)  # noqa: SLF001, FBT003 - a name; not in training


def _is_clamped(x: torch.Tensor, eps: float) -> bool:
    """Tell whether ONNX Runtime normalises with another epsilon: on CUDA at least `CUDNN_BN_MIN_EPSILON`, 0 since cuDNN 7.5.

    Source: `ClampCudnnBatchNormEpsilon` in `onnxruntime/core/providers/cuda/cudnn_common.h`, which InstanceNormalization and
    BatchNormalization call; LayerNormalization does not.
    """
    return x.device.type == "cuda" and eps < 0


def _written_out(target: Any, *args: Any) -> Any:
    """Decompose a normalisation as PyTorch does, which takes the variance and the mean with `var_mean`."""
    if has_mixed_types(*args):
        return _STAYS
    before = _normalises.set(True)
    try:
        return _torch.decomposition_of(target)(*args)
    finally:
        _normalises.reset(before)


def adaptive_average_2d(tensor: torch.Tensor, output_size: Sequence[int]) -> Any:
    """Pool by windows if there are few, else as torch decomposes `aten._adaptive_avg_pool2d`: to a pool that needs channels."""
    empty = any(isinstance(size, int) and not size for size in (*tensor.shape, *output_size))
    if empty or not tensor.is_floating_point():  # PyTorch refuses integers
        return _STAYS
    if _are_known(tensor.shape[-2:], output_size) and not _are_even(tensor.shape[-2:], output_size) and sum(output_size) <= MOST_WINDOWS:
        return _means(tensor, output_size)
    if _SERVES_ALL_SIZES.get() and not _are_known(tensor.shape[-2:], output_size):  # torch makes the sizes of tracing constants
        return _STAYS
    return _torch.decomposition_of(_aten._adaptive_avg_pool2d.default)(tensor, output_size)  # noqa: SLF001 - an operator's name


def adaptive_average_3d(tensor: torch.Tensor, output_size: Sequence[int]) -> Any:
    """Decompose `aten._adaptive_avg_pool3d`, which torch does not decompose."""
    sizes = tensor.shape[-3:]
    if not _are_known(sizes, output_size) or 0 in sizes or 0 in output_size or not tensor.is_floating_point():
        return _STAYS
    if _are_even(sizes, output_size):
        return _aten.avg_pool3d.default(tensor, [size // wanted for size, wanted in zip(sizes, output_size, strict=True)])
    return _means(tensor, output_size) if sum(output_size) <= MOST_WINDOWS else _STAYS


def _means(tensor: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    for place, wanted in enumerate(output_size):
        dim = tensor.dim() - len(output_size) + place
        if tensor.shape[dim] != wanted:
            parts = [tensor.narrow(dim, start, end - start).mean(dim, keepdim=True) for start, end in windows_of(tensor.shape[dim], wanted)]
            tensor = torch.cat(parts, dim)
    return tensor


def maximum_backward_of(dims: int) -> Callable[..., torch.Tensor]:
    """Make the decomposition of the gradient of a maximum pool with indices over some number of dimensions."""

    def backward(grad: torch.Tensor, tensor: torch.Tensor, *arguments: Any) -> torch.Tensor:
        indices: torch.Tensor = arguments[-1]
        flat = torch.zeros_like(tensor, memory_format=torch.contiguous_format).flatten(-dims)
        return flat.scatter_add(-1, indices.flatten(-dims), grad.flatten(-dims)).reshape(tensor.shape)

    return backward


def average_backward_of(dims: int) -> Any:
    """Make the decomposition of the gradient of an average pool over some number of dimensions."""

    def backward(  # noqa: PLR0913, PLR0917 - the operator's schema
        grad: torch.Tensor,
        tensor: torch.Tensor,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,  # noqa: FBT001 - same
        count_include_pad: bool,  # noqa: FBT001 - same
        divisor: int | None,
    ) -> Any:
        del ceil_mode  # the number of windows is in the shape of the gradient
        if not _is_convolved(grad, tensor):
            return _STAYS
        windows, pads = _each(kernel, dims), _each(padding, dims)
        steps = _each(stride, dims) if stride else windows
        for place, form in enumerate(zip(windows, steps, pads, strict=True)):
            dim = grad.dim() - dims + place
            if divisor is None:
                grad = grad / _counts(grad, dim, form, tensor.shape[dim], padded=count_include_pad)
        return _spread(grad if divisor is None else grad / divisor, tensor, windows, steps, pads)

    return backward


def adaptive_average_backward(grad: torch.Tensor, tensor: torch.Tensor) -> Any:
    """Decompose the gradient of an adaptive average pool whose windows all have the same size."""
    dims = grad.dim() - 2 if grad.dim() > 3 else 2  # noqa: PLR2004 - with or without a batch
    wanted = grad.shape[-dims:]
    if not _is_convolved(grad, tensor) or not _are_even(tensor.shape[-dims:], wanted):
        return _STAYS
    windows = [size // made for size, made in zip(tensor.shape[-dims:], wanted, strict=True)]
    count = 1
    for window in windows:
        count *= window
    return _spread(grad / count, tensor, windows, windows, [0] * dims)


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


def _each(value: Sequence[int], many: int) -> list[int]:
    return [*value] * many if len(value) == 1 else [*value]
