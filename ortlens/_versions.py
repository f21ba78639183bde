"""The versions that ortlens supports, and the installed ones.

Everything goes through `importlib.metadata`: nothing is imported, so the answer costs milliseconds and works even
when the package itself does not import.

ONNX Runtime comes as one of several distributions that all install the module `onnxruntime`: the plain one for CPU,
`onnxruntime-gpu` and others per execution provider. Any of them serves.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING

from ortlens.errors import OptionalDependencyError, UnsupportedVersionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The plain one first: it is the one to name when none is installed.
ONNXRUNTIME_DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-directml",
    "onnxruntime-qnn",
    "onnxruntime-migraphx",
    "onnxruntime-rocm",
    "onnxruntime-vitisai",
    "onnxruntime-silicon",
    "onnxruntime-training",
    "ort-nightly",
    "ort-nightly-gpu",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedRange:
    """Versions from `low` (included) to `high` (excluded), as release numbers."""

    low: tuple[int, ...]
    high: tuple[int, ...]

    def __str__(self) -> str:
        """Return the range as pip spells it."""
        return f">={'.'.join(map(str, self.low))},<{'.'.join(map(str, self.high))}"

    def holds(self, installed_version: str) -> bool:
        """Tell whether a version lies in the range; False for a text that starts with no number.

        Pre-releases count as the release that they lead to and local suffixes are dropped: `2.14.0.dev20260101+cu128` is taken as 2.14.0.
        Vendors ship such builds as the real thing, and one that leads to `high` already has its changes.
        """
        # Not `packaging.version`: it is no dependency of ours, and the release number is all that counts here.
        match = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", installed_version)
        release = tuple(map(int, match.group(1).split("."))) if match else ()
        return match is not None and _padded(self.low) <= _padded(release) < _padded(self.high)


SUPPORTED: Mapping[str, SupportedRange] = MappingProxyType(
    {
        "torch": SupportedRange(low=(2, 9), high=(2, 16)),
        "onnxruntime": SupportedRange(low=(1, 23), high=(2,)),
        "onnx": SupportedRange(low=(1, 19), high=(2,)),
        "onnxscript": SupportedRange(low=(0, 6), high=(1,)),
    }
)


def installed() -> dict[str, str]:
    """Look up the versions of the packages in `SUPPORTED` that are here; `onnxruntime` stands for whichever distribution of it is."""
    found = {name: _installed_version(name) for name in SUPPORTED}
    return {name: text for name, text in found.items() if text is not None}


def onnxruntime_distributions() -> dict[str, str]:
    """Look up all distributions that install the module `onnxruntime`: more than one overwrite each other's files."""
    found = {name: version_of(name) for name in ONNXRUNTIME_DISTRIBUTIONS}
    return {name: text for name, text in found.items() if text is not None}


def check_supported(*names: str) -> None:
    """Refuse packages (keys of `SUPPORTED`, by default all) that are missing or out of range, with the pip command that fixes it."""
    for name in names or tuple(SUPPORTED):
        supported = SUPPORTED.get(name)
        if supported is None:
            raise UsageError(f"ortlens has no version range for {name!r}, only for {', '.join(SUPPORTED)}.")
        here = _installed_version(name)
        if here is None:
            text = f"{name} is not installed. ortlens needs {name}{supported}: pip install '{name}{supported}'"
            raise OptionalDependencyError(text, name=name)
        if not supported.holds(here):
            distribution = next(iter(onnxruntime_distributions())) if name == "onnxruntime" else name
            raise UnsupportedVersionError(
                f"{distribution} {here} is installed, but ortlens supports {distribution}{supported}. "
                f"To install a supported version: pip install '{distribution}{supported}'"
            )


def _installed_version(name: str) -> str | None:
    if name == "onnxruntime":
        return next(iter(onnxruntime_distributions().values()), None)
    return version_of(name)


def version_of(distribution: str) -> str | None:
    """Return a package's version, that of the loaded module in a process that can open no file; None where it is not known."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
    except OSError:  # no file can be opened: a process out of descriptors still has what it loaded
        loaded = "onnxruntime" if distribution in ONNXRUNTIME_DISTRIBUTIONS[:1] else distribution
        return getattr(sys.modules.get(loaded), "__version__", None)


def _padded(release: tuple[int, ...]) -> tuple[int, ...]:
    return (*release, 0, 0, 0)[: max(3, len(release))]
