"""What the system knows of a process: whether it runs, the memory that it holds, the cores that it may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Count the cores that this process may use; a container or an affinity mask may allow fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def is_running(pid: int) -> bool:
    """Tell whether a process of this machine is running."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def resident_bytes(pid: int) -> int | None:
    """Return the memory that a process holds, shared libraries included; None without `/proc`, or once the process has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):  # Windows has no sysconf
        return None
