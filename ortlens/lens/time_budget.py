"""The time that `verify`, `profile` or `tune` may take: what is expected is said before it begins, and the limit is kept."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.trace.recorder import Recorder

BUDGET_S = 60.0
"""By default. A BERT of 12 layers takes 10 s; for a model that takes minutes, one rather chooses than waits."""

_SHORT_S = 1.0
"""Work that is expected to take less is not worth a word."""


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

    @property
    def used_s(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self._began

    def is_over(self) -> bool:
        """Tell whether the limit is reached."""
        return self.used_s > self.budget_s

    @contextlib.contextmanager
    def spent(self, study: str, doing: str, expected_s: float, recorder: Recorder) -> Iterator[str]:
        """Say what the work will take before it begins, and record what it took."""
        recorder.note(**{f"{study}_expected_s": expected_s, f"{study}_budget_s": self.budget_s})
        about = f", about {float(f'{expected_s:.2g}'):g} s" if expected_s >= _SHORT_S else ""
        yield doing + (f"{about}, {self.budget_s:g} s at most" if about and expected_s > self.budget_s else about)
        recorder.note(**{f"{study}_took_s": self.used_s})
