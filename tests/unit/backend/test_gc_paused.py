"""Compiling without the garbage collector."""

import gc
import threading

import pytest

from ortlens.backend.basis.gc_paused import gc_paused


def test_the_collector_rests_meanwhile_and_comes_back_after_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError), gc_paused():  # noqa: PT012 - what happens inside is tested
        with gc_paused():
            pass
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_it_stays_off_for_who_had_it_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_several_threads_switches_it_on() -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow() -> None:
        with gc_paused():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=slow)
    thread.start()
    inside.wait()
    with gc_paused():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
