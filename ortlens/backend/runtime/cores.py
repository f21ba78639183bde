"""What has the cores of this machine while something is measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_WATCHED_S = 0.1


class CoreWatch:
    """What has the cores of this machine while something is measured.

    No clock tells: where a pool of threads meets at a barrier and one of them has no core, every call takes milliseconds, the fastest too.
    """

    def __init__(self) -> None:
        """Begin to watch."""
        self._began = _reading()

    def shares(self) -> tuple[float, float] | None:
        """Return how many cores other processes had, and how many were idle, on average since the watch began.

        None where the system, unlike Linux, does not count them, or too soon: it counts in steps of 10 ms.
        """
        began, now = self._began, _reading()
        if began is None or now is None or now.at - began.at < _WATCHED_S:
            return None
        passed = now.at - began.at
        others = (now.used - began.used) - (now.own - began.own)
        return max(0.0, others / passed), max(0.0, (now.idle - began.idle) / passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Clocks in seconds: wall time, time that the cores of the machine were used and idle, and the part of it that this process used."""

    at: float
    used: float
    idle: float
    own: float


def _reading() -> _Reading | None:
    try:
        name, *figures = _STAT.read_bytes().split(b"\n", 1)[0].split()
        user, nice, system, idle, waiting, *rest = (int(figure) / os.sysconf("SC_CLK_TCK") for figure in figures[:8])
    except (OSError, ValueError, AttributeError):
        return None
    used = user + nice + system + sum(rest)  # interrupts, and what the host took for another guest
    return _Reading(at=time.perf_counter(), used=used, idle=idle + waiting, own=time.process_time()) if name == b"cpu" else None
