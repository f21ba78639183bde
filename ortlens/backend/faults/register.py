"""The register: every known fault of ONNX Runtime, and the versions in which each was looked for.

`python -m tests.faults --versions` measures the ranges; tests hold the register against the version that is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.backend.faults import kernels, rewrites
from ortlens.backend.faults.fault import version_number

if TYPE_CHECKING:
    from ortlens.backend.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (*rewrites.FAULTS, *kernels.FAULTS)

MEASURED = (
    *("1.23.0", "1.23.1", "1.23.2", "1.24.1", "1.24.2", "1.24.3", "1.24.4", "1.25.0", "1.25.1"),
    *("1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.0", "1.31.1", "1.32.0"),
)
"""The versions of onnxruntime in which every fault was looked for, on x86-64, in order."""


def faults_of(version: str) -> tuple[Fault, ...]:
    """Return the known faults of a version of onnxruntime; one newer than all measured ones counts as the newest."""
    return tuple(fault for fault in FAULTS if fault.covers(version))


def is_measured(version: str) -> bool:
    """Tell whether the faults were looked for in this version of onnxruntime, or in an older and a newer one."""
    return version_number(MEASURED[0]) <= version_number(version) <= version_number(MEASURED[-1])
