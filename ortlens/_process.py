"""What the system knows of a process: whether it runs, and how much memory it holds."""

from __future__ import annotations

import os
from pathlib import Path


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
