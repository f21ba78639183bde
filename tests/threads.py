"""Runs work in several threads that begin at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def in_threads(work: Callable[[int], object], count: int = 4) -> None:
    """Call a function with the number of each thread; raise what the first of them raises."""
    barrier = threading.Barrier(count)

    def started(number: int) -> None:
        barrier.wait(timeout=30)
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(started, number) for number in range(count)]:
            done.result(timeout=120)
