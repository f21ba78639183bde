"""Leaves to PyTorch what fails again and again.

A run counts as failed only if PyTorch computes it: where PyTorch raises as well, the input is to blame. One failed run decides nothing,
because memory may have been short for a moment. Sizes that fail again and again are left to PyTorch by themselves.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable

IN_A_ROW = 3
"""How many failed runs in a row leave sizes, or the partition, to PyTorch."""
MAX_SIZES = 8
"""How many combinations of sizes may have failed, without a good run since, before the partition is left to PyTorch."""

Verdict: TypeAlias = Literal["kept", "sizes lost", "partition lost"]


class Failures:
    """The failed runs of one partition that no good run has made up for."""

    def __init__(self, *, sizes_vary: bool) -> None:
        """Start without failures; unless the sizes of calls vary, they are never to blame."""
        self._sizes_vary = sizes_vary
        self._by_sizes: dict[Hashable, int] = {}  # failed runs in a row at these sizes
        self._row: list[Hashable] = []  # sizes of the latest runs, if these all failed
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Tell whether there are failures to remember; without any, runs need not be reported."""
        return bool(self._by_sizes)

    def at(self, sizes: Hashable) -> int:
        """Count the runs in a row that failed at the sizes of a call."""
        return self._by_sizes.get(sizes, 0)

    def are_lost(self, sizes: Hashable) -> bool:
        """Tell whether PyTorch runs calls of these sizes."""
        return self.at(sizes) >= IN_A_ROW

    def failed(self, sizes: Hashable) -> Verdict:
        """Count a failed run, and tell what it ends: nothing, the runs at these sizes, or all runs.

        The runs at these sizes end after `IN_A_ROW` failures at these alone; all runs, after as many in a row at several sizes or where
        sizes do not vary, or when `MAX_SIZES` sizes have failed.
        """
        with self._lock:
            self._by_sizes[sizes] = self.at(sizes) + 1
            self._row = [*self._row, sizes][-IN_A_ROW:]
            in_a_row = len(self._row) == IN_A_ROW
            if len(self._by_sizes) >= MAX_SIZES or (in_a_row and (len(set(self._row)) > 1 or not self._sizes_vary)):
                return "partition lost"
            return "sizes lost" if self.are_lost(sizes) else "kept"

    def succeeded(self, sizes: Hashable) -> None:
        """Note a good run: it forgives the failures at these sizes, and ends a row of failures."""
        with self._lock:
            self._row.clear()
            self._by_sizes.pop(sizes, None)
