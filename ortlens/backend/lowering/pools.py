"""Pools that ONNX lacks, and gradients of pools.

Windows of different sizes are cut out one by one, one dimension after the other: reading them by their indices takes four times as long.
The gradient of an average pool is a transposed convolution with ones. Sums over a matrix of zeros and ones would be wrong beside infinity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.adaptive_windows import MOST_WINDOWS, windows_of
from ortlens.backend.lowering.kernel_strides import suggested_format
from ortlens.backend.memory_order import is_contiguous

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is


def adaptive_average_2d(tensor: torch.Tensor, output_size: Sequence[int]) -> Any:
    """Pool by windows if there are few, else as torch decomposes `aten._adaptive_avg_pool2d`: to a pool that needs channels."""
    empty = any(isinstance(size, int) and not size for size in (*tensor.shape, *output_size))
    if empty or not tensor.is_floating_point():  # PyTorch refuses integers
        return _STAYS
    if _are_known(tensor.shape[-2:], output_size) and not _are_even(tensor.shape[-2:], output_size) and sum(output_size) <= MOST_WINDOWS:
        return _means(tensor, output_size)
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
