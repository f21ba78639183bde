"""How often a run is repeated with the profiler: enough for stable figures, within the time that there is."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ortlens.analysis.expected import profile_s
from ortlens.errors import UsageError
from ortlens.lens.time_budget import BUDGET_S, TimeBudget

if TYPE_CHECKING:
    from ortlens.trace.records import Capture

PROFILING = "profiling"
"""What the progress says of work that takes less than a second."""

MOST = 20
FEWEST = 5
STABLE_S = 3.0
"""With 20 pairs of runs, a model that takes 0.2 s per call was profiled for 10 s; from five pairs on, the median is stable."""


class Repeats:
    """Repeats of the runs of one call."""

    def __init__(self, asked: int | None, budget_s: float | None = None) -> None:
        """Begin; when the time is over, one repeat is enough.

        `asked` None: 20 repeats, or 5 once all runs have taken 3 s. `budget_s` None: 60 s, or no limit if `asked` is given.
        """
        if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool) or asked < 1):
            raise UsageError(f"repeat must be a whole number from 1, not {asked!r}")
        self.most = MOST if asked is None else asked  # how often a run is repeated at most
        self._is_limited = asked is None
        self.budget = TimeBudget(budget_s, BUDGET_S if asked is None else math.inf)  # the time for all of the work
        self.restart()

    def restart(self) -> None:
        """Let the 3 s begin now."""
        self._deadline = time.perf_counter() + STABLE_S

    def expected_s(self, capture: Capture) -> float:
        """Estimate the seconds that a profile will take; 0 if nothing ran."""
        return profile_s(capture, self.most, FEWEST if self._is_limited else self.most, STABLE_S)

    def are_enough(self, done: int) -> bool:
        """Tell whether a run has `most` repeats, five or more after 3 s, or any when the time is over."""
        stable = self._is_limited and done >= FEWEST and time.perf_counter() > self._deadline
        return done >= self.most or stable or (done >= 1 and self.budget.is_over())
