"""Properties of the process that torch sets: its OpenMP threads and its folder."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@functools.cache
def openmp_pause() -> Callable[[], Any] | None:
    """Return a function that ends the OpenMP threads which PyTorch's operators have started for the calling thread.

    The threads of GNU OpenMP, which torch uses on Linux, keep spinning for a while after their work; the duration is fixed when the library
    is loaded. `omp_pause_resource_all` (OpenMP 5.0, 3.2.44) ends them; the next parallel operator starts new ones. None if torch does not
    use GNU OpenMP, or a version without it.
    """
    library = next(pathlib.Path(torch_folder(), "lib").glob("libgomp*.so*"), None)
    if library is None or sys.platform != "linux":
        return None
    try:
        pause = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all
    except (OSError, AttributeError):  # another library is in use, or one before OpenMP 5.0
        return None
    pause.argtypes = [ctypes.c_int]
    return functools.partial(pause, 1)  # omp_pause_soft


def torch_folder() -> str:
    """Return the folder of the installed torch, to distinguish its frames from the user's."""
    import torch

    return str(pathlib.Path(torch.__file__).parent)


def computes_bfloat16() -> bool | None:
    """Tell whether the CPU has instructions for products of bfloat16, which torch uses; None if torch does not say.

    Source: `torch/cpu/__init__.py` of torch 2.13; it knows the extensions of x86-64 only.
    """
    import platform

    import torch

    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    asked = [ask for name in names if (ask := getattr(torch.cpu, name, None)) is not None]
    return any(ask() for ask in asked) if asked and platform.machine() in ("x86_64", "AMD64") else None
