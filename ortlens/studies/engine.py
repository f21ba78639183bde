"""Sides: ways of running one program, in this process or in others, measured in turns against a base, and the one table of them.

A study only makes sides. What fails ends its own side alone, and is a row with the reason.
"""

from __future__ import annotations

import contextlib
import math
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._process import at_cores
from ortlens._shell import progress
from ortlens.analysis.speed import MIN_ROUNDS, AbTiming
from ortlens.backend.basis.ab_timing import clocked_often, take_turns, waiting_for
from ortlens.lens.verify.compare_values import Tolerances, compare
from ortlens.studies.apart import ProcessLimits, run_in_subprocess
from ortlens.studies.child import in_a_line
from ortlens.studies.environments import HERE
from ortlens.trace.records import SideResult, same
from ortlens.views.table import brief_columns, table
from ortlens.views.wording import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ortlens.studies.apart import ProcessResult
    from ortlens.studies.bench import Load
    from ortlens.studies.environments import Environment
    from ortlens.trace.records import SideStatus

_TOLERANCES = Tolerances(atol=0, rtol={torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2})
_LIMITS = ProcessLimits(seconds=600.0)
_ROUND_NS, _LOADED_NS = 20_000_000, 100_000_000  # of several callers, in turns with other ways; and where cores of others are counted


@dataclass(slots=True, eq=False, kw_only=True)
class Side:
    """A way of running a program, and how it went so far. `status` and `note` are as in `SideResult`."""

    name: str
    status: SideStatus = "ok"
    note: str = ""
    first_ns: int | None = None
    max_abs: float | None = None
    peak_bytes: int | None = None
    used: list[tuple[int, int]] = field(default_factory=list, init=False)  # CPU time by round: of a call, and after the calls

    @property
    def runs(self) -> bool:
        """Whether it has not failed so far."""
        return self.status == "ok"

    def fail(self, status: SideStatus, reason: str) -> None:
        """End this side; the others go on."""
        self.status, self.note = status, reason

    def round(self) -> int | None:
        """Return the ns of a call in this round; None where the side fails, or has failed before."""
        raise NotImplementedError


@dataclass(slots=True, eq=False, kw_only=True)
class LocalSide(Side):
    """A call in this process."""

    make: Callable[[], Callable[[], Any]]  # compiles, exports or loads, and returns the call
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext  # entered for each round, and not timed
    callers: int = 1  # threads that call at the same time; then a round returns the time per call of all together
    given: tuple[Any, ...] = ()  # values on whose devices a call computes, beside those of its result
    matches: bool | None = None  # whether its results are what is expected; None until it started
    _timed: Callable[[], int] | None = field(default=None, init=False)

    def start(self, expected: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Make it and call it once; return the tensors of its result, which are compared with those expected. Raise what it raises."""
        began = time.perf_counter_ns()
        with self.around(), _torch.unprinted():
            call = self.make()
            result = call()
            wait = waiting_for(*self.given, result)  # a function may have its weights, or move its inputs, out of sight
            wait()
            self.first_ns = time.perf_counter_ns() - began
            together = partial(loaded, call, wait, self.callers, _ROUND_NS)
            self._timed = clocked_often(call, wait) if self.callers == 1 else lambda: round(1e9 / per_second(together()))
        tensors = _torch.tensors_of(result)
        self.max_abs, self.matches = difference(tensors if expected is None else expected, tensors)
        return tensors

    def round(self) -> int | None:
        """Return the ns of a call, the mean of as many as take a millisecond."""
        if not self.runs or self._timed is None:
            return None
        try:
            with self.around():
                timed, cores, spun = at_cores(self._timed)  # which leaves the cores to the next side
        except Exception as error:  # noqa: BLE001 - it is the answer of this side
            self.fail("failed", in_a_line(error))
            return None
        self.used.append((round(timed * cores), spun))
        return timed


def loaded(call: Callable[[], Any], wait: Callable[[], None], callers: int, for_ns: int = _LOADED_NS) -> list[list[int]]:
    """Have threads call for a time, each after one that warms it up; return the ns of the calls, by thread."""
    ready, grad, clock = threading.Barrier(callers), torch.is_grad_enabled(), time.perf_counter_ns

    def caller(_: int) -> list[int]:
        with torch.set_grad_enabled(grad):  # of which each thread has its own
            ready.wait()
            call()
            ends = [clock()]
            while len(ends) == 1 or ends[-1] - ends[0] < for_ns:
                call()
                wait()
                ends.append(clock())
        return [end - start for start, end in pairwise(ends)]

    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(caller, range(callers)))


def per_second(times: Sequence[Sequence[int]]) -> float:
    """Count the calls per second of threads, from the ns of the calls of each."""
    return sum(len(own) * 1e9 / max(sum(own), 1) for own in times)


@dataclass(slots=True, eq=False, kw_only=True)
class ProcessSide(Side):
    """A program in another process, one per question, in this environment or in another."""

    folder: Path  # gets one for each process
    environment: Environment = HERE
    stop: threading.Event | None = None  # ends what it asks, which raises `StoppedError`
    _asked: int = field(default=0, init=False)

    def ask(self, function: Callable[..., Any], *args: Any, environment: Environment | None = None) -> ProcessResult:  # noqa: ANN401 - of any function
        """Call a function with a new folder, and `args`, in a new process, and wait for its answer or its end."""
        made = self.folder / f"{function.__name__}{self._asked}"
        made.mkdir(parents=True)
        self._asked += 1
        known: Any = {"limits": _LIMITS, "folder": made, "environment": environment or self.environment, "stop": self.stop}
        ended = run_in_subprocess(function, (str(made), *args), **known)
        self.peak_bytes = max(self.peak_bytes or 0, ended.peak_bytes or 0) or None
        return ended


def start(sides: Sequence[LocalSide], expected: Sequence[torch.Tensor] | None = None) -> None:
    """Start sides one after the other, each compared with what is expected; without that, with the first, whose error is raised."""
    with progress("compiling", len(sides), "side") as step:
        for side in sides:
            try:
                found = side.start(expected)
            except Exception as error:
                if expected is None:
                    raise
                side.fail("failed", in_a_line(error))
                continue
            finally:
                step(1)
            expected = found if expected is None else expected


def measured(
    sides: Sequence[Side], *, most: int, is_over: Callable[[], bool], fewest: int = MIN_ROUNDS, shown: str = "timing in turns"
) -> tuple[SideResult, ...]:
    """Run sides in rounds, `fewest` at least and up to `most` until the time is over; a row for each. The first that runs is the base."""
    running = [side for side in sides if side.runs]
    with progress(shown, most, "round") as step:
        readings = take_turns([side.round for side in running], fewest=fewest, most=most, is_over=is_over, tell=step)
    times = {side: [ns for ns in own if ns is not None] for side, own in zip(running, readings, strict=True) if side.runs}
    base = next(iter(times.values()), [])
    return tuple(_result(side, base, times.get(side)) for side in sides)


def _result(side: Side, base: Sequence[int], own: Sequence[int] | None) -> SideResult:
    used = (round(median(each)) or None for each in zip(*side.used, strict=True)) if side.used else (None, None)
    known: Any = dict(zip(("cpu_ns", "spin_ns"), used, strict=True)) | same(side, "status", "note", "first_ns", "max_abs", "peak_bytes")
    row = SideResult(way=side.name, verdict="unmeasured", **known)
    if not own:
        return row
    timing = AbTiming(base, own)
    row = replace(row, call_ns=round(timing.base_ns * timing.ratio), ratio=timing.ratio, rounds=timing.rounds, verdict=timing.verdict)
    if timing.rounds >= MIN_ROUNDS:
        row = replace(row, ratio_low=timing.interval[0], ratio_high=timing.interval[1])
    return replace(row, verdict="reference") if own is base else row


def difference(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> tuple[float, bool]:
    """Return the largest absolute difference, infinite for other numbers, shapes or kinds of tensors or NaN, and whether they match."""
    if [(each.shape, each.is_complex()) for each in expected] != [(each.shape, each.is_complex()) for each in found]:
        return math.inf, False
    pairs = list(zip(expected, found, strict=True))
    rows = [compare(ours, theirs, None, _TOLERANCES.of(theirs.dtype)) for theirs, ours in pairs]
    furthest = max((math.inf if row.clashes else row.max_abs for row in rows), default=0.0)
    return furthest, all(row.agrees for row in rows) and all(ours.dtype is theirs.dtype for theirs, ours in pairs)


def sides_text(rows: Sequence[SideResult | Load], *, width: int = 100) -> str:
    """Lay sides out as a table, and below it what is to be known of some, such as why there are no times."""
    timed = [row for row in rows if row.call_ns is not None]
    lines = [table(timed, brief_columns(timed), width=width, limit=None)] if timed else []
    for row in rows:
        said = ": ".join(filter(None, ("" if row in timed else "not measured", row.note)))
        lines += ["\n".join(textwrap.wrap(visible(f"{row.way}: {said}"), width, subsequent_indent="  "))] if said else []
    return "\n".join(dict.fromkeys(lines))  # rows of one way may say the same
