"""Compiling without the garbage collector, on a roomy stack."""

from __future__ import annotations

import gc
import threading

import pytest

from ortlens.backend.gc_paused import gc_paused, roomy


def test_the_collector_rests_meanwhile_and_comes_back() -> None:
    assert gc.isenabled()
    assert gc_paused(lambda first, *, second: (first, second, gc.isenabled()), 1, second=2) == (1, 2, False)
    assert gc.isenabled()


def test_it_comes_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        gc_paused(lambda: 1 // 0)
    assert gc.isenabled()


def test_it_stays_off_for_who_had_it_off() -> None:
    gc.disable()
    try:
        gc_paused(lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_several_threads_switches_it_on() -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow() -> None:
        inside.set()
        leave.wait()

    thread = threading.Thread(target=lambda: gc_paused(slow))
    thread.start()
    inside.wait()
    gc_paused(lambda: None)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_nested() -> None:
    assert gc_paused(lambda: gc_paused(lambda: 5)) == 5
    assert gc.isenabled()


def test_deep_calls_have_room() -> None:
    def deep(levels: int) -> int:
        return 0 if not levels else 1 + deep(levels - 1)

    assert roomy(deep, 500) == 500
