"""Whether blocks of memory overlap: what a run writes into must be nothing else that it reads."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import torch

from ortlens.backend.memory_order import may_overlap_itself

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

_EXACT_ELEMENTS = 1 << 22
"""Most elements of interleaved tensors whose places are compared one by one."""


def are_apart(written: Container[int], frozen: Sequence[tuple[int, int]], *blocks: int) -> bool:
    """Whether blocks of memory that a run writes into overlap no other.

    Args:
        written: Which of the blocks are written into.
        frozen: Where further memory begins and ends, see `merged`.
        blocks: Address and size in bytes of each block, one after the other.

    Returns:
        True if nothing that is read changes but by the operator that writes it.
    """
    end_of_any = end_of_written = 0
    for start, size, at in sorted(zip(blocks[::2], blocks[1::2], range(len(blocks) // 2), strict=True)):
        if start < end_of_written or (at in written and start < end_of_any):
            return False
        end_of_any = max(end_of_any, start + size)
        if at in written:
            end_of_written = start + size
            after = bisect.bisect_left(frozen, (end_of_written, 0))
            if after and frozen[after - 1][1] > start:
                return False
    return True


def merged(blocks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where some memory begins and ends.

    Args:
        blocks: Address and size in bytes of blocks that may overlap.

    Returns:
        Address of the first byte, and of the first one behind, of each stretch of memory without a gap, in order.
    """
    found: list[tuple[int, int]] = []
    for start, size in sorted(blocks):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], start + size))
        else:
            found.append((start, start + size))
    return found


def tensors_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have memory in common. Pieces of a split lie between one another without that.

    Args:
        one: A tensor with data.
        other: Another one.

    Returns:
        True also for interleaved ones with too many elements to compare.
    """
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
    """Whether several elements of a tensor lie in one place, as those of an expanded one.

    Args:
        tensor: A tensor with data.

    Returns:
        True also for odd strides with too many elements to compare.
    """
    return may_overlap_itself(tensor) and (tensor.numel() > _EXACT_ELEMENTS or len(set(_places(tensor))) < tensor.numel())


def block_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Find the memory that a tensor reaches over.

    Args:
        tensor: A tensor with data.

    Returns:
        Address, and size in bytes with the gaps between elements.
    """
    if tensor.is_contiguous():
        return tensor.data_ptr(), tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size() if tensor.numel() else 0


def _places(tensor: torch.Tensor) -> list[int]:
    """The addresses of the elements."""
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return (places.reshape(-1) * tensor.element_size() + tensor.data_ptr()).tolist()
