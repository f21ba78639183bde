"""How often a run is repeated with the profiler: enough for stable figures, within a budget of time."""

from __future__ import annotations

import time

from ortlens.errors import UsageError

MOST = 20
FEWEST = 5
BUDGET_S = 3.0
"""With 20 pairs of runs, a model that takes 0.2 s per call was profiled for 10 s; from five pairs on, the median is stable."""


class Repeats:
    """Repeats of the runs of one call.

    Attributes:
        most: How often a run is repeated at most.
    """

    def __init__(self, asked: int | None, budget_s: float = BUDGET_S) -> None:
        """Begin the budget.

        Args:
            asked: How often the user wants it, whatever it takes; None: 20 times, and after the budget 5 times.
            budget_s: Seconds for all runs.

        Raises:
            UsageError: `asked` is not a positive number.
        """
        if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool) or asked < 1):
            raise UsageError(f"repeat must be a whole number from 1, not {asked!r}")
        self.most = MOST if asked is None else asked
        self._is_limited = asked is None
        self._deadline = time.perf_counter() + budget_s

    def are_enough(self, done: int) -> bool:
        """Whether a run has been repeated often enough.

        Args:
            done: Its repeats so far.

        Returns:
            True at `most`, and from five on when the budget is used up.
        """
        return done >= self.most or (self._is_limited and done >= FEWEST and time.perf_counter() > self._deadline)
