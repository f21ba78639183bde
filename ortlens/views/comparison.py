"""What `compare` returns: frames and text over two captures."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ortlens._os_errors import with_clear_os_errors
from ortlens.analysis.compare.changes import Change
from ortlens.analysis.compare.comparison import AlignedOperator, compared
from ortlens.analysis.compare.durations import Timing
from ortlens.analysis.compare.kernels import KernelTime, kernel_times
from ortlens.trace.schema import frame_from_records, table_from_record
from ortlens.views.comparison_html import comparison_html, comparison_page
from ortlens.views.comparison_text import comparison_text, verdict_sentence
from ortlens.views.markup import write_report

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import pandas as pd

    from ortlens.trace.records import Capture


@with_clear_os_errors
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

    @property
    def kernels(self) -> pd.DataFrame:
        """What operators take in both, those that a kernel computes together in one row; the largest growth first."""
        return frame_from_records(table_from_record("kernels", KernelTime), kernel_times(self._compared))

    def report(self, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Write both captures side by side as one HTML file that opens anywhere, offline.

        Args:
            path: The file; an existing one is replaced if it is a report.
            title: Its title; by default the names of both captures.

        Returns:
            The absolute path of the file.

        Raises:
            UsageError: It cannot be written there, or the file exists and is not a report; it is left untouched.
        """
        return write_report(path, comparison_page(self._compared, title=title))

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
            `is_worse`, `verdict`, `before`, `after`, and a list of rows for each of `times`, `kernels` and `changes`.
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
            "kernels": [
                {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(row).items()}
                for row in kernel_times(found)
            ],
            "changes": [asdict(row) for row in found.changes],
        }

    def __repr__(self) -> str:
        """Return the verdict on one line."""
        return f"<Comparison: {verdict_sentence(self._compared)}>"

    def __str__(self) -> str:
        """Return the summary."""
        return self.summary()

    def _repr_html_(self) -> str:
        return comparison_html(self._compared)
