"""Where a capture was made: versions and the machine."""

from __future__ import annotations

import os
import platform

import torch

from ortlens import _versions
from ortlens.backend import peak
from ortlens.backend.threads import usable_cores


def environment() -> dict[str, str]:
    """Versions and facts of the machine, for the head of a capture.

    Returns:
        Name -> text.
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": str(os.cpu_count() or 0),
        "cpu_usable": str(usable_cores()),
        "torch_threads": str(torch.get_num_threads()),
        **{f"version_{package}": version for package, version in _versions.installed().items()},
        **peak.measured(),
    }
