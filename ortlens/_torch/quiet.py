"""Silences the exporter in the thread that converts, and nowhere else."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHATTY = ("torch.onnx", "onnxscript", "onnx_ir")
_FAKES = "torch._subclasses.fake_tensor"  # logs each exception of a shape function, which it also raises


class _Silence(logging.Filter):
    """Drops what a thread says while it is quiet. It is put in place by the first quiet thread and removed by the last.

    As a filter of handlers it sees the records of loggers that are only made meanwhile. As the message of a filter of warnings it is
    asked like a pattern; `warnings.catch_warnings` would replace the filters of all threads, and threads that leave it in another order
    than they entered would leave the wrong ones behind.
    """

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()
        self._lock = threading.Lock()
        self._quiet = 0
        self._rule: tuple[Any, ...] = ("ignore", self, Warning, None, 0)
        self._handlers: list[logging.Handler] = []
        self._rules: list[Any] = []

    def match(self, _text: str) -> bool:
        """Tell whether a warning is dropped."""
        return getattr(self._here, "depth", 0) > 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a log record is passed on."""
        chatty = record.name == _FAKES or (record.levelno < logging.ERROR and record.name.startswith(_CHATTY))
        return not (chatty and self.match(""))

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Silence this thread for as long as the block lasts, also where putting the filters in place or removing them fails."""
        self._enter()
        self._here.depth = getattr(self._here, "depth", 0) + 1
        try:
            yield
        finally:
            self._here.depth -= 1  # alone, it ends the silence
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            for handler in _handlers():  # also those that were added since another thread entered
                if self not in handler.filters:
                    handler.addFilter(self)
                    self._handlers.append(handler)
            if not any(rule is self._rule for rule in warnings.filters[:1]):
                self._take_back()
                self._rules = warnings.filters  # type: ignore[assignment]  # a list, though annotated as a sequence
                self._rules.insert(0, self._rule)
            self._quiet += 1

    def _leave(self) -> None:
        with self._lock:
            self._quiet -= 1
            if not self._quiet:
                for handler in self._handlers:
                    handler.removeFilter(self)
                self._handlers.clear()
                self._take_back()

    def _take_back(self) -> None:
        """Remove the rule from where it was put, and from copies that `warnings.catch_warnings` made in the meantime."""
        for rules in (self._rules, warnings.filters):
            rules[:] = [rule for rule in rules if rule is not self._rule]  # type: ignore[index]  # a list


def _handlers() -> list[logging.Handler]:
    """Find the handlers that get what these loggers say."""
    found = [] if logging.lastResort is None else [logging.lastResort]
    for name in (*_CHATTY, _FAKES):
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            found += [handler for handler in logger.handlers if handler not in found]
            logger = logger.parent
    return found


_SILENCE = _Silence()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter, ONNX Script and its optimiser in this thread.

    They warn of a missing torchvision, of constants that are outputs, of empty attribute lists and of divisions by zero while folding.
    None of these concerns the user, and a real failure raises.
    """
    import numpy as np

    with _SILENCE.during(), np.errstate(all="ignore"):
        yield
