"""How tensors lie in memory: the order of their dimensions, how to lay values out in another order, and whether two overlap.

ONNX Runtime takes and returns contiguous tensors only. A transposed or channels-last tensor is contiguous after a permutation of its
dimensions; that permutation is its memory order. Expanded and padded tensors have none and are laid out anew by `restride`.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

FORMATS = {0: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of dimensions that channels-last memory has -> its format; 0 for contiguous memory."""
COPIED = ("mps", "xpu")
"""Kinds of devices that ONNX Runtime has no bindings for: tensors are copied to the CPU for a run, and results back."""
_UNKNOWN = 11  # stands for a data-dependent size; small numbers would make strides look dense by chance


def order_from_strides(sizes: Sequence[Any], strides: Sequence[Any]) -> list[int]:
    """Sort dimensions by stride, the largest first; of two with the same stride, one of size 1 comes last."""
    return sorted(range(len(sizes)), key=lambda dim: (-strides[dim], _torch.size_hint(sizes[dim]) == 1))


def inverse_order(order: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation that undoes another."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def strides_in(order: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Compute the strides of memory that is allocated in an order."""
    strides, expected = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim] = expected
        expected *= max(sizes[dim], 1)
    return strides


def are_alike(strides: Sequence[int], others: Sequence[int], sizes: Sequence[int]) -> bool:
    """Tell whether strides are the same, but for those of dimensions of size 1."""
    return all(one == other for one, other, size in zip(strides, others, sizes, strict=True) if size != 1)


def memory_order(meta: Any) -> tuple[int, ...] | None:
    """Find the permutation that makes a tensor contiguous; symbolic sizes and strides are judged by their hints.

    None for a number, and for a tensor that is already contiguous or that no permutation makes contiguous (see `needs_restride`).
    """
    if not isinstance(meta, torch.Tensor) or meta.layout is not torch.strided or is_contiguous(meta):
        return None
    sizes, strides = _hints(meta)
    if 0 in sizes or any(stride == 0 and size > 1 for size, stride in zip(sizes, strides, strict=True)):
        return None
    order = tuple(order_from_strides(sizes, strides))
    dense = _are_dense([sizes[dim] for dim in order], [strides[dim] for dim in order])
    return order if dense and order != tuple(range(len(order))) else None


def strides_like(meta: torch.Tensor, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides that memory of some sizes has where it is allocated as a tensor's; None if they are unknown."""
    order = tuple(range(len(sizes))) if is_contiguous(meta) else memory_order(meta)
    if order is not None:
        return tuple(strides_in(order, sizes))
    return None if _torch.has_symbols(meta) else tuple(meta.stride())


def is_contiguous(value: object) -> bool:
    """Tell whether a value is contiguous, or no strided tensor; unlike torch's own method, this adds no guard."""
    return not isinstance(value, torch.Tensor) or value.layout is not torch.strided or _are_dense(*_hints(value))


def is_dense(value: object) -> bool:
    """Tell whether a value is contiguous, or a permutation makes it so."""
    return is_contiguous(value) or memory_order(value) is not None


def has_fixed_sizes(meta: torch.Tensor) -> bool:
    """Tell whether no size of a tensor in a trace is symbolic."""
    return all(isinstance(size, int) for size in meta.shape)


def last_place(sizes: Iterable[int], strides: Iterable[int]) -> int:
    """Count the elements from the first one in memory to the last, which lies at that place; no size may be 0."""
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def span(tensor: torch.Tensor) -> int:
    """Count the elements of memory that a tensor reaches over, with the gaps between its own."""
    return 1 + last_place(tensor.shape, tensor.stride()) if tensor.numel() else 0


def laid_out(tensor: torch.Tensor, order: list[int]) -> torch.Tensor:
    """Give a tensor a memory order, by operators: methods refuse fake tensors on a device that torch is built without."""
    contiguous = torch.ops.aten.contiguous.default
    is_usual = order == sorted(order)
    made: torch.Tensor = contiguous(tensor) if is_usual else contiguous(tensor.permute(order)).permute(inverse_order(order))
    return made


def reorder(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Permute the dimensions of a tensor in place: PyTorch refuses writes to views that a training graph returns."""
    view = tensor.permute(order)
    return tensor.as_strided_(view.shape, view.stride())


def needs_restride(meta: torch.Tensor) -> bool:
    """Tell whether PyTorch expects strides that no permuted contiguous tensor has: those of expanded or padded tensors."""
    sizes, strides = _hints(meta)
    return 0 not in sizes and not _are_dense(sizes, strides) and memory_order(meta) is None


def has_odd_strides(meta: torch.Tensor, order: Sequence[int] | None) -> bool:
    """Tell whether dimensions of size 1, and no others, have other strides than memory that is allocated in an order gives them."""
    sizes, strides = _hints(meta)
    usual = strides_in(range(len(sizes)) if order is None else order, sizes)
    return 0 not in sizes and strides != usual and are_alike(strides, usual, sizes)


def may_overlap_itself(meta: torch.Tensor) -> bool:
    """Tell whether elements of a tensor may share a place, as in an expanded one; True where symbols or odd strides leave it open."""
    if is_contiguous(meta) or any(statically_known_true(size == 0) for size in meta.shape):
        return False
    end: Any = 0  # in the order of their strides, no dimension reaches into the next place of a later one
    for dim in reversed(order_from_strides(meta.shape, [_torch.size_hint(stride, unknown=_UNKNOWN) for stride in meta.stride()])):
        size, stride = meta.shape[dim], meta.stride(dim)
        if not statically_known_true(size == 1):
            if not statically_known_true(stride > end):
                return True
            end += (size - 1) * stride
    return False


def restride(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Copy a contiguous tensor into given strides; along dimensions of stride 0, all its values have to be equal."""
    core = tensor
    for dim, stride in enumerate(strides):
        if stride == 0 and tensor.shape[dim] > 1:
            core = core.narrow(dim, 0, 1)
    made = torch.empty_strided(core.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(core)
    return made if core is tensor else made.as_strided_(tensor.shape, strides)


def with_layout_of(tensor: torch.Tensor, given: torch.Tensor, *, whole: bool = False) -> torch.Tensor:
    """Give a tensor the strides and the storage offset of another one of its shape, with no two elements in one place.

    Returns the tensor itself if it lies like that already, or has another shape; otherwise a copy in a storage of its own. With `whole`,
    the storage is as long as the other's, too.
    """
    same = tensor.stride() == given.stride() and tensor.storage_offset() == given.storage_offset()
    room_given = given.untyped_storage().nbytes() // given.element_size()
    same &= not whole or tensor.untyped_storage().nbytes() // tensor.element_size() >= room_given
    if same or tensor.shape != given.shape or not tensor.numel():
        return tensor
    room = torch.empty(room_given if whole else given.storage_offset() + span(given), dtype=tensor.dtype, device=tensor.device)
    return room.as_strided(given.shape, given.stride(), given.storage_offset()).copy_(tensor)


def _hints(tensor: torch.Tensor) -> tuple[list[int], list[int]]:
    sizes, strides = ([_torch.size_hint(number, unknown=_UNKNOWN) for number in given] for given in (tensor.shape, tensor.stride()))
    return sizes, strides


def _are_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether these are the strides of a contiguous tensor; those of dimensions of size 1 do not matter."""
    return are_alike(strides, strides_in(range(len(sizes)), sizes), sizes)


_EXACT_ELEMENTS = 1 << 22  # most elements of interleaved tensors whose places are compared one by one


def are_disjoint(written: Container[int], frozen: Sequence[tuple[int, int]], *blocks: int) -> bool:
    """Tell whether blocks of memory that a run writes into overlap no other, so that only the operator that writes changes them.

    `blocks` holds address and size in bytes of each in turn, `written` the positions of those written into; `frozen` comes from `merged`.
    """
    end_of_any = end_of_written = 0
    for start, size, at in sorted(zip(blocks[::2], blocks[1::2], range(len(blocks) // 2), strict=True)):
        if start < end_of_written or (at in written and start < end_of_any):
            return False
        end_of_any = max(end_of_any, start + size)
        if at in written:
            end_of_written = start + size
            if meets(frozen, start, size):
                return False
    return True


def meets(stretches: Sequence[tuple[int, int]], start: int, size: int) -> bool:
    """Tell whether a block of memory overlaps one of the stretches that `merged` returned."""
    after = bisect.bisect_left(stretches, (start + size, 0))
    return after > 0 and stretches[after - 1][1] > start


def merged(blocks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge blocks (address, size in bytes) into gapless stretches in order, each as its first address and the first one behind."""
    found: list[tuple[int, int]] = []
    for start, size in sorted(blocks):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], start + size))
        else:
            found.append((start, start + size))
    return found


def tensors_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors share memory, as pieces of a split do not; true for interleaved ones too large to compare."""
    if not one.numel() or not other.numel():
        return False
    first, size = block_of(one)
    start, length = block_of(other)
    if first + size <= start or start + length <= first:
        return False
    dense, alike = size == one.nbytes or length == other.nbytes, one.element_size() == other.element_size()
    if dense or not alike or one.numel() + other.numel() > _EXACT_ELEMENTS:
        return True
    return not set(_places(one)).isdisjoint(_places(other))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Tell whether elements share a place, as in an expanded tensor; true also for odd strides with too many elements to compare."""
    return may_overlap_itself(tensor) and (tensor.numel() > _EXACT_ELEMENTS or len(set(_places(tensor))) < tensor.numel())


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Copy the elements of a tensor, in their order and without gaps."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def block_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Find the memory that a tensor reaches over: its address, and its size in bytes with the gaps between elements."""
    if tensor.is_contiguous():
        return tensor.data_ptr(), tensor.nbytes
    return tensor.data_ptr(), span(tensor) * tensor.element_size()


def _places(tensor: torch.Tensor) -> list[int]:
    places = torch.zeros((), dtype=torch.int64, device="cpu")
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size, device="cpu") * stride
    return (places.reshape(-1) * tensor.element_size() + tensor.data_ptr()).tolist()


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """Suggest a memory format like `suggest_memory_format` in `c10/core/TensorImpl.h`: channels-last also for what is not dense."""
    order = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}.get(tensor.dim(), ())
    least = 0
    for dim in order:
        size, stride = _torch.size_hint(tensor.shape[dim]), _torch.size_hint(tensor.stride(dim))
        if not size or stride < least or (dim == 1 and not stride) or (dim == 0 and least == _torch.size_hint(tensor.stride(1))):
            return torch.contiguous_format
        least = stride * size
    return FORMATS[len(order)]
