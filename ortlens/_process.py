"""What the system knows of a process: whether it runs, and how much memory it holds."""

from __future__ import annotations

import os
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process runs.

    Args:
        pid: Its number on this machine.

    Returns:
        False once it ended.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def resident_bytes(pid: int) -> int | None:
    """The memory that a process holds.

    Args:
        pid: Its number on this machine.

    Returns:
        Bytes in memory, shared libraries included; None where the system has no `/proc`, or the process ended.
    """
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):  # Windows has no sysconf
        return None
