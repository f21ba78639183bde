"""With `on_slow="fallback"`: time a partition once against its own nodes in PyTorch, in one of its calls."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ortlens.analysis.speed import WORTH_APART
from ortlens.backend.runtime.ab_timing import clocked, compare_briefly, waiting_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.analysis.speed import AbTiming

AFTER_CALLS = 5
"""Calls before the trial: the first ones warm up."""

EACH_NS = 200_000_000
ALL_NS = 2_000_000_000


@dataclass(slots=True)
class SpeedTrials:
    """The trials of one backend."""

    left_ns: int = ALL_NS  # a partition that it does not suffice for stays in ONNX Runtime
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def compare(self, in_ort: Callable[..., tuple[Any, ...]], in_torch: Callable[..., Any], args: tuple[Any, ...]) -> AbTiming | None:
        """Time a partition in both places, PyTorch second; None when no time is left.

        One trial runs at a time, since two would disturb each other. Runs by `in_ort` are not counted.
        """
        with self._lock, torch.no_grad():
            if self.left_ns <= 0:
                return None
            started, wait = time.perf_counter_ns(), waiting_for(args)
            ours, theirs = clocked(lambda: in_ort(*args), wait), clocked(lambda: in_torch(*args), wait)
            compared = compare_briefly(ours, theirs, min(EACH_NS, self.left_ns))
            self.left_ns -= time.perf_counter_ns() - started
            return compared


def torch_is_faster(compared: AbTiming) -> bool:
    """Tell whether PyTorch, timed second, is surely faster, and by a tenth at least."""
    ort_ns, torch_ns = compared.least_ns
    return compared.is_faster and ort_ns >= WORTH_APART * torch_ns


def before_a_trial(run: Callable[..., tuple[Any, ...]], tried: Callable[[tuple[Any, ...]], None]) -> Callable[..., tuple[Any, ...]]:
    """Return a function that runs a partition and, once, after some calls, has it tried.

    `tried` makes the trial with the inputs of that call, and decides what runs from then on.
    """
    calls = itertools.count()

    def counted(*args: Any) -> tuple[Any, ...]:
        outputs = run(*args)
        if next(calls) == AFTER_CALLS:  # of several threads, one
            tried(args)
        return outputs

    return counted
