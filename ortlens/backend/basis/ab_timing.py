"""Times ways of doing the same in turns, so that changes in the speed of the machine affect all of them alike.

Before a clock is read, the devices of a call are waited for: they compute while Python goes on.
"""

from __future__ import annotations

import time
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ortlens import _torch
from ortlens._process import throttling
from ortlens.analysis.speed import AbTiming

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    Reading = TypeVar("Reading")

_WARM_UP = 2
_FEWEST, _MOST = 7, 200
_FEWEST_BRIEFLY = 3
_OF_CALLS, _CALLS_NS = (5, 20), 200_000_000
_TOO_LONG = 5  # times the limit that a pair must take to be the only one
_PERIOD_S, _SUSTAINED_NS, _SUSTAINED_ROUNDS = 0.1, 500_000_000, 3
_ROUND_NS, _MOST_CALLS = 1_000_000, 200


def waiting_for(*values: Any) -> Callable[[], None]:
    """Return a function that waits for the devices of the tensors in some values and modules; `no_wait` where all are on the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    modules = [value for value in values if isinstance(value, torch.nn.Module)]
    tensors = _torch.tensors_of([values, *(list(module.parameters()) for module in modules)])
    devices = {tensor.device for tensor in tensors if accelerator is not None and tensor.device.type == accelerator.type}
    if not devices:
        return no_wait

    def wait() -> None:
        for device in devices:
            torch.accelerator.synchronize(device)

    return wait


def no_wait() -> None:
    """Do nothing: the CPU is done when a call returns."""


def clocked(run: Callable[[], object], wait: Callable[[], None] = no_wait, *, calls: int = 1) -> Callable[[], int]:
    """Return a function that times calls, in ns of one; before several, an untimed one warms caches that another way left cold."""
    clock = time.perf_counter_ns

    def timed() -> int:
        result = run() if calls > 1 else None
        wait()
        started = clock()
        for _ in repeat(None, calls):
            result = run()
        wait()
        elapsed = clock() - started
        del result
        return elapsed // calls

    return timed


def clocked_often(run: Callable[[], object], wait: Callable[[], None]) -> Callable[[], int]:
    """Return the same for as many calls as take a millisecond, by the time of the second of two calls that are made now."""
    once = clocked(run, wait)
    once()  # the first after compiling may still settle
    return clocked(run, wait, calls=min(_MOST_CALLS, 1 + _ROUND_NS // max(once(), 1)))


def take_turns(
    ways: Sequence[Callable[[], Reading]],
    *,
    fewest: int,
    most: int,
    is_over: Callable[[], bool],
    tell: Callable[[int], None] | None = None,
) -> list[tuple[Reading, ...]]:
    """Measure ways round by round, each round in another order, since one may profit from caches that the one before it filled.

    Makes `fewest` rounds, and up to `most` until the time is over; `tell` hears of each. Returns what each way returned, a value per round.
    """
    readings: list[list[Reading]] = [[] for _ in ways]
    for number in range(most if ways else 0):
        if number >= fewest and is_over():
            break
        places = range(len(ways))
        shift = number % len(ways)
        for place in (*places[shift:], *places[:shift]):
            readings[place].append(ways[place]())
        if tell is not None:
            tell(1)
    return [tuple(each) for each in readings]


def shortest_of_few(run: Callable[[], object], wait: Callable[[], None], *, usual_ns: int) -> Callable[[], int]:
    """Return a function that times a few calls, one by one, and returns the shortest; before, untimed ones warm the caches."""
    once = clocked(run, wait)
    untimed, timed = next((few for longest, few in _FEW if usual_ns < longest), (0, 1))

    def shortest() -> int:
        for _ in repeat(None, untimed):
            run()
        return min(once() for _ in repeat(None, timed))

    return shortest


_FEW = ((300_000, (6, 4)), (2_000_000, (2, 3)), (10_000_000, (1, 2)))
"""Calls that take less than so many ns -> how many are not timed, and how many are; of longer ones what is in the caches matters little."""


def compare(base: Callable[[], int], other: Callable[[], int], budget_ns: int) -> AbTiming:
    """Time two ways, which return ns; at least seven rounds."""
    for _ in range(_WARM_UP):
        base()
        other()
    return _compared(base, other, _FEWEST, _MOST, time.perf_counter_ns() + budget_ns)


def compare_sustained(base: Callable[[], object], other: Callable[[], object]) -> tuple[AbTiming, list[tuple[int, int]]]:
    """Time two ways, each for half a second in a turn, where a quota may stop them; return also how often it did, with the ns lost.

    The kernel stops threads for what their group has used of a period of 0.1 s. In shorter turns, a way would pay for the other.
    """
    deadline = time.perf_counter_ns() + 2 * _SUSTAINED_ROUNDS * _SUSTAINED_NS
    turns = take_turns((_sustained(base), _sustained(other)), fewest=1, most=_SUSTAINED_ROUNDS, is_over=lambda: _is_past(deadline))
    stopped = [(sum(times for _, times, _ in way), sum(lost for *_, lost in way)) for way in turns]
    return AbTiming(*(tuple(ns for ns, *_ in way) for way in turns)), stopped


def _is_past(deadline: int) -> bool:
    return time.perf_counter_ns() >= deadline


def _sustained(run: Callable[[], object]) -> Callable[[], tuple[int, int, int]]:
    def turn() -> tuple[int, int, int]:
        run()
        time.sleep(_PERIOD_S)  # what was used up before is over
        (times, lost), calls, started = throttling(), 0, time.perf_counter_ns()
        while not calls or not _is_past(started + _SUSTAINED_NS):
            run()
            calls += 1
        elapsed, (times_after, lost_after) = time.perf_counter_ns() - started, throttling()
        return elapsed // calls, times_after - times, lost_after - lost

    return turn


def compare_calls(
    base: Callable[[], object], other: Callable[[], object], wait: Callable[[], None], around: Callable[[], AbstractContextManager[None]]
) -> AbTiming:
    """Time two ways of a call, a few calls in each turn, the other way inside of `around()`; 5 to 20 rounds, in 0.2 s."""
    usual = clocked(base, wait)()
    ours, theirs = (shortest_of_few(run, wait, usual_ns=usual) for run in (base, other))

    def within() -> int:
        with around():
            return theirs()

    return _compared(ours, within, *_OF_CALLS, time.perf_counter_ns() + _CALLS_NS)


def compare_briefly(base: Callable[[], int], other: Callable[[], int], budget_ns: int) -> AbTiming:
    """Compare ways that may take long: the only pair if it uses up the time many times over, else a warm-up of those that follow."""
    started = time.perf_counter_ns()
    first = AbTiming((base(),), (other(),))
    if time.perf_counter_ns() - started > _TOO_LONG * budget_ns:
        return first
    return _compared(base, other, _FEWEST_BRIEFLY, _MOST, started + budget_ns)


def _compared(base: Callable[[], int], other: Callable[[], int], fewest: int, most: int, deadline: int) -> AbTiming:
    return AbTiming(*take_turns((base, other), fewest=fewest, most=most, is_over=lambda: _is_past(deadline)))
