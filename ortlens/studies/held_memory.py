"""How much memory a process and its children hold, and how much this one may use. Linux; None elsewhere."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PROC = Path("/proc")
_OWN = ("RssAnon:", "RssShmem:")
_GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def held_bytes(pid: int) -> int | None:
    """Measure the memory of a process and its children without mapped files, which can be dropped; None if unknown."""
    found = [_held(each) for each in _family(pid)]
    known = [held for held in found if held is not None]
    return sum(known) if known else None


def _held(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        lines = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith(_OWN)]
        return sum(sizes) if sizes else None
    return None


def _family(pid: int) -> list[int]:
    found, ahead = [], [pid]
    while ahead:
        each = ahead.pop()
        found.append(each)
        with contextlib.suppress(OSError, ValueError):
            for thread in (_PROC / str(each) / "task").iterdir():
                with contextlib.suppress(OSError):
                    ahead += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found


def usable_bytes() -> int | None:
    """Look up how much memory this process may use, the machine's or its container's; None where the system does not tell."""
    limits = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for group in _GROUPS:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(group.read_text(encoding="ascii")))
    return min((limit for limit in limits if limit > 0), default=None)
