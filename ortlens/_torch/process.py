"""What torch brought into the process: its threads and its folder."""

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
def thread_rester() -> Callable[[], Any] | None:
    """A function that ends the OpenMP threads which PyTorch's operators left spinning on the calling thread's behalf.

    GNU's OpenMP, which torch brings on Linux, has its threads spin for a while after their work, and reads how long when it is
    loaded. `omp_pause_resource_all` (OpenMP 5.0, 3.2.44) ends them; the next operator that wants threads starts new ones.

    Returns:
        It; None where torch does not use GNU's OpenMP, or one without that function.
    """
    library = next(pathlib.Path(torch_folder(), "lib").glob("libgomp*.so*"), None)
    if library is None or sys.platform != "linux":
        return None
    try:
        pause = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all
    except (OSError, AttributeError):  # another one is in use, or one from before OpenMP 5.0
        return None
    pause.argtypes = [ctypes.c_int]
    return functools.partial(pause, 1)  # omp_pause_soft


def torch_folder() -> str:
    """Folder of the installed torch, to tell its frames from the user's."""
    import torch

    return str(pathlib.Path(torch.__file__).parent)
