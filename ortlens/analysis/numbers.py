"""The result of comparing ONNX Runtime with PyTorch: how many values match, differ, or were not compared and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.trace.records import Capture, Numeric


LEFT_OUT = "not compared: the time of"
"""How the note begins on what `verify` left out when its time was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNumbers:
    """The verdict on a call as a whole: its results, what it wrote, its gradients.

    Attributes:
        right: Parts that match PyTorch.
        wrong: Parts that differ.
        unchecked: Parts without a verdict.
        note: Why the first of these has none.
    """

    right: int
    wrong: tuple[Numeric, ...]
    unchecked: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The verdict on the numbers of a capture.

    Attributes:
        right: Values inside partitions that were compared and are right.
        wrong: Values inside partitions that were compared and are wrong.
        unchecked: Reasons why values were not compared, and how many, the most frequent first.
        first: The first of them that is wrong, in the order of the graph; None when none is.
        origins: Values that are the first to hold NaN or infinities.
        per_op: Whether operators were compared one by one, each on PyTorch's inputs.
        partitions: Partitions that the values are from.
        eager_nodes: Nodes that PyTorch runs, which need no comparison.
        call: The verdict on the call as a whole; None when it was not compared.
        left_out: Values that were not compared, or not in all calls, because the time of `verify` was over.
    """

    right: int
    wrong: int
    unchecked: tuple[tuple[str, int], ...]
    first: Numeric | None
    origins: tuple[Numeric, ...]
    per_op: bool
    partitions: int
    eager_nodes: int
    call: CallNumbers | None = None
    left_out: int = 0

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
    if not capture.numerics:
        return None
    rows = [row for row in capture.numerics if row.scope != "call"]
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
        call=_call_of([row for row in capture.numerics if row.scope == "call"]),
        left_out=sum(LEFT_OUT in row.note for row in capture.numerics),
    )


def _call_of(rows: Sequence[Numeric]) -> CallNumbers | None:
    if not rows:
        return None
    unchecked = [row for row in rows if row.ok is None]
    return CallNumbers(
        right=sum(row.ok is True for row in rows),
        wrong=tuple(row for row in rows if row.ok is False),
        unchecked=len(unchecked),
        note=next((row.note.partition(";")[0] for row in unchecked), ""),
    )
