"""Whether blocks of memory overlap: what a run writes into must be nothing else that it reads."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence


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
