"""The environment of a capture: versions and the machine."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import torch

from ortlens import _versions
from ortlens._torch import computes_bfloat16
from ortlens.backend.runtime.threads import usable_cores
from ortlens.lens.profiling import machine_peaks

if TYPE_CHECKING:
    from ortlens.backend.options import OrtBackendOptions

_MAX_TEXT = 300


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
        **({} if (narrow := computes_bfloat16()) is None else {"cpu_bfloat16": "yes" if narrow else "no"}),
        **{f"version_{package}": version for package, version in _loaded_versions().items()},
        **machine_peaks.measured(),
    }


@functools.cache
def _loaded_versions() -> dict[str, str]:
    # What a process has loaded stays, and reading the metadata of all distributions takes milliseconds.
    return _versions.installed()


def chosen_options(options: OrtBackendOptions) -> dict[str, str]:
    """The options of our backend that differ from their defaults, for the head of a capture.

    Args:
        options: The options.

    Returns:
        `option_<name>` -> text; objects are represented by their type, functions by their names.
    """
    chosen = ((field.name, getattr(options, field.name), field.default) for field in fields(options))
    return {f"option_{name}": _text_of(value) for name, value, default in chosen if value is not default and value != default}


def _text_of(value: object) -> str:
    if isinstance(value, str | int | float | None):
        return str(value)[:_MAX_TEXT]
    if isinstance(value, os.PathLike):
        return str(value)[:_MAX_TEXT]
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text_of(item)}" for key, item in value.items())[:_MAX_TEXT]
    if isinstance(value, Sequence):
        return ", ".join(text for item in value if (text := _text_of(item)))[:_MAX_TEXT]
    if hasattr(value, "__dataclass_fields__"):
        return str(value)[:_MAX_TEXT]
    return str(getattr(value, "__qualname__", None) or f"an object of type {type(value).__name__}")[:_MAX_TEXT]
