"""The cores that this process may use, and how long its threads waited for one."""

from __future__ import annotations

import contextlib
import os


def usable_cores() -> int:
    """Cores that this process may use; a container or an affinity mask may allow fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def waited_ns() -> int | None:
    """How long the threads of this process were ready to run while other work had the cores.

    Linux counts it per thread (`/proc/PID/task/*/schedstat`), within a container and under a quota, too. It is what a clock cannot tell: where
    a pool of threads meets at a barrier and one of them has no core, every call takes milliseconds, also the fastest.

    Returns:
        Nanoseconds since the threads that live now began; None where the system does not count them.
    """
    total, counted = 0, False
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{thread}/schedstat", "rb") as figures:
                total += int(figures.read().split()[1])  # on a core, waiting for one, turns
                counted = True
    return total if counted else None
