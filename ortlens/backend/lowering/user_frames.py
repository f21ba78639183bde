"""Chooses the frame of a stack that a reader would change: the innermost one in the user's code or in a model's."""

from __future__ import annotations

import functools
import os
import pathlib
import sysconfig
from typing import TYPE_CHECKING, NamedTuple

from ortlens import _torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOMS = ("backend", "cli", "job", "lens", "magic")
"""Folders in which ortlens itself calls or compiles the user's code; `demo` counts as user code."""

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_WRAPPERS = frozenset({"inner", "new_forward", "decorated", "decorate_context", "func", "_fn"})
"""Functions that libraries put around a model's own: decorators of transformers, hooks of accelerate."""


class Frame(NamedTuple):
    """One frame of a stack.

    Attributes:
        file: File name of the code.
        line: Line number.
        function: Name of the function.
    """

    file: str
    line: int
    function: str


def innermost(frames: Sequence[Frame]) -> Frame | None:
    """Choose the frame that a reader would change, from frames with the outermost first; None without frames.

    It is the innermost one of model code (see `is_model_code`); if there is none, the innermost outside torch; else the innermost.
    """
    for serves in (is_model_code, _is_outside_torch, bool):
        for frame in reversed(frames):
            if serves(frame):
                return frame
    return None


def is_wrapper(frame: Frame) -> bool:
    """Tell whether a frame is of a function that an installed library, not the user, puts around another."""
    return _is_installed(frame.file) and (frame.function in _WRAPPERS or "wrap" in frame.function)


def is_of_torch_or_ortlens(file: str) -> bool:
    """Tell whether a file, or a text that begins with its name, is torch's or of the part of ortlens that runs the user's code."""
    return file.startswith(_machinery())


def is_of_a_library(file: str) -> bool:
    """Tell whether a file belongs to torch or to another installed library, such as one that holds models."""
    return is_of_torch_or_ortlens(file) or _is_installed(file)


def is_model_code(frame: Frame) -> bool:
    """Tell whether a frame is of the user's code or a model's, not of torch, Python's library, ortlens or a library's wrapper."""
    if is_of_torch_or_ortlens(frame.file) or frame.file.startswith("<frozen "):
        return False
    return not is_wrapper(frame) and (_is_installed(frame.file) or not frame.file.startswith(_python_library()))


def _is_installed(file: str) -> bool:
    return any(folder in file for folder in _INSTALLED)


def _is_outside_torch(frame: Frame) -> bool:
    return not frame.file.startswith(_torch.torch_folder())


@functools.cache
def _machinery() -> tuple[str, ...]:
    package = pathlib.Path(__file__).parents[2]
    return _torch.torch_folder(), *(f"{package / room}{os.sep}" for room in _ROOMS)


@functools.cache
def _python_library() -> tuple[str, ...]:
    return tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})
