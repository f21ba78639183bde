"""What `compare` returns: frames and text over two captures."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ortlens.analysis.compare.changes import Change
from ortlens.analysis.compare.comparison import AlignedOperator, compared
from ortlens.analysis.compare.durations import Timing
from ortlens.trace.frames import frame_from_records
from ortlens.trace.schema import table_from_record
from ortlens.views.comparison_text import comparison_text, verdict_sentence
from ortlens.views.static_table import safe

if TYPE_CHECKING:
    import pandas as pd

    from ortlens.trace.records import Capture


class Comparison:
    """Two captures of one program, aligned by module path, target and structure. A snapshot: later calls of a live lens are not in it."""

    def __init__(self, before: Capture, after: Capture) -> None:
        """Compare two captures.

        Args:
            before: The first: a baseline.
            after: The second: what it became.

        Raises:
            UsageError: A capture is empty, or they are of different models.
        """
        self._compared = compared(before, after)

    @property
    def is_worse(self) -> bool:
        """Whether something is slower outside the noise, or a break, recompile, wrong result, error or move to PyTorch is new."""
        return self._compared.is_worse

    @property
    def times(self) -> pd.DataFrame:
        """Calls, graphs and partitions that both have, with times, bands, ratio and verdict."""
        return frame_from_records(table_from_record("times", Timing), self._compared.timings)

    @property
    def changes(self) -> pd.DataFrame:
        """What differs besides times: operators, partitions, breaks, recompiles, results, findings, versions, options, providers."""
        return frame_from_records(table_from_record("changes", Change), self._compared.changes)

    @property
    def operators(self) -> pd.DataFrame:
        """Every operator of both captures with its partner, and how it was recognised."""
        return frame_from_records(table_from_record("operators", AlignedOperator), self._compared.operators)

    def summary(self, *, width: int = 100) -> str:
        """Say what differs.

        Args:
            width: Characters per line, at least 60.

        Returns:
            A verdict, then times and differences by kind.
        """
        return comparison_text(self._compared, width=width)

    def to_dict(self) -> dict[str, Any]:
        """Give the comparison as plain data, for JSON.

        Returns:
            `is_worse`, `verdict`, `before`, `after`, and a list of rows for each of `times` and `changes`.
        """
        found = self._compared
        return {
            "is_worse": found.is_worse,
            "verdict": verdict_sentence(found),
            **{
                side: {"name": capture.name, "backend": capture.backend, "created": capture.created}
                for side, capture in (("before", found.before), ("after", found.after))
            },
            "times": [asdict(row) for row in found.timings],
            "changes": [asdict(row) for row in found.changes],
        }

    def __repr__(self) -> str:
        """The verdict on one line."""
        return f"<Comparison: {verdict_sentence(self._compared)}>"

    def __str__(self) -> str:
        """The summary."""
        return self.summary()

    def _repr_html_(self) -> str:
        return f"<pre>{safe(self.summary(), 20_000)}</pre>"
