"""Operators whose results lie in memory in another order than torch's shape functions say.

PyTorch's own backends run the kernels and return what the kernels made. ONNX Runtime's results are laid out as the trace says, so the
trace has to be right. Batch normalisation returns contiguous or channels-last memory whatever its input's order is, a few kernels always
return contiguous memory, `roll` and `max_unpool2d` keep channels-last memory, windows (`im2col`) are contiguous, and some functions of two
tensors follow other rules in the trace than the iterator of the kernels when dimensions are permuted and broadcast.

Source: torch 2.13: `batch_norm_cpu` in `aten/src/ATen/native/Normalization.cpp`, `TensorIteratorBase::reorder_dimensions`,
`roll_common` in `aten/src/ATen/native/TensorTransformations.h`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.memory_order import inverse_order, is_contiguous, memory_order

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

_aten = torch.ops.aten
_CHANNELS_LAST = ((0, 2, 3, 1), (0, 2, 3, 4, 1))
_BATCH_NORMS = tuple(
    getattr(getattr(_aten, name), overload)
    for name in (
        *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
        *("_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_with_update_functional", "_batch_norm_no_update"),
    )
    for overload in getattr(_aten, name).overloads()
    if not overload.endswith("out")
)
_OF_TWO = (
    *(_aten.copysign.Tensor, _aten.div.Tensor_mode, _aten.floor_divide.default, _aten.heaviside.default, _aten.logaddexp.default),
    *(_aten.logaddexp2.default, _aten.logical_and.default, _aten.logical_or.default, _aten.logical_xor.default),
    *(_aten.native_dropout_backward.default, _aten.xlogy.Tensor),
)
"""Their kernels lay out the result as that of a sum, whose shape function is right."""


_CONTIGUOUS = (_aten.isin.Tensor_Scalar, _aten.log_sigmoid_forward.default, _aten.pow.Scalar, _aten.take.default)
"""Their kernels return contiguous memory."""


def with_kernel_strides(table: Mapping[Any, Callable[..., Any]], users: Collection[Any] = ()) -> dict[Any, Callable[..., Any]]:
    """Give the results of operators of a table, but for `users`, the memory order that their kernels give them."""
    made = dict(table)
    for targets, laid in (
        (_BATCH_NORMS, _batch_norm),
        ((_aten.native_group_norm.default,), _group_norm),
        (_OF_TWO, _of_two),
        (_CONTIGUOUS, _of_contiguous),
        ((_aten.roll.default,), _roll),
        ((_aten.im2col.default,), _windows),
        ((_aten.max_unpool2d.default,), _unpooled),
        ((_aten.index.Tensor,), _index),
    ):
        made.update({target: _laid_out(laid, target, table.get(target)) for target in targets if target not in users})
    return made


def _laid_out(laid: Callable[..., Any], target: Any, further: Callable[..., Any] | None) -> Callable[..., Any]:
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        made = laid(target, *args, **kwargs)
        if made is not NotImplemented:
            return made
        return NotImplemented if further is None else further(*args, **kwargs)

    return decomposed


def _batch_norm(target: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Normalise a copy that lies as the result does; leave it alone if the trace is right about it."""
    if is_contiguous(tensor) or memory_order(tensor) in _CHANNELS_LAST:
        return NotImplemented
    return target(_aten.clone.default(tensor, memory_format=suggested_format(tensor)), *args, **kwargs)


def _group_norm(target: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Normalise one channels-last image through contiguous memory: the kernel may refuse the stride of a dimension of size 1."""
    if memory_order(tensor) not in _CHANNELS_LAST or _torch.size_hint(tensor.shape[0]) != 1 or is_contiguous(tensor):
        return NotImplemented
    normal, *rest = target(_contiguous(tensor), *args, **kwargs)
    return (_aten.clone.default(normal, memory_format=suggested_format(tensor)), *rest)


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """Suggest a memory format like `suggest_memory_format` in `c10/core/TensorImpl.h`: channels-last also for what is not dense."""
    order = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}.get(tensor.dim(), ())
    least = 0
    for dim in order:
        size, stride = _torch.size_hint(tensor.shape[dim]), _torch.size_hint(tensor.stride(dim))
        if not size or stride < least or (dim == 1 and not stride) or (dim == 0 and least == _torch.size_hint(tensor.stride(1))):
            return torch.contiguous_format
        least = stride * size
    return {0: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}[len(order)]


def _of_two(target: Any, first: Any, second: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply the operator to arguments whose dimensions are permuted to the order of the result, where the trace is right."""
    if _is_plain(first) and _is_plain(second):
        return NotImplemented
    model = _aten.add.Tensor(first, second) if isinstance(first, torch.Tensor) else _aten.add.Tensor(second, first)  # nothing reads it
    order = memory_order(model) or tuple(range(model.dim()))
    moved = target(_moved(first, order), _moved(second, order), *args, **kwargs)
    return moved.permute(inverse_order(order))


def _of_contiguous(target: Any, *args: Any, **kwargs: Any) -> Any:
    if all(map(_is_plain, args)):
        return NotImplemented
    return target(*(value if _is_plain(value) else _contiguous(value) for value in args), **kwargs)


def _roll(target: Any, tensor: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """Roll dimension by dimension; each roll concatenates two pieces, which keeps channels-last memory if none is empty."""
    if _is_plain(tensor) or not dims:
        return NotImplemented
    if len(dims) > 1:
        for shift, dim in zip(shifts, dims, strict=True):
            tensor = target(tensor, [shift], [dim])
        return tensor
    size = tensor.shape[dims[0]]
    if (
        suggested_format(tensor) is torch.contiguous_format
        or statically_known_true(size == 0)
        or statically_known_true(shifts[0] % size == 0)
    ):
        return NotImplemented
    order = _CHANNELS_LAST[tensor.dim() - 4]
    return target(tensor.permute(order), shifts, [order.index(dims[0] % tensor.dim())]).permute(inverse_order(order))


def _windows(target: Any, *args: Any) -> Any:
    """Copy the windows to contiguous memory where the shape function, torch's decomposition, makes a permuted view of them."""
    made: torch.Tensor = _torch.decomposition_of(target)(*args)  # nothing reads it where it is contiguous
    return NotImplemented if _is_plain(made) else _contiguous(made)


def _unpooled(target: Any, tensor: torch.Tensor, *args: Any) -> Any:
    """Lay out a float image as the pooled one: the shape function, torch's decomposition, makes a contiguous one."""
    layout = suggested_format(tensor)
    if layout is torch.contiguous_format or not tensor.is_floating_point():
        return NotImplemented
    return _aten.clone.default(_torch.decomposition_of(target)(tensor, *args), memory_format=layout)


def _index(target: Any, tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    """Lay out values at indices in the order of the kernel's iterator over values and indices; the shape function omits indices."""
    given = [index for index in indices if index is not None]
    if any(index.dtype not in (torch.int32, torch.int64) for index in given) or all(map(_is_plain, (tensor, *given))):
        return NotImplemented
    given = list(_aten.broadcast_tensors.default(given))
    places = [place for place, index in enumerate(indices) if index is not None]
    first = places[0] if places == list(range(places[0], places[0] + len(places))) else 0
    rest = [place for place in range(tensor.dim()) if place not in places]
    shape, strides = [tensor.shape[place] for place in rest], [tensor.stride(place) for place in rest]
    shape[first:first], strides[first:first] = given[0].shape, [0] * given[0].dim()
    around = [index.reshape([1] * first + [*index.shape] + [1] * (len(rest) - first)) for index in given]  # only its strides are read
    order = iterator_order(shape, [strides, *(index.expand(shape).stride() for index in around)])
    if order == iterator_order(shape, [strides]):
        return NotImplemented
    made = target(_contiguous(tensor), [None if index is None else _contiguous(index) for index in indices])
    return _contiguous(made.permute(order)).permute(inverse_order(order))


def iterator_order(shape: Sequence[Any], operands: Sequence[Sequence[Any]]) -> tuple[int, ...]:
    """Order dimensions as an iterator of PyTorch's kernels lays out a result, from the outermost to the innermost one in memory.

    A stride is 0 where an operand lacks a dimension or is expanded. Source: `TensorIteratorBase::reorder_dimensions`.
    """
    sizes, hints = [_torch.size_hint(size) for size in shape], [[_torch.size_hint(step) for step in steps] for steps in operands]
    order = list(reversed(range(len(sizes))))
    for place in range(1, len(order)):
        outer = place
        for inner in reversed(range(place)):
            compared = _compared(order[inner], order[outer], sizes, hints)
            if compared < 0:
                break
            if compared > 0:
                order[inner], order[outer], outer = order[outer], order[inner], inner
    return tuple(reversed(order))


def _compared(inner: int, outer: int, sizes: list[int], operands: list[list[int]]) -> int:
    """Decide by the first operand that can whether two dimensions stay (-1) or swap (1); 0 where none can."""
    for steps in operands:
        if not steps[inner] or not steps[outer]:
            continue
        if steps[inner] != steps[outer]:
            return -1 if steps[inner] < steps[outer] else 1
        if sizes[inner] > sizes[outer]:
            return 1
    return 0


def _moved(value: Any, order: tuple[int, ...]) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    full = value[(None,) * (len(order) - value.dim())].permute(order)
    return full if _is_plain(full) else _contiguous(full)


def _is_plain(value: Any) -> bool:
    """Tell whether a value is contiguous, or no tensor; the strides of dimensions of size 1 count, as the shape functions heed them."""
    if not isinstance(value, torch.Tensor):
        return True
    expected = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if _torch.size_hint(stride) != expected:
            return False
        expected *= max(_torch.size_hint(size), 1)
    return True


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    copy: torch.Tensor = _aten.clone.default(tensor, memory_format=torch.contiguous_format)
    return copy
