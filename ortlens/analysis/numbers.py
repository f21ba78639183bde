"""The result of comparing ONNX Runtime with PyTorch: how many values match, differ, or were not compared and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortlens.trace.records import Capture, Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The verdict on the numbers of a capture.

    Attributes:
        right: Values that were compared and are right.
        wrong: Values that were compared and are wrong.
        unchecked: Reasons why values were not compared, and how many, the most frequent first.
        first: The first value that is wrong, in the order of the graph; None when none is.
        origins: Values that are the first to hold NaN or infinities.
        per_op: Whether operators were compared one by one, each on PyTorch's inputs.
        partitions: Partitions that the values are from.
        eager_nodes: Nodes that PyTorch runs, which need no comparison.
    """

    right: int
    wrong: int
    unchecked: tuple[tuple[str, int], ...]
    first: Numeric | None
    origins: tuple[Numeric, ...]
    per_op: bool
    partitions: int
    eager_nodes: int

    @property
    def compared(self) -> int:
        """Values that were compared."""
        return self.right + self.wrong


def numbers_of(capture: Capture) -> Numbers | None:
    """Sum up the compared values.

    Args:
        capture: Any capture.

    Returns:
        The verdict; None when nothing was compared, which is no verdict at all.
    """
    rows = capture.numerics
    if not rows:
        return None
    reasons = Counter(row.note.partition(";")[0] or "no reason was recorded" for row in rows if row.ok is None)
    return Numbers(
        right=sum(row.ok is True for row in rows),
        wrong=sum(row.ok is False for row in rows),
        unchecked=tuple(reasons.most_common()),
        first=next((row for row in rows if row.first_divergence), None),
        origins=tuple(row for row in rows if row.nonfinite == "origin"),
        per_op=any(row.scope == "op" for row in rows),
        partitions=len({row.partition_id for row in rows}),
        eager_nodes=len(capture.fallbacks),
    )
