"""The head of a capture: versions, the machine, chosen options, and the recorder of a lens, which puts them there."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ortlens import _versions
from ortlens._process import usable_cores
from ortlens.lens.observing import machine_peaks
from ortlens.trace.guard import lens_guard
from ortlens.trace.journal import Journal
from ortlens.trace.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.trace import records as r


_MAX_TEXT = 300
_MAX_VALUE = 12
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_facts() -> dict[str, str]:
    """Collect versions and names of the machine, for the head of a capture."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        **{f"version_{package}": version for package, version in _loaded_versions().items()},
    }


def machine_figures() -> dict[str, Any]:
    """Collect the figures of the machine that are known without torch, by their names in `Figures`."""
    return {"cpu_count": os.cpu_count(), "cpu_usable": usable_cores(), "peaks": machine_peaks.measured()}


def rank_of_process() -> int | None:
    """Return the rank of this process in a distributed job; None if it has none."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


@functools.cache
def boot_fact() -> dict[str, str]:
    """Return a digest of what Linux tells two starts of machines apart by: the same on ranks that share a clock."""
    with contextlib.suppress(OSError):
        return {"boot": hashlib.sha256(_BOOT_ID.read_bytes()).hexdigest()[:12]}
    return {}


# What a process has loaded stays, and reading the metadata of all distributions takes milliseconds.
_loaded_versions = functools.cache(_versions.installed)


def chosen_options(options: OrtBackendOptions) -> dict[str, str]:
    """Describe the options of our backend that differ from their defaults, as `option_<name>`; `upcast` is among the figures."""
    chosen = ((field.name, getattr(options, field.name), field.default) for field in fields(options))
    differ = ((name, value) for name, value, default in chosen if value is not default and value != default)
    return {f"option_{name}": option_text(value) for name, value in differ if name != "upcast"}


def option_text(value: object) -> str:
    """Write an option of any backend as text; long values inside of mappings, which may be keys or paths, are cut."""
    if isinstance(value, str | int | float | os.PathLike | None) or hasattr(value, "__dataclass_fields__"):
        text = str(value)
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key}: {_short(option_text(item))}" for key, item in value.items())
    elif isinstance(value, Sequence):
        text = ", ".join(filter(None, map(option_text, value)))
    else:
        text = str(getattr(value, "__qualname__", None) or f"an object of type {type(value).__name__}")
    return text[:_MAX_TEXT]


def _short(text: str) -> str:
    """Cut a long option of a provider, which may be a key or a path."""
    return text if len(text) <= _MAX_VALUE and not set("/\\").intersection(text) else f"{text[:4]}…"


class _Named(Protocol):
    name: str


class LensRecorder(Recorder):
    """A recorder that knows the head of its captures."""

    def __init__(
        self, lens: _Named, backend: str, figures: Callable[[], dict[str, Any]], journal: str | os.PathLike[str] | None = None
    ) -> None:
        """Start empty. `figures` are those of the machine; all that comes is written to the file `journal`, which survives the process."""
        super().__init__()
        self.backend = backend
        self.facts: dict[str, str] = {}  # what the lens adds to the environment, such as chosen options
        self._lens = weakref.ref(lens)
        self._figures_of_machine = figures
        if journal is not None:
            self.journal = Journal(journal, self._head, self)
            weakref.finalize(lens, self.journal.close)  # also when the interpreter exits

    def _head(self) -> dict[str, Any]:
        """Return name, backend and environment as they are now; nothing once the lens is gone."""
        lens = self._lens()
        if lens is None:
            return {}
        facts: dict[str, str] = {}
        with lens_guard(self, "reading the environment"):
            facts = machine_facts()
            self.note(**self._figures_of_machine())
        return {"name": lens.name, "backend": self.backend, "environment": {**facts, **self.facts}}

    def captured(self) -> r.Capture:
        """Freeze what was recorded so far, with its head; recording goes on."""
        return self.capture(**self._head())
