"""The environment of a capture: versions and the machine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens import _versions
from ortlens._process import usable_cores
from ortlens.lens.profiling import machine_peaks

if TYPE_CHECKING:
    from ortlens.backend.options import OrtBackendOptions

_MAX_TEXT = 300
_MAX_VALUE = 12
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def environment() -> dict[str, str]:
    """Collect versions and facts of the machine, for the head of a capture."""
    import torch

    from ortlens._torch import computes_bfloat16

    own = {"torch_threads": str(torch.get_num_threads())}
    if (narrow := computes_bfloat16()) is not None:
        own["cpu_bfloat16"] = "yes" if narrow else "no"
    return {**machine_facts(), **own}


def machine_facts() -> dict[str, str]:
    """Collect the same, without what only torch can tell: torch is not loaded."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": str(os.cpu_count() or 0),
        "cpu_usable": str(usable_cores()),
        **{f"version_{package}": version for package, version in _loaded_versions().items()},
        **machine_peaks.measured(),
    }


def rank_facts() -> dict[str, str]:
    """Describe the place of this process in a distributed job, for the head of a capture; empty if it is no rank.

    `boot` is the same on ranks that share a clock.
    """
    found = {name.lower(): text for name in ("RANK", "WORLD_SIZE") if (text := os.environ.get(name, "")).isdecimal()}
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        found = {"rank": str(distributed.get_rank()), "world_size": str(distributed.get_world_size())}
    return {**found, **_boot()} if "rank" in found else {}


@functools.cache
def _boot() -> dict[str, str]:
    """Return a digest of what Linux tells two starts of machines apart by."""
    with contextlib.suppress(OSError):
        return {"boot": hashlib.sha256(_BOOT_ID.read_bytes()).hexdigest()[:12]}
    return {}


@functools.cache
def _loaded_versions() -> dict[str, str]:
    # What a process has loaded stays, and reading the metadata of all distributions takes milliseconds.
    return _versions.installed()


def chosen_options(options: OrtBackendOptions) -> dict[str, str]:
    """Describe the options of our backend that differ from their defaults, each as `option_<name>`, for the head of a capture."""
    chosen = ((field.name, getattr(options, field.name), field.default) for field in fields(options))
    return {f"option_{name}": option_text(value) for name, value, default in chosen if value is not default and value != default}


def option_text(value: object) -> str:
    """Write an option of any backend as text; long values inside of mappings, which may be keys or paths, are cut."""
    if isinstance(value, str | int | float | None):
        return str(value)[:_MAX_TEXT]
    if isinstance(value, os.PathLike):
        return str(value)[:_MAX_TEXT]
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_short(option_text(item))}" for key, item in value.items())[:_MAX_TEXT]
    if isinstance(value, Sequence):
        return ", ".join(text for item in value if (text := option_text(item)))[:_MAX_TEXT]
    if hasattr(value, "__dataclass_fields__"):
        return str(value)[:_MAX_TEXT]
    return str(getattr(value, "__qualname__", None) or f"an object of type {type(value).__name__}")[:_MAX_TEXT]


def _short(text: str) -> str:
    """Cut a long option of a provider, which may be a key or a path."""
    return text if len(text) <= _MAX_VALUE and not set("/\\").intersection(text) else f"{text[:4]}…"
