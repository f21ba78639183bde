"""The time that `verify`, `profile` or `tune` may take, and how often a profiled run is repeated within it."""

from __future__ import annotations

import math
import time

from ortlens.errors import UsageError

BUDGET_S = 60.0  # by default. A BERT of 12 layers takes 10 s; for a model that takes minutes, one rather chooses than waits


class TimeBudget:
    """A limit of time that begins now."""

    def __init__(self, budget_s: float | None, default_s: float = BUDGET_S) -> None:
        """Begin; None stands for the default. Raises UsageError if `budget_s` is no time."""
        chosen = default_s if budget_s is None else budget_s
        if isinstance(chosen, bool) or not isinstance(chosen, (int, float)) or not chosen > 0:
            raise UsageError(f"budget_s must be a number of seconds above 0, not {chosen!r}")
        self.budget_s = float(chosen)  # the limit in seconds; infinite for none
        self.over = f"the time of {self.budget_s:g} s was over"  # what a result says of what was left out
        self._began = time.perf_counter()

    def left_s(self) -> float:
        """Return the seconds that are left, below 0 once the limit is passed."""
        return self.budget_s - (time.perf_counter() - self._began)

    def is_over(self) -> bool:
        """Tell whether the limit is reached."""
        return self.left_s() < 0


MOST = 20
FEWEST = 5
STABLE_S = 3.0  # with 20 pairs of runs, a model that takes 0.2 s per call was profiled for 10 s; from five pairs on, the median is stable


class Repeats:
    """Repeats of the runs of one call."""

    def __init__(self, asked: int | None, budget_s: float | None = None) -> None:
        """Begin; None asks for 20 repeats, or 5 once all took 3 s, within 60 s, or without a limit if `asked` is given."""
        if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool) or asked < 1):
            raise UsageError(f"repeat must be a whole number from 1, not {asked!r}")
        self.most = MOST if asked is None else asked  # how often a run is repeated at most
        self._is_limited = asked is None
        self.budget = TimeBudget(budget_s, BUDGET_S if asked is None else math.inf)  # the time for all of the work
        self.restart()

    def restart(self) -> None:
        """Let the 3 s begin now."""
        self._deadline = time.perf_counter() + STABLE_S

    def are_enough(self, done: int) -> bool:
        """Tell whether a run has `most` repeats, five or more after 3 s, or any when the time is over."""
        stable = self._is_limited and done >= FEWEST and time.perf_counter() > self._deadline
        return done >= self.most or stable or (done >= 1 and self.budget.is_over())
