"""Counts the runs of the sessions of a backend, also of partitions that are gone, so that the count never falls."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import itertools


def count_of(counter: itertools.count[int]) -> int:
    """Return how many times a counter that starts at 0 was called, without calling it."""
    return int(repr(counter).removeprefix("count(").removesuffix(")"))  # Python 3.14 removes the pickling of counters, the other way


class RunCounts:
    """The counters of all partitions of a backend."""

    def __init__(self) -> None:
        """Start without any."""
        self._live: dict[int, itertools.count[int]] = {}
        self._gone: list[int] = []  # appending is atomic; a finalizer may run in any thread, and must not wait for a lock

    def follow(self, owner: object, counter: itertools.count[int]) -> None:
        """Count the runs of a partition from now on, even when its runner is gone; `counter` must not refer to the runner."""
        self._live[id(counter)] = counter
        weakref.finalize(owner, self._settle, id(counter)).atexit = False

    def total(self) -> int:
        """Count all runs so far."""
        return sum(self._gone) + sum(count_of(counter) for counter in list(self._live.values()))

    def _settle(self, key: int) -> None:
        self._gone.append(count_of(self._live.pop(key)))
