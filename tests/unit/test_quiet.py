"""What the exporter says is dropped in the thread that converts; nothing else is, and nothing of it stays behind."""

import logging
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from ortlens import _torch

NAMES = ("torch.onnx", "onnxscript", "onnx_ir", "")


def state() -> tuple[object, ...]:
    loggers = [logging.getLogger(name) for name in NAMES]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    return list(warnings.filters), [logger.level for logger in loggers], [list(handler.filters) for handler in handlers]


def test_two_threads_leave_everything_as_it_was_in_whatever_order_they_finish() -> None:
    before, inside, first_is_out = state(), threading.Barrier(2), threading.Event()

    def work(number: int) -> None:
        with _torch.quiet():
            inside.wait(timeout=30)
            if number:
                first_is_out.wait(timeout=30)
        first_is_out.set()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert state() == before
    with pytest.raises(ZeroDivisionError), _torch.quiet(), _torch.quiet():
        raise ZeroDivisionError
    assert state() == before


def test_warnings_of_the_quiet_thread_are_dropped_and_those_of_others_arrive(caplog: pytest.LogCaptureFixture) -> None:
    def other() -> None:
        warnings.warn("from the user", UserWarning, stacklevel=1)
        logging.getLogger("onnxscript.anything").warning("of the user's export")

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with _torch.quiet():
            warnings.warn("from the exporter", UserWarning, stacklevel=1)
            logging.getLogger("onnxscript.made.meanwhile").warning("chatter")
            logging.getLogger("torch.onnx").error("a failure")
            logging.getLogger("mine").warning("not the exporter's")
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        warnings.warn("afterwards", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["from the user", "afterwards"]
    assert [record.message for record in caplog.records] == ["a failure", "not the exporter's", "of the user's export"]


def test_a_caller_who_catches_warnings_across_the_end_of_quiet_gets_clean_filters_back() -> None:
    before = state()
    quiet = _torch.quiet()
    with warnings.catch_warnings():
        quiet.__enter__()
    quiet.__exit__(None, None, None)
    assert state() == before
    quiet = _torch.quiet()
    quiet.__enter__()
    with warnings.catch_warnings():
        quiet.__exit__(None, None, None)
    assert state() == before


@pytest.mark.parametrize("name", ["addFilter", "removeFilter"])
def test_a_handler_that_takes_no_filters_does_not_silence_what_follows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.Handler()
    logging.getLogger("onnxscript").addHandler(handler)
    monkeypatch.setattr(handler, name, lambda _filter: 1 / 0)
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with pytest.raises(ZeroDivisionError), _torch.quiet():
                warnings.warn("from the exporter", UserWarning, stacklevel=1)
            warnings.warn("afterwards", UserWarning, stacklevel=1)
        assert [str(item.message) for item in heard] == ["afterwards"]
    finally:
        monkeypatch.undo()
        logging.getLogger("onnxscript").removeHandler(handler)
        with _torch.quiet():  # the next block that ends takes the filters back
            pass
