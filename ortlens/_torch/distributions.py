"""Tracing with `torch.distributions` as Dynamo does: without checks of their parameters, which ask tensors for their values."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCK = threading.Lock()
_DEPTH = [0]
_BEFORE = [True, False]
"""What was set when the first of several threads entered: whether parameters are checked, and whether Dynamo had switched that off."""


@contextlib.contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Create distributions without a check of their parameters, unless they are made with `validate_args=True`.

    Dynamo switches the check off for the rest of the process, when the first compiled function is called (`TorchPatcher.patch` in
    `torch/_dynamo/eval_frame.py`), and `torch.export` without Dynamo does not. Afterwards it is as it was, for other threads too, unless
    Dynamo switched it off in the meantime, which it does only once.
    """
    from torch.distributions import Distribution

    with _LOCK:
        if not _DEPTH[0]:
            _BEFORE[:] = Distribution._validate_args, _is_switched_off()
        _DEPTH[0] += 1
        Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        with _LOCK:
            _DEPTH[0] -= 1
            checked, was_switched_off = _BEFORE
            if not _DEPTH[0] and _is_switched_off() == was_switched_off:
                Distribution.set_default_validate_args(checked)


def _is_switched_off() -> bool:
    from torch._dynamo.eval_frame import TorchPatcher

    return bool(TorchPatcher.patch.cache_info().currsize)
