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
            after = bisect.bisect_left(frozen, (end_of_written, 0))
            if after and frozen[after - 1][1] > start:
                return False
    return True


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
    """Tell whether two tensors share memory; true also for interleaved ones with too many elements to compare.

    Pieces of a split lie between one another without sharing any.
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
    """Tell whether elements share a place, as in an expanded tensor; true also for odd strides with too many elements to compare."""
    return may_overlap_itself(tensor) and (tensor.numel() > _EXACT_ELEMENTS or len(set(_places(tensor))) < tensor.numel())


def block_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Find the memory that a tensor reaches over: its address, and its size in bytes with the gaps between elements."""
    if tensor.is_contiguous():
        return tensor.data_ptr(), tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size() if tensor.numel() else 0


def _places(tensor: torch.Tensor) -> list[int]:
    """Return the addresses of the elements."""
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return (places.reshape(-1) * tensor.element_size() + tensor.data_ptr()).tolist()
