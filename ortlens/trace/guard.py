"""The one guard between a lens and the program that it observes: what fails on the lens's side is a finding and one warning.

Whatever a lens does around the user's work passes through here: `lens_guard` around a step of the lens's own, `lens_context` around a
context of the lens that the user's work runs in. What the user's work itself raises passes untouched.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from ortlens.trace.recorder import Recorder

MAX_FAILURES = 100  # findings about failures of the lens that one recorder keeps; a failure in every call must not fill the memory
_MAX_TEXT = 2000

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Observer(Protocol):
    """What has a recorder of its own."""

    @property
    def recorder(self) -> Recorder:
        """Where its failures go."""


_O = TypeVar("_O", bound=Observer)


def lens_failed(recorder: Recorder, doing: str, error: Exception) -> None:
    """Report a failure inside the lens as a finding and one warning; the user's code continues.

    Each `doing` warns once per recorder. The finding is kept even if the recorder cannot add records any more.
    """
    known, said = recorder.failures, _said(error)
    is_new = not any(activity == doing for activity, _ in known)
    if (doing, said) in known or len(known) >= MAX_FAILURES:
        return
    known.add((doing, said))
    finding = r.Finding(
        rule="lens_failed",
        severity="warning",
        title=f"ortlens failed while {doing}; the model is not affected",
        evidence=said,
        hazard="Parts of this capture are missing.",
        mitigation="Report it with the evidence; the rest of the capture is valid.",
    )
    try:
        recorder.add(finding)
    except Exception:  # noqa: BLE001 - it may be the recorder that fails; the capture takes these as well
        recorder.unrecorded.append(finding)
    if is_new:
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors, the user's call still goes on
            warnings.warn(f"ortlens failed while {doing}: {said}", RuntimeWarning, stacklevel=3)


def _said(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_MAX_TEXT]
    except Exception:  # noqa: BLE001 - the text of an exception is code of whoever wrote its class
        return type(error).__name__


@contextlib.contextmanager
def lens_guard(recorder: Recorder, doing: str) -> Iterator[None]:
    """Run a step of the lens's own: if it fails, what follows goes on without it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the lens's own failure becomes a finding and one warning
        lens_failed(recorder, doing, error)


@contextlib.contextmanager
def lens_context(recorder: Recorder, doing: str, observing: Callable[[], AbstractContextManager[_T]]) -> Iterator[_T | None]:
    """Run a context of the lens around the user's work: what the context raises is a finding, what the work raises passes.

    Yields what the context gives; None if it could not be entered.
    """
    entered, given = None, None
    with lens_guard(recorder, doing):
        context = observing()
        given = context.__enter__()
        entered = context
    try:
        yield given
    except BaseException:
        if entered is not None:
            with lens_guard(recorder, doing):
                _leave(entered, *sys.exc_info())
        raise
    if entered is not None:
        with lens_guard(recorder, doing):
            entered.__exit__(None, None, None)


def _leave(context: AbstractContextManager[Any], kind: Any, raised: BaseException | None, trace: Any) -> None:  # noqa: ANN401 - as of `__exit__`
    """Leave a context with what the work raised; a context may raise that again, which is no failure of its own."""
    try:
        context.__exit__(kind, raised, trace)
    except BaseException as error:
        if error is not raised:
            raise


def reported(doing: str) -> Callable[[Callable[Concatenate[_O, _P], _T]], Callable[Concatenate[_O, _P], _T | None]]:
    """Decorate a method of the lens that the user's program runs through; it returns None if it fails."""

    def decorate(method: Callable[Concatenate[_O, _P], _T]) -> Callable[Concatenate[_O, _P], _T | None]:
        @functools.wraps(method)
        def guarded(self: _O, /, *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
            with lens_guard(self.recorder, doing):
                return method(self, *args, **kwargs)
            return None

        return guarded

    return decorate
